"""The servers that watchers ask: a job's page, and a node's metrics."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shadowsync.watch.exporters.metrics_server import HeartbeatCollector, MetricsServer
from shadowsync.watch.page.server import PageServer

from ..coordinator.statuses import a_status

LOOPBACK = "127.0.0.1"


@contextmanager
def served_page(host: str = LOOPBACK, **status: Any) -> Iterator[PageServer]:
    """A page with a status, or parts of one."""
    server = PageServer(host, 0)
    server.start()
    server.publish(a_status(**status))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def served_metrics(
    host: str = LOOPBACK,
    role: str = "reader",
    counts: Callable[[], dict[str, Any]] = lambda: {"cpu_seconds": 2.5},
    is_well: Callable[[], bool] = lambda: True,
    port: int = 0,
) -> Iterator[MetricsServer]:
    """The metrics of the first node of a role, and its health."""
    node = role if role == "coordinator" else f"{role}-0"
    collector = HeartbeatCollector("a-run", role, node, counts)
    server = MetricsServer(collector, lambda: (is_well(), f"{node}: told"), host, port)
    server.start()
    try:
        yield server
    finally:
        server.close()


def response(
    port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET"
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body; of an event stream as much as names its first event."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60.0)
    try:
        connection.request(method, path, headers=headers or {})
        found = connection.getresponse()
        stream = found.headers.get_content_type() == "text/event-stream"
        body = b"" if stream else found.read()
        while stream and b"event: " not in body:
            body += found.readline()
        return found.status, found.headers, body
    finally:
        connection.close()
