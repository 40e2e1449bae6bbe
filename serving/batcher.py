"""Requests that arrive while others are scored are scored together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from .rows import BadRequest, RowColumns
from .scores import Scores, ServedModel

IDLE_PASSES: Final = 32
"""Passes of the loop without a new request after which no more are waited for: some 0.1 ms. From a socket
that can be read to a request that waits it takes three."""
MOST_GATHERED: Final = 64
"""With so many waiting requests no more are waited for: arriving ones must not put off the scoring."""


@dataclass(slots=True)
class _Waiting:
    rows: RowColumns
    result: asyncio.Future[Scores] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Batcher:
    """Score requests on a thread of its own, those that wait together.

    A request that comes alone is scored at once. After several, the next ones are gathered first: clients
    that were just answered send their next request within a few passes of the loop, and what is scored
    together costs less. Belongs to one asyncio loop.

    Args:
        current: returns the model to score with, on the thread that scores; one model scores all rows of a
            request.
        most_rows: rows that are scored at once, unless one request has more.
    """

    def __init__(self, current: Callable[[], ServedModel], most_rows: int) -> None:
        self._current = current
        self._most_rows = most_rows
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="score")
        self._task: asyncio.Task[None] | None = None

    async def score(self, rows: RowColumns) -> Scores:
        """Await the scores of a request's rows; raises BadRequest."""
        waiting = _Waiting(rows)
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return await waiting.result

    async def between(self, work: Callable[[], None]) -> None:
        """Do some work on the thread that scores, while it scores nothing.

        Raises what `work` raises. Requests that are scored before have seen nothing of it, later ones all.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Finish what waits, and end the thread."""
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def _run(self) -> None:
        while self._waiting:
            batch = self._next()
            await self._answer(batch)
            if len(batch) + len(self._waiting) > 1:
                await self._gather()

    async def _answer(self, batch: list[_Waiting]) -> None:
        rows = [waiting.rows for waiting in batch]
        done = asyncio.get_running_loop().run_in_executor(self._thread, self._score, rows)
        await asyncio.wait({done})
        fault = done.exception()
        # A fault of the server is that of each request, and the next ones are scored.
        results = [fault] * len(batch) if fault is not None else done.result()
        for waiting, scores in zip(batch, results, strict=True):
            if waiting.result.done():
                # Its client has gone.
                continue
            if isinstance(scores, BaseException):
                waiting.result.set_exception(scores)
            else:
                waiting.result.set_result(scores)

    async def _gather(self) -> None:
        """Wait until no new request comes, or many wait."""
        idle, known = 0, len(self._waiting)
        while idle < IDLE_PASSES and known < MOST_GATHERED:
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == known else 0
            known = len(self._waiting)

    def _score(self, rows: list[RowColumns]) -> Sequence[Scores | BadRequest]:
        # Asked on this thread, because `between` may have put another model there.
        return self._current().score(rows)

    def _next(self) -> list[_Waiting]:
        batch = [self._waiting.popleft()]
        count = batch[0].rows.count
        while self._waiting and count + self._waiting[0].rows.count <= self._most_rows:
            batch.append(self._waiting.popleft())
            count += batch[-1].rows.count
        return batch
