"""The page's server: what it answers, what it does not, and that a thousand visits leave nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import ClusterError
from shadowsync.pipeline.wire.http.listening import RequestLog
from shadowsync.tests.support.coordinator.statuses import a_status
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.watch_servers import response, served_page
from shadowsync.watch.page import app
from shadowsync.watch.page.broadcast import MOST_CLIENTS, QUEUED_EVENTS
from shadowsync.watch.page.files import FILES, FOLDER
from shadowsync.watch.page.server import PageServer

VISITS = 1000


@pytest.fixture
def server() -> Iterator[PageServer]:
    """One with a status."""
    with served_page() as made:
        yield made


def tasks(server: PageServer) -> int:
    """How many tasks the server's loop has."""
    loop = server._thread.loop
    return len(asyncio.all_tasks(loop)) if loop is not None else 0


def ask(port: int, path: str, *, more: str = "") -> socket.socket:
    """A connection on which this was asked, the path as it stands here."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60.0)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{more}\r\n".encode())
    return connection


def read_event(connection: socket.socket, kind: bytes) -> bytes:
    """Reads until an event of this kind is there whole, as the last chunk of what came."""
    whole = b""
    while kind not in whole or not whole.endswith(b"\n\n\r\n"):
        part = connection.recv(1 << 16)
        assert part, whole
        whole += part
    return whole


def test_every_file_of_the_page_is_served_and_there_is_no_other(server: PageServer) -> None:
    for path, (name, kind) in FILES.items():
        code, headers, body = response(server.port, path)
        assert code == 200
        assert body == (FOLDER / name).read_bytes()
        assert headers["Content-Type"].startswith(kind)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
    on_disk = {str(file.relative_to(FOLDER)) for file in FOLDER.rglob("*") if file.is_file()}
    assert on_disk == {name for name, _ in FILES.values()}


def test_the_runs_are_read_at_most_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask, so that nobody keeps the disk busy; the page goes on meanwhile."""
    reads: list[int] = []
    reading, let_go = threading.Event(), threading.Event()

    def list_runs() -> list[dict[str, str]]:
        reads.append(len(reads))
        reading.set()
        assert let_go.wait(60.0)
        return [{"run": f"run-{len(reads)}"}]

    monkeypatch.setattr(app, "RUNS_SECONDS", 3600.0)
    made = PageServer("127.0.0.1", 0, list_runs=list_runs)
    made.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(response, made.port, "/runs.json") for _ in range(8)]
            assert reading.wait(60.0)
            assert response(made.port, "/")[0] == 200
            let_go.set()
            answers = [one.result() for one in asked]
        assert {code for code, _, _ in answers} == {200}
        assert {body for _, _, body in answers} == {b'[{"run": "run-1"}]'}
        assert reads == [0]
        monkeypatch.setattr(app, "RUNS_SECONDS", -1.0)
        assert response(made.port, "/runs.json")[2] == b'[{"run": "run-2"}]'
    finally:
        let_go.set()
        made.close()


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for name, _ in FILES.values():
        text = (FOLDER / name).read_text(encoding="utf-8")
        foreign = [line for line in text.split() if "//" in line and "http" in line]
        if "vendor" not in name:
            assert [line for line in foreign if "www.w3.org" not in line] == [], name


@pytest.mark.parametrize(
    "path",
    [
        *("/../pyproject.toml", "/..%2fpyproject.toml", "/%2e%2e/pyproject.toml", "/vendor/../../status.py"),
        *("//etc/passwd", "/etc/passwd", "/vendor/%2e%2e/page.css", "/page%2ecss", "/vendor", "/vendor/"),
        *("/page.css/", "/page.css%00", "/./page.css", "/index.html", "/\\..\\status.py", "/events/"),
        *("/page/index.html", "/%252e%252e/status.py", "/...", "/vendor/..%5c..%5cstatus.py"),
    ],
)
def test_paths_outside_the_page_are_not_found_and_tell_nothing(server: PageServer, path: str) -> None:
    code, headers, body = response(server.port, path)
    assert code in (400, 404)
    assert b"shadowsync" not in body
    assert str(FOLDER).encode() not in body
    assert b"Traceback" not in body
    if code == 404:
        assert body == b"not found\n"
        assert headers["Server"] == "shadowsync"


@pytest.mark.parametrize(
    "more", [f"X: {'a' * 20_000}\r\n", "X: y\r\n" * 4_000, "no header\r\n"], ids=["long", "many", "none"]
)
def test_a_request_that_cannot_be_read_is_one_line(
    server: PageServer, caplog: pytest.LogCaptureFixture, more: str
) -> None:
    with ask(server.port, "/", more=more) as connection:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.0 400 ")
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("refused a request: ")
    assert record.exc_info is None
    assert "Traceback" not in caplog.text
    assert response(server.port, "/")[0] == 200


def test_an_error_of_the_server_itself_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog(logging.getLogger("server"))
    try:
        raise KeyError("a defect")
    except KeyError as error:
        log.exception("Error handling request from %s", "there", exc_info=error)
    assert "Error handling request from there" in caplog.text
    assert "Traceback" in caplog.text


def test_a_link_in_the_folder_leads_nowhere(
    server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret", encoding="utf-8")
    (tmp_path / "page.css").symlink_to(secret)
    monkeypatch.chdir(tmp_path)
    assert b"secret" not in response(server.port, "/page.css")[2]
    assert response(server.port, "/secret.txt")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_changed(server: PageServer, method: str) -> None:
    assert response(server.port, "/", method=method)[0] == 405


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:8080", "[::1]:1", "10.1.2.3"])
def test_its_own_names_are_served(server: PageServer, host: str) -> None:
    wait_until(lambda: response(server.port, "/status.json")[2] != b"null", "a status is there")
    assert b"a-job" in response(server.port, "/status.json", {"Host": host})[2]


def test_events_go_on(server: PageServer) -> None:
    wait_until(lambda: response(server.port, "/status.json")[2] != b"null", "a status is there")
    with ask(server.port, "/events") as connection:
        whole = read_event(connection, b"event: whole")
        assert b"Content-Type: text/event-stream" in whole
        assert b"no-store" in whole
        data = whole.partition(b"data: ")[2].partition(b"\n")[0]
        assert json.loads(data)["curves"]["ne"]["points"][-1] == [12288.0, 0.7]
        server.publish(a_status(seconds=99.0))
        assert b'"seconds":99.0' in read_event(connection, b"event: status")


def test_a_page_that_does_not_read_is_dropped(server: PageServer, caplog: pytest.LogCaptureFixture) -> None:
    broadcast = server.broadcast
    assert broadcast is not None
    large = a_status(outcome="x" * 2_000_000)
    with ask(server.port, "/events") as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        read_event(slow, b"event: whole")
        wait_until(lambda: len(broadcast.clients) == 1, "it is there")
        for _ in range(4 * QUEUED_EVENTS):
            server.publish(large)
        wait_until(lambda: "an open page read too slowly and was dropped" in caplog.text, "it is dropped")
    assert not broadcast.clients


def test_too_many_pages_are_told_to_come_later(server: PageServer) -> None:
    connections = [ask(server.port, "/events") for _ in range(MOST_CLIENTS)]
    try:
        for connection in connections:
            read_event(connection, b"event: whole")
        code, headers, _ = response(server.port, "/events")
        assert code == 503
        assert headers["Retry-After"]
        assert response(server.port, "/")[0] == 200
    finally:
        for connection in connections:
            connection.close()


def test_a_thousand_visits_leave_nothing(server: PageServer) -> None:
    broadcast = server.broadcast
    assert broadcast is not None

    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def visit() -> None:
        with ask(server.port, "/events") as connection:
            read_event(connection, b"event: whole")

    visit()
    wait_until(lambda: not broadcast.clients, "the first page is gone")
    before = (open_files(), tasks(server), threading.active_count())
    for _ in range(VISITS):
        visit()
        # As a browser that is quicker than the server notices: some are still there.
        if len(broadcast.clients) > MOST_CLIENTS // 2:
            wait_until(lambda: not broadcast.clients, "pages that were closed are forgotten")
    wait_until(lambda: not broadcast.clients, "all pages are gone")
    wait_until(
        lambda: (open_files(), tasks(server), threading.active_count()) <= before,
        f"what was there before: {before}; now {(open_files(), tasks(server), threading.active_count())}",
    )


def test_the_end_reaches_a_page_that_is_open() -> None:
    with served_page() as server, ask(server.port, "/events") as connection:
        read_event(connection, b"event: ")
        server.publish(a_status(ended=True, outcome="finished"))
        server.close()
        rest = b""
        while part := connection.recv(1 << 16):
            rest += part
    assert b'"ended":true' in rest
    assert tasks(server) == 0


def test_a_port_that_is_taken_is_told(server: PageServer) -> None:
    with pytest.raises(ClusterError, match="--web"):
        PageServer("127.0.0.1", server.port)


def test_a_server_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("of the page")

    monkeypatch.setattr("shadowsync.watch.page.server.PageApp", fails)
    made = PageServer("127.0.0.1", 0)
    with pytest.raises(ClusterError, match="ZeroDivisionError: of the page"):
        made.start()
