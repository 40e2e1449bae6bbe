"""`shadowsync serve`: bodies that unpack to more, never end or are too many; other names."""

from __future__ import annotations

import gzip
import json
import resource
import socket
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE
from shadowsync.serving.follower import FollowedModel
from shadowsync.serving.server import BODY_LIMIT_BYTES, ModelServer
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.served import with_server

TOKEN = "a-token-of-the-server"
# More than a server may have of eight bodies at once, and of one that is unpacked as a whole.
UNPACKED_BYTES = 8 * BODY_LIMIT_BYTES


@pytest.fixture(scope="module")
def body(click_log: Path) -> bytes:
    """Of a request with one row."""
    (file,) = click_log.glob("eval-*.parquet")
    return json.dumps({"rows": pq.read_table(file).slice(0, 1).drop_columns("label").to_pylist()}).encode()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """A body of a MB at most that unpacks to UNPACKED_BYTES."""
    packer = zlib.compressobj(1, wbits=31)
    part = b" " * (1 << 24)
    return b"".join(packer.compress(part) for _ in range(UNPACKED_BYTES >> 24)) + packer.flush()


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the answer is read to its end, however slow the machine is."""
    monkeypatch.setattr("shadowsync.pipeline.wire.http.listening.LINGER_SECONDS", 60.0)


def with_model(run: Path, work: Callable[[ModelServer], None]) -> None:
    """Do some work on a thread, beside the server."""
    with_server(FollowedModel(run, "last"), work)


def head(size: int, *more: str, host: str = "localhost", path: str = "/score", method: str = "POST") -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        *more,
        f"Content-Length: {size}",
        "Connection: close",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


def connect(server: ModelServer, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60.0)
    connection.sendall(sent)
    return connection


def answer(server: ModelServer, sent: bytes) -> tuple[int, bytes]:
    """Status and body."""
    with connect(server, sent) as connection:
        whole = b""
        while part := connection.recv(1 << 16):
            whole += part
    return int(whole.split()[1]), whole.partition(b"\r\n\r\n")[2]


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_a_compressed_body_is_unpacked_up_to_the_limit(saved_run: Path, body: bytes, bomb: bytes) -> None:
    def work(server: ModelServer) -> None:
        plain = answer(server, head(len(body)) + body)
        assert plain[0] == 200
        for encoding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
            sent = head(len(packed), f"Content-Encoding: {encoding}") + packed
            assert answer(server, sent) == plain
        before = peak_bytes()
        sent = head(len(bomb), "Content-Encoding: gzip") + bomb
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(server, sent)) for _ in range(8)]
            for connection in connections:
                assert b" 413 " in connection.recv(1 << 16)
        # One is unpacked at a time, of all a MB is there.
        assert peak_bytes() - before < 5 * BODY_LIMIT_BYTES

    with_model(saved_run, work)


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        ({"path": "/predict"}, 404, "POST /predict: there is POST /score"),
        ({"method": "PUT"}, 405, "PUT /score: there is POST /score"),
        ({"host": "evil.example"}, 421, "this server has another name"),
        ({}, 413, "more than 33,554,432"),
    ],
)
@pytest.mark.usefixtures("unhurried")
def test_every_error_is_json(saved_run: Path, lines: dict[str, str], status: int, said: str) -> None:
    size = BODY_LIMIT_BYTES + 1 if status == 413 else 2

    def work(server: ModelServer) -> None:
        code, reply = answer(server, head(size, **lines) + b"{}" + b" " * (size - 2))
        assert code == status
        assert said in json.loads(reply)["error"]

    with_model(saved_run, work)


@pytest.mark.parametrize(
    ("encoding", "change"),
    [
        ("gzip", lambda body: body),
        ("deflate", lambda body: body),
        ("gzip", lambda body: gzip.compress(body)[:-9]),
        ("gzip", lambda body: gzip.compress(body) + b"more"),
        ("br", lambda body: body),
        ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
        ("gzip", lambda _: b""),
    ],
)
def test_a_body_of_another_encoding_is_told(
    saved_run: Path, body: bytes, encoding: str, change: Callable[[bytes], bytes]
) -> None:
    def work(server: ModelServer) -> None:
        sent = change(body)
        code, said = answer(server, head(len(sent), f"Content-Encoding: {encoding}") + sent)
        assert code == 400
        assert json.loads(said)["error"]
        assert server.counts.refused == 1

    with_model(saved_run, work)


@pytest.mark.usefixtures("unhurried")
def test_no_body_is_unpacked_before_the_token(
    saved_run: Path, bomb: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN, encoding="ascii")
    file.chmod(0o600)
    monkeypatch.setenv(TOKEN_VARIABLE, str(file))
    monkeypatch.setattr("shadowsync.serving.server.BodyMemory.read", None)

    def work(server: ModelServer) -> None:
        for method, path in (("POST", "/score"), ("POST", "/model"), ("POST", "/nothing")):
            sent = head(len(bomb), "Content-Encoding: gzip", method=method, path=path) + bomb
            assert answer(server, sent)[0] == 401
        authorized = f"Authorization: Bearer {TOKEN}"
        # No web site has the token, so with one a proxy may call the server as it likes.
        assert answer(server, head(0, authorized, host="any.example", path="/model", method="GET"))[0] == 200

    with_model(saved_run, work)


def test_unfinished_bodies_are_closed(
    saved_run: Path, body: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.BODY_SECONDS", 0.5)
    monkeypatch.setattr("shadowsync.serving.server.MOST_CONNECTIONS", 16)

    def work(server: ModelServer) -> None:
        with ExitStack() as stack:
            for _ in range(60):
                stack.enter_context(connect(server, head(len(body)) + body[:-1]))
            # Who sends all of it is scored meanwhile.
            assert answer(server, head(len(body)) + body)[0] == 200
            counts = server._server.counts
            wait_until(lambda: counts.refused + counts.closed == 60, "all are closed")
            assert counts.closed > 0
        # It goes by itself.
        connect(server, head(len(body)) + body[:-1]).close()
        assert answer(server, head(len(body)) + body)[0] == 200
        assert server.counts.requests == 2

    with_model(saved_run, work)
    # None of it is a fault of the server.
    assert not [record for record in caplog.records if record.exc_info]


def test_large_bodies_are_too_many_or_too_large(
    saved_run: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowsync.serving.server.ALL_BODIES_BYTES", BODY_LIMIT_BYTES)

    def work(server: ModelServer) -> None:
        assert answer(server, head(BODY_LIMIT_BYTES + 1))[0] == 413
        with connect(server, head(BODY_LIMIT_BYTES) + b"{"):
            wait_until(lambda: answer(server, head(len(body)) + body)[0] == 503, "the memory is taken")
        wait_until(lambda: answer(server, head(len(body)) + body)[0] == 200, "it is free again")

    with_model(saved_run, work)


def test_another_name_is_refused(saved_run: Path, body: bytes) -> None:
    def work(server: ModelServer) -> None:
        for host in ("evil.example", "evil.example:8080", ""):
            assert answer(server, head(len(body), host=host) + body)[0] == 421
            for path in ("/model", "/stats", "/healthz"):
                assert answer(server, head(0, host=host, path=path, method="GET"))[0] == 421
        assert answer(server, head(len(body), host="127.0.0.1:1") + body)[0] == 200

    with_model(saved_run, work)
