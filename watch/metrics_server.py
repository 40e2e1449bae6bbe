"""A node's metrics for Prometheus.

The server shows the counts of the last heartbeat, so that a scrape costs training nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.aiohttp import make_aiohttp_handler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from ..pipeline.wire.keys.http_token import required_token
from .listening import HEALTH_PATH, HttpServer, listen
from .metric_names import BY_LABEL, BY_ROLE, LINK_RECEIVED, LINK_SENT, LINK_SHARED, PREFIX, Metric
from .token_guard import TokenGuard

IDLE_SECONDS = 10.0
SHUTDOWN_SECONDS = 1.0
LABELS = ("run", "role", "node")

CountsByName = Mapping[str, Any]
log = logging.getLogger(__name__)

# Whether the node is well, and in one line why.
HealthCheck = Callable[[], tuple[bool, str]]


class HeartbeatCollector(Collector):
    """A collector that converts a node's counts, by name, to metrics.

    Args:
        counts: returns the newest counts; called on the server's loop.
    """

    def __init__(self, run: str, role: str, node: str, counts: Callable[[], CountsByName]) -> None:
        self._role = role
        self._values = (run, role, node)
        self._counts = counts

    def collect(self) -> Iterable[Family]:
        """Yield the metrics whose count is known."""
        counts = self._counts()
        for metric in BY_ROLE[self._role]:
            value = counts.get(metric.key)
            if value is not None:
                family = _family(metric, LABELS)
                family.add_metric(self._values, float(value))
                yield family
        named = [*((one, "peer") for one in (LINK_SENT, LINK_RECEIVED, LINK_SHARED))]
        named += [(one, "label") for one in BY_LABEL]
        for metric, name in named:
            found = {key: value for key, value in counts.items() if key.startswith(metric.key)}
            if found:
                family = _family(metric, (*LABELS, name))
                for key, value in sorted(found.items()):
                    family.add_metric((*self._values, key.removeprefix(metric.key)), float(value))
                yield family


def _family(metric: Metric, labels: tuple[str, ...]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(PREFIX + metric.name, metric.text, labels=labels)


class MetricsServer:
    """An HTTP server of `/metrics` and `/healthz`, on its caller's loop.

    Off loopback, `/metrics` needs a token (see `required_token`). `/healthz` gives everybody its status code,
    since probes have no secrets, and its reason only to requests with the token.

    Raises:
        ClusterError: it cannot listen there.
        JobFileError: other machines can reach it, and there is neither a key nor a token.
    """

    def __init__(self, collector: HeartbeatCollector, health: HealthCheck, host: str, port: int) -> None:
        self._guard = TokenGuard(required_token(host, port), log)
        remedy = "choose another port with --metrics-port, or none with --metrics-port 0"
        listening = listen(host, port, what="the metrics", remedy=remedy)
        self.port: int = listening.getsockname()[1]
        self._health = health
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        app = web.Application(middlewares=[self._guard.middleware(open_paths=(HEALTH_PATH,))])
        app.router.add_get("/metrics", make_aiohttp_handler(registry))
        app.router.add_get(HEALTH_PATH, self._serve_health)
        self._server = HttpServer(
            app, listening, log, idle_seconds=IDLE_SECONDS, shutdown_seconds=SHUTDOWN_SECONDS
        )

    async def start(self) -> None:
        """Start to answer requests, including those that already wait."""
        await self._server.start()

    async def close(self) -> None:
        """End the server."""
        await self._server.close()

    async def _serve_health(self, request: web.Request) -> web.Response:
        healthy, text = self._health()
        if not self._guard.admits(request):
            text = "well" if healthy else "not well"
        return web.Response(status=200 if healthy else 503, text=f"{text}\n")
