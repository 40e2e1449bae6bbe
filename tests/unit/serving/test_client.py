"""Where a client of `shadowsync serve` sends its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from shadowsync.pipeline.errors import ClusterError, DataError, JobFileError
from shadowsync.serving.client import ScoringClient


def handler(answer: Callable[[str], tuple[int, bytes]]) -> type[BaseHTTPRequestHandler]:
    """What replies to a request of a path with a status and a body."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    return Handler


@contextmanager
def one_server(of: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), of) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def proxy() -> Iterator[str]:
    """What has the server's paths below /models/clicks, and nothing elsewhere."""

    def answer(path: str) -> tuple[int, bytes]:
        known = path == "/models/clicks/model"
        return 200 if known else 404, json.dumps(
            {"run": "clicks"} if known else {"error": f"no {path}"}
        ).encode()

    with one_server(handler(answer)) as url:
        yield url


@pytest.mark.parametrize("end", ["", "/"])
def test_the_path_of_the_url_comes_before_that_of_a_request(proxy: str, end: str) -> None:
    with ScoringClient(f"{proxy}/models/clicks{end}") as client:
        assert client.model() == {"run": "clicks"}
    with ScoringClient(proxy + end) as client, pytest.raises(ClusterError, match=r"replied 404: no /model$"):
        client.model()


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        # Of a proxy that speaks TLS there.
        (400, b"<html>The plain HTTP request was sent to HTTPS port</html>", "replied 400: <html>The plain"),
        (200, b"<html>log in</html>", "replied 200: <html>log in</html>; check that shadowsync serve runs"),
        (200, b"\xff\xfe", "replied 200: "),
        (200, b'{"status": "ok"}', "replied 200: .*check that"),
        (200, b"[1]", "replied 200: "),
        (400, b'["no"]', "replied 400: "),
        (502, b"", "replied 502: ; check"),
        (503, b'{"error": "busy"}', "replied 503: busy$"),
    ],
)
def test_what_another_server_replies_is_no_answer(status: int, body: bytes, said: str) -> None:
    with one_server(handler(lambda _: (status, body))) as url, ScoringClient(url) as client:
        for ask in (client.score, client.retrieve):
            with pytest.raises(ClusterError, match=said):
                ask([{"user": "u1"}])


def test_what_the_server_refuses_is_an_error_of_the_rows() -> None:
    refusal = b'{"error": "there is no column \'x\'"}'
    with (
        one_server(handler(lambda _: (400, refusal))) as url,
        ScoringClient(url) as client,
        pytest.raises(DataError, match=r"there is no column 'x'$"),
    ):
        client.score([{"x": 1}])


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "localhost:8080",
        "http://",
        "http://:8080",
        "http://host:port",
        "http://[::1",
        "ftp://host",
        "http://me:secret@host",
        "http://host/?model=clicks",
        "http://host/#clicks",
    ],
)
def test_a_url_of_which_a_part_would_be_left_out_is_refused(url: str) -> None:
    with pytest.raises(
        JobFileError, match=r"^url: no address of a server given; write http://HOST:PORT"
    ) as refused:
        ScoringClient(url)
    assert "secret" not in str(refused.value)
