"""The loop of a process, whose clock stands while the process is stopped.

An interrupt ends the loop. A process may be stopped for any time: by SIGSTOP, `docker pause`, a snapshot of
its machine. What others sent meanwhile waits in its sockets. If timeouts ran on, these others would count as
silent before their messages are read.
"""

from __future__ import annotations

import asyncio
import selectors
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

# After this time a loop reads its clock, even when idle.
LOOK_SECONDS: Final = 0.1
# Longest step that counts; a longer one was a pause, or the work of one callback.
LONGEST_STEP_SECONDS: Final = 0.25

T = TypeVar("T")


class PauseAwareClock:
    """Seconds of process time that excludes pauses.

    Args:
        longest_step_seconds: more time than this between two calls of `now` counts as so much.
        real: a clock that never stops.
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
        """Return the seconds so far; what counts as a pause depends on how often this is called."""
        real = self._real()
        self._now += min(real - self._looked_at, self._longest_step)
        self._looked_at = real
        return self._now


class PauseAwareLoop(asyncio.SelectorEventLoop):
    """Event loop with a clock that excludes pauses for its timers and timeouts.

    Args:
        real: a clock that never stops.
    """

    def __init__(
        self, selector: selectors.BaseSelector | None = None, real: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = PauseAwareClock(real=real)
        super().__init__(selector)
        self.call_later(LOOK_SECONDS, self._tick)

    def time(self) -> float:
        """Return the seconds of a clock that excludes pauses; on the loop's thread."""
        return self._clock.now()

    def close(self) -> None:
        """End the tasks that are left, and close the loop.

        A round that failed leaves some, and other threads begin some after a runner has cancelled all.
        """
        if not self.is_closed() and (left := asyncio.all_tasks(self)):
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        super().close()

    def _tick(self) -> None:
        self.call_later(LOOK_SECONDS, self._tick)


def run_pause_aware(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, on a `PauseAwareLoop`."""
    with asyncio.Runner(loop_factory=PauseAwareLoop) as runner:
        return runner.run(main)


def run_interruptible(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new `PauseAwareLoop`; signals cancel it.

    An interrupt that comes before the coroutine's first step is raised in that step. Earlier, it would leave
    a coroutine that was never awaited, and the command would end with a warning about it. The coroutine may
    install handlers of its own on the loop. Afterwards the previous handlers are restored.

    Any thread may call. Outside the main thread Python handles no signals, so no handler is changed. Nor is a
    handler that does not raise KeyboardInterrupt.

    Raises KeyboardInterrupt if an interrupt cancelled it, and the coroutine's exceptions.
    """
    if threading.current_thread() is not threading.main_thread():
        return run_pause_aware(main())
    task: asyncio.Task[Any] | None = None
    interrupts = 0

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if task is None:
            return
        if interrupts > 1:
            raise KeyboardInterrupt
        task.cancel()
        # The loop may be waiting for a socket.
        task.get_loop().call_soon_threadsafe(lambda: None)

    async def first_step() -> T:
        nonlocal task
        task = asyncio.current_task()
        if interrupts:
            raise KeyboardInterrupt
        return await main()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in handlers.items():
            if handler is signal.default_int_handler:
                signal.signal(number, interrupt)
        return run_pause_aware(first_step())
    except asyncio.CancelledError:
        if not interrupts:
            raise
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            # None is a handler that was not set from Python, and cannot be restored.
            if handler is not None:
                signal.signal(number, handler)
