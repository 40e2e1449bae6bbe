"""Requests that arrive while others are answered are answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from .rows import BadRequest

IDLE_PASSES: Final = 32
"""Passes of the loop without a new request after which no more are waited for: some 0.1 ms. From a socket
that can be read to a request that waits it takes three."""
MOST_GATHERED: Final = 64
"""With so many waiting requests no more are waited for: arriving ones must not put off the answers."""


class Counted(Protocol):
    """A request with rows."""

    @property
    def count(self) -> int:
        """How many rows it has."""


RequestT = TypeVar("RequestT", bound=Counted)
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Waiting(Generic[RequestT, ResultT]):
    request: RequestT
    result: asyncio.Future[ResultT] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher(Generic[RequestT, ResultT]):
    """Answer requests on a thread, those that wait together.

    A request that comes alone is answered at once. After several, the next ones are gathered first: clients
    that were just answered send their next request within a few passes of the loop, and what is answered
    together costs less. Belongs to one asyncio loop.

    Args:
        answer: returns each request's result or fault, on the thread; it asks there which model to use, since
            another one may have been put there between two calls. One model answers a request.
        most_rows: rows that are answered at once, unless one request has more.
        thread: an executor of one thread, which others may use as well, and the caller ends.
    """

    def __init__(
        self,
        answer: Callable[[list[RequestT]], Sequence[ResultT | BadRequest]],
        most_rows: int,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._answers = answer
        self._most_rows = most_rows
        self._thread = thread
        self._waiting: deque[_Waiting[RequestT, ResultT]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def answer(self, request: RequestT) -> ResultT:
        """Await the result of a request; raises BadRequest."""
        waiting = _Waiting[RequestT, ResultT](request)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return await waiting.result

    async def close(self) -> None:
        """Finish what waits."""
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        while self._waiting:
            batch = self._next()
            await self._answer(batch)
            if len(batch) + len(self._waiting) > 1:
                await self._gather()

    async def _answer(self, batch: list[_Waiting[RequestT, ResultT]]) -> None:
        requests = [waiting.request for waiting in batch]
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._answers, requests)
        await asyncio.wait({done})
        fault = done.exception()
        # A fault of the server is that of each request, and the next ones are answered.
        results = [fault] * len(batch) if fault is not None else done.result()
        for waiting, result in zip(batch, results, strict=True):
            if waiting.result.done():
                # Its client has gone.
                continue
            if isinstance(result, BaseException):
                waiting.result.set_exception(result)
            else:
                waiting.result.set_result(result)

    async def _gather(self) -> None:
        """Wait until no new request comes, or many wait."""
        idle, known = 0, len(self._waiting)
        while idle < IDLE_PASSES and known < MOST_GATHERED:
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == known else 0
            known = len(self._waiting)

    def _next(self) -> list[_Waiting[RequestT, ResultT]]:
        batch = [self._waiting.popleft()]
        count = batch[0].request.count
        while self._waiting and count + self._waiting[0].request.count <= self._most_rows:
            batch.append(self._waiting.popleft())
            count += batch[-1].request.count
        return batch
