"""A server that speaks S3, for tests: the one that SHADOWSYNC_S3 names, or moto's if that is installed."""

from __future__ import annotations

import importlib
import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

BUCKET = "checkpoints"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}


@contextmanager
def s3_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty prefix; the environment has what leads there. Skips the test without a server."""
    pytest.importorskip("obstore")
    if given := os.environ.get("SHADOWSYNC_S3"):
        yield f"{given.rstrip('/')}/{uuid4().hex}"
        return
    try:
        moto = importlib.import_module("moto.server")
    except ImportError:
        pytest.skip("needs moto[s3,server], or SHADOWSYNC_S3=s3://BUCKET/PREFIX and AWS_*")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}.items():
            monkeypatch.setenv(name, value)
        make = urllib.request.Request(f"http://{host}:{port}/{BUCKET}", method="PUT")
        with urllib.request.urlopen(make, timeout=30.0):
            yield f"s3://{BUCKET}/{uuid4().hex}"
    finally:
        server.stop()
