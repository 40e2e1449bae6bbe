"""Servers of object storage, for tests: s3, gs and az.

Google's is moto too: its XML interface has the requests of S3, with its own name for the condition of a
write. Microsoft's is Azurite (npm), a process of its own.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest

from ..jobs.processes import free_ports, wait_until
from .s3_server import BUCKET, answer, s3_url

# Known to everybody: each Azurite has it.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

StorageUrl = Callable[[pytest.MonkeyPatch, Path], AbstractContextManager[str]]


@contextmanager
def gs_url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty prefix at moto as Google's; skips the test without it."""
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="needs moto[s3,server]")
    own = moto.DomainDispatcherApplication(moto.create_backend_app)

    def google(request: dict[str, Any], start: Any) -> Iterable[bytes]:
        if request.get("HTTP_X_GOOG_IF_GENERATION_MATCH") == "0":
            request["HTTP_IF_NONE_MATCH"] = "*"
        served: Iterable[bytes] = own(request, start)
        return served

    server = importlib.import_module("werkzeug.serving").make_server("127.0.0.1", 0, google, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setenv("GOOGLE_BASE_URL", f"http://127.0.0.1:{server.port}")
        monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "test")
        assert answer(f"http://127.0.0.1:{server.port}/{BUCKET}", "PUT") is not None
        yield f"gs://{BUCKET}/{uuid4().hex}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def az_url(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    """The URL of an empty prefix at Azurite; skips the test without it."""
    pytest.importorskip("obstore")
    if (program := shutil.which("azurite-blob")) is None:
        pytest.skip("needs azurite-blob on the PATH (npm install azurite)")
    port = free_ports(1)
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    process = subprocess.Popen(
        [*command, "--skipApiVersionCheck", "--disableTelemetry", "--silent"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", _ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
        wait_until(lambda: _has_container(endpoint), "Azurite answers", 60.0)
        yield f"az://{BUCKET}/{uuid4().hex}"
    finally:
        process.kill()
        process.wait(60.0)


def _has_container(endpoint: str) -> bool:
    """Make the container; return whether the server did so. Source: "Authorize with Shared Key"."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:{version}\n{resource}".encode()
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), signed, hashlib.sha256)).decode()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Authorization": f"SharedKey {_ACCOUNT}:{signature}",
    }
    request = urllib.request.Request(f"{endpoint}/{BUCKET}?restype=container", headers=headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=10.0) as reply:
            return bool(reply.status == 201)
    except OSError:
        return False


SERVERS: Final[dict[str, StorageUrl]] = {
    "s3": lambda monkeypatch, _: s3_url(monkeypatch),
    "gs": lambda monkeypatch, _: gs_url(monkeypatch),
    "az": az_url,
}
