"""Waits for changes of a job's state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JobWaits:
    """Waits that a stop of the job ends, on the coordinator's loop."""

    def __init__(self) -> None:
        self._stopped = asyncio.Event()
        self._changed = asyncio.Condition()

    async def wait_for(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait for a condition, a stop, or the timeout; return whether the condition holds."""

        async def wait() -> None:
            async with self._changed:
                await self._changed.wait_for(condition)

        waiters = {asyncio.ensure_future(wait()), asyncio.ensure_future(self._stopped.wait())}
        try:
            await asyncio.wait(waiters, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        return condition()

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the coroutine's result; None if the job was stopped, which cancels it."""
        task = asyncio.ensure_future(work)
        stopped: asyncio.Future[Any] = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return None if task.cancelled() else task.result()

    async def notify(self) -> None:
        """Wake whoever waits for a change of members or ledger."""
        async with self._changed:
            self._changed.notify_all()
