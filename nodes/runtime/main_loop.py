"""Main loop of a command, with signal handling."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from .steady_clock import run_steadily

T = TypeVar("T")


def run_interruptible(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a new `SteadyLoop`; signals cancel it.

    An interrupt that comes before the coroutine's first step waits for it: raised there, it would leave a
    coroutine that was never awaited, and a warning about it as the command's last words. The coroutine may
    install handlers of its own on the loop. Afterwards the handlers are those from before.

    Any thread may call; on another one than the main thread Python handles no signals, and nothing changes.
    Neither does a handler that does not raise KeyboardInterrupt.

    Raises KeyboardInterrupt where an interrupt has cancelled it, and what the coroutine raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return run_steadily(main())
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
        return run_steadily(first_step())
    except asyncio.CancelledError:
        if not interrupts:
            raise
        raise KeyboardInterrupt from None
    finally:
        for number, handler in handlers.items():
            # None is one that was not set from Python, and cannot be put back.
            if handler is not None:
                signal.signal(number, handler)
