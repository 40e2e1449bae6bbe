"""The writer thread of the ledger's file: a slow disk delays no heartbeat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ....pipeline.errors import ResourceError
from .store import LedgerStore

T = TypeVar("T")

log = logging.getLogger(__name__)


class LedgerWriter:
    """Run work on a `LedgerStore`, one at a time, in the order of submission.

    Belongs to the coordinator's loop. A caller that promises a write awaits it first.
    """

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def run(self, work: Callable[[LedgerStore], T]) -> T:
        """Return what `work` returns; raises ResourceError if the file cannot be written.

        The work is submitted before this first waits, and is done even if the caller is cancelled.
        """
        # A cancelled future would take its work out of the queue, and the file would miss what memory has.
        return await asyncio.shield(self.submit(work))

    def submit(self, work: Callable[[LedgerStore], T]) -> asyncio.Future[T]:
        """Have work done after what was submitted before.

        The future has what `work` returns; it must not be cancelled.
        """
        return asyncio.wrap_future(self._thread.submit(work, self._store))

    def event(self, seconds: float, node: str, what: str) -> None:
        """Store an event without waiting.

        One that cannot be stored is logged; the report has it, too.
        """

        def work() -> None:
            try:
                self._store.event(seconds, node, what)
            except ResourceError as error:
                log.error("an event could not be stored in the ledger's file: %s", error)

        self._thread.submit(work)

    async def flush(self) -> None:
        """Wait until everything that was submitted is done."""
        await self.run(lambda _: None)

    async def close(self) -> None:
        """Do what was submitted, then close the file and end the thread."""
        try:
            await self.run(LedgerStore.close)
        finally:
            self._thread.shutdown()
