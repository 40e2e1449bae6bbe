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
from .state.snapshot import (
    SNAPSHOT_CHANGES,
    Replies,
    changes_in,
    plain_replies,
    plain_reply,
    remember,
    snapshot_of,
)


class JobJournal:
    """Apply changes to the job's state and record them in order; write snapshots.

    Belongs to the coordinator's loop.

    Args:
        failed: called with an error of writing.
    """

    def __init__(self, state: JobState, store: LedgerWriter, failed: Callable[[BaseException], None]) -> None:
        self._state = state
        self._store = store
        self._failed = failed
        self._replies: dict[str, dict[int, list[Any]]] = {}
        # Changes since the last snapshot.
        self._unsaved = 0

    def take_over(self, replies: Replies) -> None:
        """Take over the replies of a dead coordinator, by token and number."""
        self._replies = plain_replies(replies)

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
        written = self._record(request, token, number, effect.write)
        if (plain := plain_reply(effect.reply)) is not None:
            remember(self._replies, token, number, plain)
        self._unsaved += changes_in(request)
        if self._unsaved >= SNAPSHOT_CHANGES and self._state.ledger.owed.is_idle:
            self._save()
        return effect.reply, written

    def decided(self, change: Any) -> asyncio.Future[None]:
        """Record a decision that was just applied; return a future of its recording."""
        return self._record(change, "", 0, None)

    def _save(self) -> None:
        """Write a snapshot of all changes so far."""
        # Each change is recorded as soon as it is applied, so the journal has no other.
        snapshot, self._unsaved = snapshot_of(self._state, self._replies), 0
        self._store.submit(lambda store: store.save(snapshot), self._failed)

    def _record(self, change: Any, token: str, number: int, write: Write | None) -> asyncio.Future[None]:
        body = msgpack.packb(values_of(change))
        entry = JournalEntry(self._state.seconds(), token, number, RECORDS.name_of(change), body)

        def work(store: LedgerStore) -> None:
            store.commit(*([write] if write is not None else []), lambda store: store.journal(entry))

        return self._store.submit(work, self._failed)
