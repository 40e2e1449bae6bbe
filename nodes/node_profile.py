"""What a node does for a profile: measures when it is asked to, and traces for a moment."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..pipeline.wire.segment import running_kernel
from .role import Role
from .sampler import Sampler, thread_figures
from .tracing import TRACER

LONGEST_TRACE_SECONDS: Final = 10.0


class NodeProfile:
    """Belongs to a node's control thread. Nothing runs before the first `measure`."""

    def __init__(self, role: Role, metrics: Callable[[], dict[str, Any]]) -> None:
        self._role = role
        self._metrics = metrics
        self._sampler: Sampler | None = None

    def measure(self, *, last: bool) -> dict[str, Any]:
        """All counts as they are now, with this machine's clock. The first call starts what samples this
        process, and one with `last` ends it."""
        if self._sampler is None:
            self._sampler = Sampler()
            self._sampler.start()
        answer = measures(self._metrics(), self._sampler)
        answer["threads"] |= self._role.process_threads()
        if last:
            self.close()
        return answer

    async def trace(self, seconds: float) -> dict[str, Any]:
        """What each thread did in the next `seconds`, at most LONGEST_TRACE_SECONDS; see `Tracer.stop`.
        `processes` has that of the node's further processes."""
        seconds = min(seconds, LONGEST_TRACE_SECONDS)
        further = asyncio.ensure_future(self._role.trace_processes(seconds))
        TRACER.start()
        try:
            await asyncio.sleep(seconds)
        finally:
            traced = TRACER.stop()
        return traced | {"pid": os.getpid(), "processes": await further}

    def close(self) -> None:
        """Ends what samples the process."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None


def measures(counts: Mapping[str, Any], sampler: Sampler) -> dict[str, Any]:
    """A process's answer to a question of a profile: its counts, its threads and what `sampler` saw, as they
    are now, with this machine's clock."""
    return {
        "clock": time.monotonic(),
        "machine": running_kernel(),
        "cores": cores(),
        "counts": counts,
        "threads": thread_figures(),
        "sampled": sampler.figures(),
    }


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
