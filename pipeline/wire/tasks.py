"""Background tasks, races of awaitables, and work for another thread's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

T = TypeVar("T")

StartTask: TypeAlias = Callable[[Coroutine[Any, Any, object]], None]


class TaskSet:
    """Tasks that an object starts during its life and cancels at its end.

    All tasks are on one loop. If tasks belong to a block, use `background` instead; there one failure also
    cancels the others.

    Args:
        failed: called with the exception that ends a task, unless the task was cancelled.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a coroutine as a task on the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in tuple(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait for their end."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)


@asynccontextmanager
async def background(*works: Coroutine[Any, Any, object]) -> AsyncIterator[StartTask]:
    """Run coroutines in the background of a block.

    The block gets a function that starts more coroutines. At the end of the block all are cancelled and
    awaited. If a coroutine fails, the block is cancelled. The error of the coroutine, or of the block, is
    raised as itself, not in an ExceptionGroup.
    """
    failed: BaseException
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]

            def start(work: Coroutine[Any, Any, object]) -> None:
                tasks.append(group.create_task(work))

            yield start
            for task in tasks:
                task.cancel()
        return
    except BaseExceptionGroup as errors:
        failed = errors.exceptions[0]
    raise failed


def post(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> None:
    """Have `work` run on a loop; any thread may call.

    If the loop has ended, nothing happens.
    """
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(work)


async def on_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Return what `work` returns, on a thread for which no end waits.

    `asyncio.to_thread` is joined when the loop ends, so a call that waits for another host would delay the
    end of the process. If this is cancelled, the thread goes on, and its result is dropped. Raises what
    `work` raises.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: Exception | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(cast(T, result))

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits gets it
            post(loop, partial(finish, None, error))
        else:
            post(loop, partial(finish, result, None))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def race(work: Awaitable[T], end: Awaitable[Any]) -> T | None:
    """Return the result of `work`, or None if `end` completes first.

    In that case `work` is cancelled. Raises what `work` raises. On return `work` has ended. An `end` that has
    not completed is cancelled if it is a coroutine, and left alone if it is a future.
    """
    task, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ours = [future for future in (task, ending) if future is not end]
        for future in ours:
            future.cancel()
        await asyncio.gather(*ours, return_exceptions=True)
    # A gather that is cancelled has that as its exception, and is not `cancelled`.
    if task.cancelled() or isinstance(task.exception(), asyncio.CancelledError):
        return None
    return task.result()
