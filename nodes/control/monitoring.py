"""Monitoring of a job or a hub: web page, event files and metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...pipeline.config.sections import parse_page_address
from ...pipeline.jobfile.extras import missing_modules
from ...pipeline.text.format import duration
from ...watch.mirror import Mirror
from ...watch.status import Cursor, Status
from ..runtime.settings import metrics_address
from .server import ControlServer

if TYPE_CHECKING:
    from ...pipeline.report.document import Report
    from ...watch.exporters.metrics_server import MetricsServer
    from ...watch.exporters.scalars import Scalars
    from ...watch.page.server import PageServer

PERIOD_SECONDS = 1.0

log = logging.getLogger(__name__)


class Monitoring:
    """Publish one status a second to page, event files and metrics.

    Belongs to the server's loop. Each part is imported only if it is configured.

    Args:
        make_status: builds the status, with what is new since a cursor of the curves and one of the
            incidents.
        role: role and name of the server's process in the metrics.
    """

    def __init__(
        self,
        server: ControlServer,
        make_status: Callable[[Cursor | None, int], Status],
        role: str = "coordinator",
    ) -> None:
        self._server = server
        self._make_status = make_status
        self._role = role
        self._state = server.state
        self._mirror = Mirror()
        self._page: PageServer | None = None
        self._scalars: list[Scalars] = []
        self._metrics: MetricsServer | None = None
        self._counts: dict[str, Any] = {}
        # When the server's health was looked at, and what it was.
        self._seen = (time.monotonic(), True, "")
        self._failed = False

    def open(self) -> None:
        """Start what the job configures.

        Raises ClusterError if the port is not available, ResourceError if the folder cannot be written.
        """
        state, settings = self._state, self._server.settings
        watch = state.job.watch
        if watch.web and not missing_modules("web"):
            from ...pipeline.report.run_folders.runs_table import rows_beside
            from ...pipeline.wire.http.hosts import names_of
            from ...watch.page.server import PageServer

            host, port = parse_page_address(watch.web)
            list_runs = partial(rows_beside, state.folder)
            self._page = PageServer(host, port, names_of(host, settings.advertise), list_runs)
            self._page.start()
            state.show_page(self._page.url)
        if watch.tensorboard or watch.mlflow or watch.wandb:
            from ...watch.exporters.trackers import open_scalars

            self._scalars = open_scalars(state.job, state.folder)
        address = metrics_address(settings)
        if address is not None and not missing_modules("metrics"):
            from ...pipeline.wire.http.hosts import names_of
            from ...watch.exporters.metrics_server import HeartbeatCollector, MetricsServer

            collector = HeartbeatCollector(state.folder.name, self._role, self._role, self._counts_now)
            if (page := self._page) is not None:
                collector.add_connections(lambda: page.counts)
            names = names_of(address[0], settings.advertise)
            self._look_at_health()
            self._metrics = MetricsServer(collector, self._health, *address, names)
            self._metrics.start()

    async def run(self) -> None:
        """Publish until cancelled; a failure is logged, and training continues."""
        while self._page is not None or self._scalars or self._metrics is not None:
            self._look_at_health()
            self.publish()
            await asyncio.sleep(PERIOD_SECONDS)

    def publish(self, *, ended: bool = False) -> None:
        """Publish the status as it is now, if it can be made."""
        try:
            self._publish(ended)
        except Exception as error:
            # Any error: the job matters more than its display.
            if not self._failed:
                self._failed = True
                log.exception("the status of the job could not be published")
                self._server.event(
                    self._role,
                    f"the status of the job could not be published ({type(error).__name__}: {error})",
                )

    def _publish(self, ended: bool) -> None:
        status = self._make_status(*self._mirror.cursors())
        if ended:
            idle = [edge.model_copy(update={"up": 0.0, "down": 0.0}) for edge in status.edges]
            last = {"ended": True, "outcome": self._server.outcome, "edges": idle}
            status = status.model_copy(update=last)
        self._mirror.take(status)
        self._counts = flat_figures(status)
        for scalars in self._scalars:
            scalars.publish(status)
        if self._page is not None:
            self._page.publish(status)

    def evaluated(self, report: Report | None) -> None:
        """Publish the quality on the held-out files, if there is one."""
        if report is not None and (scores := report.headline) is not None:
            figures = {"ne/eval": scores.ne, "auc/eval": scores.auc, "logloss/eval": scores.logloss}
            measured = {tag: value for tag, value in figures.items() if value is not None}
            for scalars in self._scalars:
                scalars.add(report.restored_examples + report.examples.distinct, measured)

    async def close(self) -> None:
        """Publish the last status, and end."""
        if self._page is not None or self._scalars:
            self.publish(ended=True)
        for scalars in self._scalars:
            await asyncio.to_thread(scalars.close)
        if self._page is not None:
            await asyncio.to_thread(self._page.close)
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        self._page = self._metrics = None
        self._scalars = []

    def _look_at_health(self) -> None:
        health = self._server.health()
        self._seen = (time.monotonic(), health.healthy, health.text)

    def _health(self) -> tuple[bool, str]:
        """Return what was seen last; on the thread of the metrics."""
        since, healthy, text = self._seen
        silence_seconds = time.monotonic() - since
        if silence_seconds > self._state.job.run.node_timeout_seconds:
            return False, f"{self._role}: its loop has been busy or stopped for {duration(silence_seconds)}"
        return healthy, text

    def _counts_now(self) -> dict[str, Any]:
        return self._counts


def flat_figures(status: Status) -> dict[str, Any]:
    """Return the figures of the whole job by name, with this process's own."""
    me = status.nodes[0]
    living = sum(node.alive for node in status.nodes)
    flat = {
        "cpu_seconds": me.cpu_seconds,
        "memory_bytes": me.memory_bytes,
        "peak_memory_bytes": me.peak_memory_bytes,
        "refused_messages": me.refused_messages,
        "refused_connections": me.refused_connections,
        "seconds": status.seconds,
        "ended": int(status.ended),
        "total": status.progress.total,
        "validation": status.validation[-1].value if status.validation else None,
        "divergence": status.sync.divergence,
        "gap_mean": status.sync.gap_mean,
        "living": living,
        "dead": len(status.nodes) - living,
    }
    quality = status.quality.model_dump(exclude={"labels"})
    return status.ledger.model_dump() | quality | flat | _by_label(status) | _of_loops(status)


def _by_label(status: Status) -> dict[str, float]:
    """Return the figures of each of several labels, as "FIGURE/LABEL"."""
    last = status.validation[-1] if status.validation else None
    figures: dict[str, float | None] = {}
    for place, (name, label) in enumerate(status.quality.labels.items()):
        figures |= {f"ne/{name}": label.ne, f"ne_recent/{name}": label.ne_recent}
        if last is not None:
            further = last.metrics.get(f"{status.validation_metric}/{name}")
            figures[f"validation/{name}"] = further if place else last.value
    return {key: value for key, value in figures.items() if value is not None}


def _of_loops(status: Status) -> dict[str, float]:
    """Return the figures of attached loops, and of the data sets that they share."""
    if (loops := status.loops) is None:
        return {}
    figures: dict[str, float | None] = {
        "steps": loops.steps,
        "synchronized_steps": loops.synchronized,
        "lost_steps": loops.lost,
        "rounds": status.sync.rounds,
    }
    for node in status.nodes:
        if node.role == "loop":
            figures |= {
                f"loop/steps/{node.name}": node.steps,
                f"loop/synchronized/{node.name}": node.synchronized,
                f"loop/rounds/{node.name}": node.rounds,
                f"loop/gap_open/{node.name}": node.gap_open,
                f"loop/sent/{node.name}": node.sync_sent_bytes,
                f"loop/received/{node.name}": node.sync_received_bytes,
            }
    for stream in loops.samples:
        sums = stream.model_dump(exclude={"stream"})
        figures |= {f"samples/{name}/{stream.stream}": value for name, value in sums.items()}
    return {key: value for key, value in figures.items() if value is not None}
