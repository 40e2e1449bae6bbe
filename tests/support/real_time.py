"""Running a test's coroutine in real time, but for a bounded one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

ENOUGH_SECONDS = 60.0


def run_in_real_time(work: Awaitable[T]) -> T:
    """Runs a test's coroutine for a bounded time: for what threads answer."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, ENOUGH_SECONDS)

    return asyncio.run(bounded())
