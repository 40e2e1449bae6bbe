"""Figures of a process: CPU, memory, threads, and traces of them."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ...pipeline.jobfile.extras import missing_modules
from ...pipeline.wire.control.profile import MeasureReply, TraceReply
from ...pipeline.wire.field_checks import Counts
from ...pipeline.wire.segment import running_kernel
from .health import Health
from .settings import NodeSettings, metrics_address
from .tracing import TRACER, Sampler, thread_figures

if TYPE_CHECKING:
    from ...watch.exporters.metrics_server import MetricsServer

LONGEST_TRACE_SECONDS: Final = 10.0


class NodeProfile:
    """Measure and trace a node, on its control thread; idle before `measure`."""

    def __init__(self, metrics: Callable[[], dict[str, Any]]) -> None:
        self._metrics = metrics
        self._sampler: Sampler | None = None

    def measure(self, *, last: bool) -> MeasureReply:
        """Return all current counts, with this machine's clock.

        The first call starts the sampler of this process; a call with `last` ends it.
        """
        if self._sampler is None:
            self._sampler = Sampler()
            self._sampler.start()
        measured = measure_process(self._metrics(), self._sampler)
        if last:
            self.close()
        return measured

    async def trace(self, seconds: float) -> TraceReply:
        """Return what each thread does in the next `seconds`.

        The limit is LONGEST_TRACE_SECONDS; see `Tracer.stop`.
        """
        seconds = min(seconds, LONGEST_TRACE_SECONDS)
        TRACER.start()
        try:
            await asyncio.sleep(seconds)
        finally:
            traced = TRACER.stop()
        marks = tuple((name, thread, began, length) for name, thread, began, length in traced["marks"])
        return TraceReply(tuple(traced["names"]), tuple(traced["threads"]), marks)

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


def measure_process(counts: Counts, sampler: Sampler) -> MeasureReply:
    """Return the counts of a process, its threads and the sampler.

    The reply also has this machine's clock.
    """
    return MeasureReply(
        clock=time.monotonic(),
        machine=running_kernel(),
        cores=cores(),
        counts=counts,
        threads=thread_figures(),
        sampled=sampler.figures(),
    )


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_metrics() -> dict[str, Any]:
    """Return CPU seconds and memory of this process, all threads."""
    return {"cpu_seconds": time.process_time()} | _memory_bytes()


def _memory_bytes() -> dict[str, int]:
    """Return peak memory and, where the system reports it, resident memory, in bytes."""
    if sys.platform == "linux":
        # `ru_maxrss` survives exec: a small process that a large one started would show the large one's.
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        names = (("peak_memory_bytes", "VmHWM"), ("memory_bytes", "VmRSS"))
        return {name: int(fields[key].split()[0]) * 1024 for name, key in names}
    unit = 1 if sys.platform == "darwin" else 1024
    return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


async def serve_metrics(
    settings: NodeSettings,
    role: str,
    name: str,
    run: str,
    counts: Callable[[], dict[str, Any]],
    health: Callable[[], Health],
) -> MetricsServer | None:
    """Serve a node's metrics, if they are on and can be served."""
    address = metrics_address(settings)
    if address is None or missing_modules("metrics"):
        return None
    from ...pipeline.wire.http.hosts import names_of
    from ...watch.exporters.metrics_server import HeartbeatCollector, MetricsServer

    def line() -> tuple[bool, str]:
        state = health()
        return state.healthy, state.text

    names = names_of(address[0], settings.advertise)
    server = MetricsServer(HeartbeatCollector(run, role, name, counts), line, *address, names)
    await asyncio.to_thread(server.start)
    return server
