"""An event loop whose time passes only when nothing is left to do."""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeSelector(selectors.DefaultSelector):
    """Selector that moves the time to the next timer instead of waiting.

    It still polls real files. What one end of a Unix socket writes, the other can read at once; over TCP it
    may still be on its way. So whatever this clock measures must be in one process, over Unix sockets.

    Attributes:
        now: seconds since the loop began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready; wait for it only if there is no timer."""
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on a virtual clock. It does not wait for threads.

    Timers of the same time run in an order that depends on the program alone, so that the same program does
    the same every time.
    """

    def __init__(self) -> None:
        self._clock = VirtualTimeSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return seconds since the loop began."""
        return self._clock.now


class ArrivalOrder:
    """Deterministic order in which waits end.

    `asyncio.sleep` promises no order among timers of the same time; messages of one connection need one.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._number = 0

    async def wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due, future = loop.time() + seconds, loop.create_future()
        self._number += 1
        heapq.heappush(self._waiting, (due, self._number, future))
        # There are as many timers as waits; each timer ends the earliest wait that is left.
        loop.call_at(due, self._end_first)
        await future

    def _end_first(self) -> None:
        _, _, future = heapq.heappop(self._waiting)
        if not future.done():
            future.set_result(None)


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
