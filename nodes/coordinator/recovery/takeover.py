"""Takeover of a job from a dead coordinator's ledger."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack

from ....pipeline.errors import ClusterError
from ....pipeline.text.wall_clock import unix_seconds
from ....pipeline.wire.control.base import Reply
from ....pipeline.wire.control.messages import UNKNOWN_DELIVERY, LeftOutBatch, TrainedBatch, TrainedBatches
from ....pipeline.wire.rpc.channel import REMEMBERED_REPLIES
from ....pipeline.wire.segment import running_kernel
from ..ledger.records import JournalEntry, SnapshotDamagedError
from ..ledger.store import LedgerStore
from ..state.changes import DECISIONS, RECORDS, REQUESTS, JobBegan, JobPlanned
from ..state.job import JobState
from ..state.snapshot import SNAPSHOT_CHANGES, ReadSnapshot, changes_in, plain_replies, remember, snapshot_of

log = logging.getLogger(__name__)


class TakeoverClock:
    """Clock for the replay of a journal."""

    def __init__(self) -> None:
        self._frozen_at = 0.0
        self._zero: float | None = None

    def __call__(self) -> float:
        """Return the seconds since the job's start."""
        return self._frozen_at if self._zero is None else time.monotonic() - self._zero

    def freeze_at(self, seconds: float) -> None:
        """Freeze the clock at a change."""
        self._frozen_at = seconds

    def resume(self, seconds: float) -> None:
        """Resume the clock, not before the last change."""
        self._zero = time.monotonic() - max(seconds, self._frozen_at)


@dataclass
class Takeover:
    """The recorded history of a dead coordinator.

    Attributes:
        planned: what the job is of; None in a journal of before 2026-12-01, and if its writer died before
            it wrote that.
        replies: replies that it gave to living nodes, or had decided on, by token and number of the request.
        replayed: number of changes that were read from the journal.
    """

    folder: Path
    began: JobBegan
    planned: JobPlanned | None
    store: LedgerStore
    clock: TakeoverClock = field(default_factory=TakeoverClock)
    replies: dict[str, dict[int, Reply]] = field(default_factory=dict)
    replayed: int = 0

    @classmethod
    def open(cls, folder: Path, name: str) -> Takeover:
        """Open the ledger's file, `name` in a run's folder.

        Raises ClusterError if nothing can be taken over.
        """
        path = folder / name
        if not path.exists():
            raise _not_possible(folder, f"it has no {name}")
        store = LedgerStore(path, new=False)
        try:
            first = [_change_of(entry) for entry in islice(store.entries(), 2)]
            if not first or not isinstance(first[0], JobBegan):
                raise _not_possible(folder, f"its {name} has no journal")
            planned = next((change for change in first if isinstance(change, JobPlanned)), None)
            return cls(folder, first[0], planned, store)
        except BaseException:
            store.close()
            raise

    def replay(self, state: JobState) -> None:
        """Give a new state, whose clock must be `self.clock`, what the dead coordinator knew.

        That is its last snapshot and the changes since, or the whole journal without a snapshot. If that were
        many changes, there is a new snapshot then.
        """
        last, snapshot = self._snapshot()
        if snapshot is not None:
            self._apply(state, self.store.entries_beside_snapshot(last))
            snapshot.restore(state)
            self.clock.freeze_at(snapshot.job.seconds)
            self._add_replies(snapshot.replies)
        changes = self._apply(state, self.store.entries(last))
        for seconds, node, what in self.store.events():
            state.add_event(node, what, seconds)
        self.replies = {
            token: replies
            for token, replies in self.replies.items()
            if (member := state.members.find(token)) is not None and member.alive
        }
        self.clock.resume(_seconds_since(self.began))
        if changes >= SNAPSHOT_CHANGES and state.ledger.owed.is_idle:
            self.store.save(snapshot_of(state, plain_replies(self.replies)))

    def _snapshot(self) -> tuple[int, ReadSnapshot | None]:
        """Return a snapshot's last change and the snapshot, or 0 and None."""
        try:
            if (saved := self.store.saved()) is None:
                return 0, None
            return saved[0], ReadSnapshot.of(saved[1])
        except SnapshotDamagedError as error:
            log.warning(
                "the snapshot in %s cannot be used: %s; the whole journal is read", self.store.path, error
            )
            self.store.forget_snapshot()
            return 0, None

    def _apply(self, state: JobState, entries: Iterable[JournalEntry]) -> int:
        """Apply changes; return how many they are as `changes_in` counts."""
        changes = 0
        for entry in entries:
            self.clock.freeze_at(entry.seconds)
            change = _change_of(entry)
            self.replayed += 1
            changes += changes_in(change)
            if type(change) not in REQUESTS:
                DECISIONS[type(change)](state, change)
                continue
            reply = REQUESTS[type(change)](state, entry.token, change).reply
            remember(self.replies, entry.token, entry.number, reply)
        return changes

    def _add_replies(self, replies: dict[str, dict[int, Reply]]) -> None:
        """Add those of the snapshot, each node's in the order of its requests."""
        for token, by_number in replies.items():
            ordered = sorted({**self.replies.get(token, {}), **by_number}.items())
            self.replies[token] = dict(ordered[-REMEMBERED_REPLIES:])


def has_begun(folder: Path, name: str) -> bool:
    """Return whether a run's coordinator had begun, so that another may take over.

    One that was killed before that is known to no node.
    """
    try:
        Takeover.open(folder, name).store.close()
    except ClusterError:
        return False
    return True


def _seconds_since(began: JobBegan) -> float:
    """Return the seconds since a job began.

    The wall clock may have jumped, so it counts only on another machine, or after a reboot.
    """
    if began.kernel == running_kernel():
        return time.monotonic() - began.monotonic_seconds
    return unix_seconds() - began.unix_seconds


def _change_of(entry: JournalEntry) -> Any:
    values = msgpack.unpackb(entry.body, strict_map_key=False)
    if entry.kind == TrainedBatches.__name__:
        _add_deliveries(values)
    return RECORDS.decode_values(entry.kind, values)


def _add_deliveries(values: list[Any]) -> None:
    """Add what acknowledgements in a journal of before 2026-11-29 do not have."""
    batches, left_out, _ = values
    for records, cls in ((batches, TrainedBatch), (left_out, LeftOutBatch)):
        for record in records:
            if len(record) == len(fields(cls)) - 1:
                record.append(list(UNKNOWN_DELIVERY))


def _not_possible(folder: Path, why: str) -> ClusterError:
    return ClusterError(
        f"no coordinator can take over: {why}",
        where=str(folder),
        remedy="give the folder of a run whose coordinator died; shadowsync resume continues any other",
    )
