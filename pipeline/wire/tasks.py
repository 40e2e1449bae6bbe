"""Background tasks of an object's life, and the race of a coroutine against what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class TaskSet:
    """Tasks that come and go while their owner lives, and end with it; all on one loop.

    `asyncio.TaskGroup` is for a block of code: it ends with its tasks, and one that fails ends the others.

    Args:
        failed: called with the exception that ends a task, unless the task was cancelled.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs a coroutine on the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancels all tasks, and waits for none of them."""
        for task in tuple(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancels all tasks and waits for their end."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


async def race(work: Awaitable[T], end: Awaitable[Any]) -> T | None:
    """The work's result; None if `end` came first, which cancels the work.

    Raises what the work raises. Where this returns, the work has ended; a coroutine given as `end` was then
    cancelled, and a future was left alone.
    """
    task, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ours = [one for one in (task, ending) if one is not end]
        for one in ours:
            one.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
    return None if task.cancelled() else task.result()
