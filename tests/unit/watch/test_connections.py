"""Connections of an HTTP server that ask for nothing, too much, or never end."""

from __future__ import annotations

import gzip
import resource
import select
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress

import pytest
from shadowsync.pipeline.wire.http.connections import most_connections
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.outside.watch_servers import served_metrics, served_page
from shadowsync.watch.exporters.metrics_server import MetricsServer
from shadowsync.watch.page.server import PageServer

MOST = 8
UNPACKED_BYTES = 256 << 20
Server = PageServer | MetricsServer


def large_page() -> AbstractContextManager[PageServer]:
    return served_page(outcome="x" * 4_000_000)


PATHS = {large_page: "/", served_metrics: "/metrics"}


@pytest.fixture(params=PATHS, ids=["page", "metrics"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str]]:
    """A server that has few connections, and what it serves."""
    for module in ("page.server", "exporters.metrics_server"):
        monkeypatch.setattr(f"shadowsync.watch.{module}.MOST_CONNECTIONS", MOST)
    # What comes after the answer is read to its end, and what asks for nothing stays, however slow the
    # machine is.
    monkeypatch.setattr("shadowsync.pipeline.wire.http.listening.LINGER_SECONDS", 60.0)
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.BEGIN_SECONDS", 300.0)
    with request.param() as made:
        yield made, PATHS[request.param]


def connect(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60.0)
    connection.sendall(sent)
    return connection


def head(path: str, more: str = "", *, method: str = "GET", host: str = "localhost") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def status_of(server: Server, sent: bytes) -> int:
    with connect(server, sent) as connection:
        return int(connection.recv(1 << 16).split()[1])


def is_closed(connection: socket.socket) -> bool:
    """Read to its end, whichever way it ends."""
    try:
        while connection.recv(1 << 16):
            continue
    except ConnectionResetError:
        pass
    return True


def open_connections(port: int) -> int:
    """How many connections of this process's side of the server are open."""
    import psutil

    found = psutil.Process().net_connections("tcp")
    return sum(one.laddr.port == port and one.status == psutil.CONN_ESTABLISHED for one in found)


def test_many_idle_connections_are_few_and_hold_up_nobody(server: tuple[Server, str]) -> None:
    made, path = server
    with ExitStack() as stack:
        for _ in range(10 * MOST):
            stack.enter_context(connect(made))
        assert status_of(made, head(path)) == 200
        # One more while it is accepted.
        assert open_connections(made.port) <= MOST + 1
        wait_until(lambda: made.counts.refused >= 9 * MOST, "the others are counted")
        assert made.counts.closed == 0


def test_who_was_answered_stays_while_others_come(server: tuple[Server, str]) -> None:
    made, path = server
    with ExitStack() as stack:
        known = stack.enter_context(connect(made, head(path)))
        assert b" 200 " in known.recv(1 << 22)
        for _ in range(3 * MOST):
            stack.enter_context(connect(made))
        wait_until(lambda: made.counts.refused >= 2 * MOST, "there are too many")
        known.sendall(head("/nothing"))
        rest = b""
        while b" 404 " not in rest:
            part = known.recv(1 << 16)
            assert part
            rest += part


def test_with_all_at_work_the_next_is_closed_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowsync.watch.page.server.MOST_CONNECTIONS", MOST)
    with large_page() as made, ExitStack() as stack:
        streams = [stack.enter_context(connect(made, head("/events"))) for _ in range(MOST)]
        for stream in streams:
            assert b" 200 " in stream.recv(64)
        assert is_closed(stack.enter_context(connect(made)))
        assert made.counts.refused == 1
        streams.pop().close()
        wait_until(lambda: open_connections(made.port) == MOST - 1, "there is room again")
        assert status_of(made, head("/")) == 200


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localh", b"GET / HTTP/1.1\r\nA: b\r\n"])
def test_an_unfinished_head_is_closed(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.BEGIN_SECONDS", 0.3)
    made, path = server
    with connect(made, sent) as slow:
        assert is_closed(slow)
    assert made.counts.closed == 1

    def answers() -> bool:
        # A machine that stands still for as long as a head may take ends it, too.
        with connect(made, head(path)) as other, suppress(ConnectionResetError):
            return b" 200 " in other.recv(1 << 16)
        return False

    wait_until(answers, "the control: who asks for something is answered")


def test_a_head_that_comes_in_drops_is_closed(
    server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.BEGIN_SECONDS", 0.5)
    made, _ = server
    with connect(made) as slow:
        # It may be closed between a look and the next letter.
        with suppress(ConnectionError):
            for letter in head("/", "A: " + 4000 * "b"):
                slow.sendall(bytes([letter]))
                if select.select([slow], [], [], 0.01)[0]:
                    break
        assert is_closed(slow)
    assert made.counts.closed == 1


def test_a_client_that_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowsync.pipeline.wire.http.connections.READ_SECONDS", 0.3)
    # More than the kernel holds for a server; what it holds is sent, and then nobody has to read.
    with served_page(outcome="x" * 32_000_000) as made, socket.socket() as slow:
        wait_until(lambda: status_of(made, head("/status.json")) == 200, "it serves")
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", made.port))
        slow.sendall(head("/status.json"))
        wait_until(lambda: made.counts.closed >= 1, "it is closed")


def test_a_body_of_a_get_is_refused_as_it_came(server: tuple[Server, str]) -> None:
    """Whatever it would unpack to, with a token or without."""
    made, path = server
    bomb = gzip.compress(bytes(UNPACKED_BYTES))
    length = f"Content-Length: {len(bomb)}\r\n"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for more in ("Content-Encoding: gzip\r\n", "Content-Encoding: deflate\r\n", ""):
        assert status_of(made, head(path, length + more) + bomb) == 400
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(bomb), bomb)
    chunked = "Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n"
    assert status_of(made, head(path, chunked) + chunk) == 400
    # Of the other methods, none takes one.
    assert status_of(made, head(path, length + "Content-Encoding: gzip\r\n", method="POST") + bomb) == 405
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < (UNPACKED_BYTES >> 10) // 4


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", ""])
def test_another_name_is_refused(server: tuple[Server, str], host: str) -> None:
    made, path = server
    assert status_of(made, head(path, host=host)) == 421
    assert status_of(made, head("/healthz", host=host)) == 421
    assert status_of(made, head(path, host="127.0.0.1:80")) == 200
    assert status_of(made, head(path, host="[::1]:80")) == 200


def test_a_process_with_few_files_has_fewer_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(limit: int) -> int:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
        return most_connections(64)

    limits = (24, 48, 256, 1024, 1 << 20, resource.RLIM_INFINITY)
    assert [of(limit) for limit in limits] == [4, 6, 32, 64, 64, 64]
