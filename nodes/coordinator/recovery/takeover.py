"""Takeover of a job from a dead coordinator's ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from ....pipeline.errors import ClusterError
from ....pipeline.text.wall_clock import unix_seconds
from ....pipeline.wire.control.base import Reply
from ....pipeline.wire.rpc_channel import REMEMBERED_REPLIES
from ....pipeline.wire.segment import running_kernel
from ..ledger.records import JournalEntry
from ..ledger.store import LedgerStore
from ..state.changes import DECISIONS, RECORDS, REQUESTS, JobBegan
from ..state.job import JobState


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
        replies: replies that it gave to living nodes, or had decided on, by token and number of the request.
    """

    folder: Path
    began: JobBegan
    store: LedgerStore
    clock: TakeoverClock = field(default_factory=TakeoverClock)
    replies: dict[str, dict[int, Reply]] = field(default_factory=dict)

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
            first = next(store.entries(), None)
            if first is None or first.kind != JobBegan.__name__:
                raise _not_possible(folder, f"its {name} has no journal")
            return cls(folder, _change_of(first), store)
        except BaseException:
            store.close()
            raise

    def replay(self, state: JobState) -> None:
        """Replay the journal into a new state, whose clock must be `self.clock`."""
        for entry in self.store.entries():
            self.clock.freeze_at(entry.seconds)
            change = _change_of(entry)
            if type(change) not in REQUESTS:
                DECISIONS[type(change)](state, change)
                continue
            replies = self.replies.setdefault(entry.token, {})
            replies[entry.number] = REQUESTS[type(change)](state, entry.token, change).reply
            if len(replies) > REMEMBERED_REPLIES:
                del replies[next(iter(replies))]
        for seconds, node, what in self.store.events():
            state.add_event(node, what, seconds)
        self.replies = {
            token: replies
            for token, replies in self.replies.items()
            if (member := state.members.find(token)) is not None and member.alive
        }
        self.clock.resume(_seconds_since(self.began))


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
    return RECORDS.decode_values(entry.kind, msgpack.unpackb(entry.body, strict_map_key=False))


def _not_possible(folder: Path, why: str) -> ClusterError:
    return ClusterError(
        f"no coordinator can take over: {why}",
        where=str(folder),
        remedy="give the folder of a run whose coordinator died; shadowsync resume continues any other",
    )
