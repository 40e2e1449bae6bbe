"""A node's side of a performance profile: measurements and a trace."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ...pipeline.wire.segment import running_kernel
from .role import Role
from .sampler import Sampler, thread_figures
from .tracing import TRACER

LONGEST_TRACE_SECONDS: Final = 10.0


class NodeProfile:
    """Measures and traces a node, on its control thread; idle before `measure`."""

    def __init__(self, role: Role, metrics: Callable[[], dict[str, Any]]) -> None:
        self._role = role
        self._metrics = metrics
        self._sampler: Sampler | None = None

    def measure(self, *, last: bool) -> dict[str, Any]:
        """Read all counts, with this machine's clock.

        The first call starts the sampler of this process, and one with `last` stops it.
        """
        if self._sampler is None:
            self._sampler = Sampler()
            self._sampler.start()
        answer = measures(self._metrics(), self._sampler)
        answer["threads"] |= self._role.process_threads()
        if last:
            self.close()
        return answer

    async def trace(self, seconds: float) -> dict[str, Any]:
        """Trace all threads for `seconds`, at most LONGEST_TRACE_SECONDS; see `Tracer.stop`.

        `processes` has the traces of the node's other processes.
        """
        seconds = min(seconds, LONGEST_TRACE_SECONDS)
        further = asyncio.ensure_future(self._role.trace_processes(seconds))
        TRACER.start()
        try:
            await asyncio.sleep(seconds)
        finally:
            traced = TRACER.stop()
        return traced | {"pid": os.getpid(), "processes": await further}

    def close(self) -> None:
        """Stop the sampler."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


def measures(counts: Mapping[str, Any], sampler: Sampler) -> dict[str, Any]:
    """Measure a process: its counts, threads and sampler, with this machine's clock."""
    return {
        "clock": time.monotonic(),
        "machine": running_kernel(),
        "cores": cores(),
        "counts": counts,
        "threads": thread_figures(),
        "sampled": sampler.figures(),
    }


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
