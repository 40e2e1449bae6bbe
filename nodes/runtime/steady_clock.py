"""A clock that stands still while its process does, for the timeouts of nodes.

A process may be stopped for any time: by SIGSTOP, `docker pause`, a snapshot of its machine. What others sent
meanwhile waits in its sockets, so a timeout that ran on would call them silent before they are heard.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

# A loop looks at its clock so often, also where it has nothing to do.
LOOK_SECONDS: Final = 0.1
# What lies between two looks counts for so much at most: the rest was a pause, or the work of one callback.
LONGEST_STEP_SECONDS: Final = 0.25

T = TypeVar("T")


class SteadyClock:
    """Seconds of process time that excludes pauses.

    Args:
        longest_step_seconds: what the time between two looks counts for at most.
        real: a clock that goes on whatever happens.
    """

    def __init__(
        self,
        longest_step_seconds: float = LONGEST_STEP_SECONDS,
        real: Callable[[], float] = time.monotonic,
    ) -> None:
        self._longest_step = longest_step_seconds
        self._real = real
        self._looked_at = self._now = real()

    def now(self) -> float:
        """Look, and return the seconds."""
        real = self._real()
        self._now += min(real - self._looked_at, self._longest_step)
        self._looked_at = real
        return self._now


class SteadyLoop(asyncio.SelectorEventLoop):
    """Event loop with a steady clock for its timers and timeouts.

    Args:
        real: a clock that goes on whatever happens.
    """

    def __init__(
        self, selector: selectors.BaseSelector | None = None, real: Callable[[], float] = time.monotonic
    ) -> None:
        self._steady = SteadyClock(real=real)
        super().__init__(selector)
        self.call_later(LOOK_SECONDS, self._look)

    def time(self) -> float:
        """Return the seconds of a steady clock; on the loop's thread."""
        return self._steady.now()

    def _look(self) -> None:
        self.call_later(LOOK_SECONDS, self._look)


def run_steadily(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on a `SteadyLoop`."""
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        return runner.run(main)
