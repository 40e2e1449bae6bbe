"""A node's metrics for Prometheus, from its last heartbeat, so that a scrape costs training nothing."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ..pipeline.errors import ClusterError
from .metric_names import BY_ROLE, LINK_RECEIVED, LINK_SENT, LINK_SHARED, PREFIX, Metric

JOIN_SECONDS = 3.0
# A scrape is one request that comes at once; whoever says nothing for so long holds a thread for nothing.
IDLE_SECONDS = 10.0
MOST_CONNECTIONS = 16
LABELS = ("run", "role", "node")

Counts = Mapping[str, Any]

log = logging.getLogger(__name__)


class HeartbeatCollector(Collector):
    """Makes metrics of counts by name.

    Args:
        counts: the newest counts; called by the server's threads.
    """

    def __init__(self, run: str, role: str, node: str, counts: Callable[[], Counts]) -> None:
        self._role = role
        self._values = (run, role, node)
        self._counts = counts

    def collect(self) -> Iterable[Family]:
        """Those whose count is there."""
        counts = self._counts()
        for metric in BY_ROLE[self._role]:
            value = counts.get(metric.key)
            if value is not None:
                family = _family(metric, LABELS)
                family.add_metric(self._values, float(value))
                yield family
        for metric in (LINK_SENT, LINK_RECEIVED, LINK_SHARED):
            ends = {key: value for key, value in counts.items() if key.startswith(metric.key)}
            if ends:
                family = _family(metric, (*LABELS, "peer"))
                for key, value in sorted(ends.items()):
                    family.add_metric((*self._values, key.removeprefix(metric.key)), float(value))
                yield family


def _family(metric: Metric, labels: tuple[str, ...]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + metric.name, metric.text, labels=labels)


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        """A line for every scrape would be all that stands in the log."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each of at most MOST_CONNECTIONS; more of them are closed at once."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        del request
        log.info("a connection of %s ended: %s", client_address, sys.exception())


class MetricsServer:
    """Serves `/metrics` on threads of its own until `close`, to at most MOST_CONNECTIONS at once.

    Raises:
        ClusterError: it cannot listen there.
    """

    def __init__(self, collector: HeartbeatCollector, host: str, port: int) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server = make_server(host, port, make_wsgi_app(registry), _Server, _Handler)
        except OSError as error:
            raise ClusterError(
                f"the metrics cannot be served there ({error.strerror or error})",
                where=f"{host}:{port}",
                remedy="choose another port with --metrics-port, or none with --metrics-port 0",
            ) from error
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(JOIN_SECONDS)


def serve_metrics(
    run: str, role: str, node: str, counts: Callable[[], Counts], *, host: str, port: int
) -> MetricsServer:
    """Begins to serve a node's metrics; raises ClusterError."""
    return MetricsServer(HeartbeatCollector(run, role, node, counts), host, port)
