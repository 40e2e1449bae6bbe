"""A node's metrics for Prometheus.

The server shows the counts of the last heartbeat, on a thread of its own, so that a scrape costs training
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ...pipeline.errors import ClusterError
from ...pipeline.wire.http.connections import ConnectionCounts
from ...pipeline.wire.http.hosts import check_host
from ...pipeline.wire.http.http_thread import HttpThread
from ...pipeline.wire.http.listening import HEALTH_PATH, HttpServer, listen
from ...pipeline.wire.http.token_guard import TokenGuard
from ...pipeline.wire.keys.http_token import required_token
from .metric_names import BY_LABEL, BY_ROLE, PREFIX, Metric

MOST_CONNECTIONS = 64
IDLE_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0
LABELS = ("run", "role", "node")
REMEDY = "choose another port with --metrics-port, or none with --metrics-port 0"

CountsByName = dict[str, Any]
log = logging.getLogger(__name__)

# Returns whether the node is well, and one line that says why.
HealthCheck = Callable[[], tuple[bool, str]]


class HeartbeatCollector(Collector):
    """A collector that converts a node's counts, by name, to metrics.

    Args:
        counts: returns the newest counts; called on the server's thread.
    """

    def __init__(self, run: str, role: str, node: str, counts: Callable[[], CountsByName]) -> None:
        self._role = role
        self._values = (run, role, node)
        self._counts = counts
        self._of_connections: list[Callable[[], ConnectionCounts]] = []

    def add_connections(self, counts: Callable[[], ConnectionCounts]) -> None:
        """Add the connections of a server of this node."""
        self._of_connections.append(counts)

    def collect(self) -> Iterable[Family]:
        """Yield the metrics whose count is known."""
        servers = [counts() for counts in self._of_connections]
        counts = self._counts() | {
            "http_refused": sum(server.refused for server in servers),
            "http_closed": sum(server.closed for server in servers),
        }
        for metric in BY_ROLE[self._role]:
            value = counts.get(metric.key)
            if value is not None:
                family = _family(metric, LABELS)
                family.add_metric(self._values, float(value))
                yield family
        for label, metrics in BY_LABEL.items():
            for metric in metrics:
                ends = {key: value for key, value in counts.items() if key.startswith(metric.key)}
                if ends:
                    family = _family(metric, (*LABELS, label))
                    for key, value in sorted(ends.items()):
                        family.add_metric((*self._values, key.removeprefix(metric.key)), float(value))
                    yield family


def _family(metric: Metric, labels: tuple[str, ...]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + metric.name, metric.text, labels=labels)


class MetricsServer:
    """An HTTP server of `/metrics` and `/healthz`, on a thread of its own.

    One other thread may call `start` and `close`, which block it for a moment.

    Off loopback, `/metrics` needs a token (see `required_token`). `/healthz` gives everybody its status code,
    since probes have no secrets, and its reason only to requests with the token.

    Args:
        collector: has the metrics, and from here on the counts of this server's connections.
        health: called on the server's thread.
        names: host names, besides addresses and "localhost", by which requests without a token may call it.

    Raises:
        ClusterError: it cannot listen there.
        JobFileError: other machines can reach it, and there is neither a key nor a token.
    """

    def __init__(
        self,
        collector: HeartbeatCollector,
        health: HealthCheck,
        host: str,
        port: int,
        names: tuple[str, ...] = (),
    ) -> None:
        self._guard = TokenGuard(required_token(host, port), log)
        self._socket = listen(host, port, what="the metrics", remedy=REMEDY)
        self.port: int = self._socket.getsockname()[1]
        self._where = f"{host}:{self.port}"
        self._names = (*names, host)
        self._health = health
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        collector.add_connections(lambda: self.counts)
        self._server: HttpServer | None = None
        self._thread = HttpThread("metrics", self._make)

    @property
    def counts(self) -> ConnectionCounts:
        return ConnectionCounts() if self._server is None else self._server.counts

    def start(self) -> None:
        """Start to answer requests, including those that already wait.

        Raises ClusterError if the thread does not start.
        """
        try:
            self._thread.start(self._where, REMEDY)
        except ClusterError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._thread.close()
        self._socket.close()

    def _make(self) -> HttpServer:
        guarded = self._guard.middleware(open_paths=(HEALTH_PATH,))
        app = web.Application(middlewares=[check_host(self._names, self._guard), guarded])
        app.router.add_get("/metrics", make_aiohttp_handler(self._registry))
        app.router.add_get(HEALTH_PATH, self._serve_health)
        self._server = HttpServer(
            app,
            self._socket,
            log,
            most=MOST_CONNECTIONS,
            idle_seconds=IDLE_SECONDS,
            shutdown_seconds=SHUTDOWN_SECONDS,
        )
        return self._server

    async def _serve_health(self, request: web.Request) -> web.Response:
        healthy, text = self._health()
        if not self._guard.admits(request):
            text = "well" if healthy else "not well"
        return web.Response(status=200 if healthy else 503, text=f"{text}\n")
