"""Journal of a job's state changes, in the ledger's file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgpack

from ...pipeline.wire.control.base import Reply, Request
from ...pipeline.wire.field_checks import values_of
from .ledger.records import JournalEntry
from .ledger.store import LedgerStore, LedgerWriter
from .state.changes import RECORDS, REQUESTS, Write
from .state.job import JobState


class JobJournal:
    """Apply changes to the job's state and record them in order.

    Belongs to the coordinator's loop.

    Args:
        failed: called with an error of writing.
    """

    def __init__(self, state: JobState, store: LedgerWriter, failed: Callable[[BaseException], None]) -> None:
        self._state = state
        self._store = store
        self._failed = failed

    def apply(self, token: str, number: int, request: Request[Any]) -> tuple[Reply, asyncio.Future[None]]:
        """Apply a request; return the reply and a future of its recording.

        `number` is the request's number; the node may send it again to another coordinator. Raises
        ShadowSyncError or ValueError for an impossible request.
        """
        effect = REQUESTS[type(request)](self._state, token, request)
        if not effect.lasts:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return effect.reply, done
        return effect.reply, self._record(request, token, number, effect.write)

    def decided(self, change: Any) -> asyncio.Future[None]:
        """Record a decision that was just applied; return a future of its recording."""
        return self._record(change, "", 0, None)

    def _record(self, change: Any, token: str, number: int, write: Write | None) -> asyncio.Future[None]:
        body = msgpack.packb(values_of(change))
        entry = JournalEntry(self._state.seconds(), token, number, RECORDS.name_of(change), body)

        def work(store: LedgerStore) -> None:
            store.commit(*([write] if write is not None else []), lambda store: store.journal(entry))

        return self._store.submit(work, self._failed)
