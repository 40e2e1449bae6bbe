"""Where a client of `shadowsync serve` sends its requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from shadowsync.pipeline.errors import ClusterError, JobFileError
from shadowsync.serving.client import ScoringClient


class Proxy(BaseHTTPRequestHandler):
    """What has the server's paths below /models/clicks, and nothing elsewhere."""

    def do_GET(self) -> None:
        known = self.path == "/models/clicks/model"
        reply = json.dumps({"run": "clicks"} if known else {"error": f"no {self.path}"}).encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("end", ["", "/"])
def test_the_path_of_the_url_comes_before_that_of_a_request(proxy: str, end: str) -> None:
    with ScoringClient(f"{proxy}/models/clicks{end}") as client:
        assert client.model() == {"run": "clicks"}
    with ScoringClient(proxy + end) as client, pytest.raises(ClusterError, match=r"replied 404: no /model$"):
        client.model()


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
