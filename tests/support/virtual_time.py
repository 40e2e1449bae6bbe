"""Running a test's coroutine: in time that passes only while nothing else is left to do, or in real time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

ENOUGH_SECONDS = 60.0


class VirtualTimeSelector(selectors.DefaultSelector):
    """Looks at the real files, and instead of waiting for them moves the time on to the next timer.

    What one end of a Unix socket writes, the other can read at once; over TCP it may still be on its way, so
    what is measured by this clock has to be in one process, over Unix sockets.

    Attributes:
        now: seconds since the loop began.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready; without a timer it waits for that."""
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with such a selector. No threads: it would not wait for them."""

    def __init__(self) -> None:
        self._clock = VirtualTimeSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._clock.now


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Runs a test's coroutine; `asyncio.sleep` takes no time, and the loop's time passes as if it did."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def run_in_real_time(work: Awaitable[T]) -> T:
    """Runs a test's coroutine for a bounded time: for what threads answer."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, ENOUGH_SECONDS)

    return asyncio.run(bounded())
