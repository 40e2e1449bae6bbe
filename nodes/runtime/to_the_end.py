"""Work on a thread that has to end before anything else is done, also when nobody waits for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `work` gives, run on a thread; its exception is raised.

    A thread cannot be cancelled. Where this coroutine is, it waits for the end of the work all the same, and
    raises CancelledError then, from what the work raised: so whoever cleans up after it never runs beside it.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()
