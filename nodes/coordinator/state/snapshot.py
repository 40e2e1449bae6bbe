"""Snapshots of a job's books and last replies, for a coordinator that takes over.

No I/O. The journal still has every change. One that takes over reads those of BOOKED_KINDS only after the
snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgpack

from ....pipeline.errors import ProtocolError
from ....pipeline.wire.control.base import Done, NamedRecords, Reply
from ....pipeline.wire.control.messages import NextSpanReply, ReturnBatchesReply, TrainedBatches
from ....pipeline.wire.field_checks import values_of
from ....pipeline.wire.rpc_channel import REMEMBERED_REPLIES
from ..ledger.records import Snapshot, SnapshotDamagedError
from .job import JobState

SNAPSHOT_CHANGES: Final = 20_000
"""Trained batches and other changes from one snapshot to the next: well under a second of replay."""

FORMAT: Final = 1
REPLIES: Final = NamedRecords[Reply](
    {kind.__name__: kind for kind in (Done, NextSpanReply, ReturnBatchesReply)}
)
"""Replies to changes of BOOKED_KINDS; the others are given again by the changes beside the snapshot."""

Replies: TypeAlias = Mapping[str, Mapping[int, Reply]]
T = TypeVar("T")


def remember(replies: dict[str, dict[int, T]], token: str, number: int, reply: T) -> None:
    """Add a node's reply; only its latest REMEMBERED_REPLIES are kept."""
    given = replies.setdefault(token, {})
    given[number] = reply
    if len(given) > REMEMBERED_REPLIES:
        del given[next(iter(given))]


def plain_reply(reply: Reply) -> list[Any] | None:
    """Return a reply as plain values; None for one of another kind."""
    if type(reply) not in REPLIES.kinds.values():
        return None
    return [REPLIES.name_of(reply), values_of(reply)]


def plain_replies(replies: Replies) -> dict[str, dict[int, list[Any]]]:
    """Return those that a snapshot has, by token and number."""
    return {
        token: {number: plain for number, reply in given.items() if (plain := plain_reply(reply))}
        for token, given in replies.items()
    }


def changes_in(change: Any) -> int:
    """Return by how much a change brings the next snapshot nearer."""
    return 1 + (len(change.batches) if isinstance(change, TrainedBatches) else 0)


def snapshot_of(state: JobState, replies: Mapping[str, Mapping[int, list[Any]]]) -> Snapshot:
    """Return a snapshot, with the spans that have changed since the last one.

    `replies` are those of `plain_reply`. Takes O(changes since). Nothing may be owed: `OwedBatches.is_idle`.
    """
    living = {
        token: list(given.items())
        for token, given in replies.items()
        if (member := state.members.find(token)) is not None and member.alive
    }
    books = msgpack.packb([FORMAT, state.seconds(), state.books(), living])
    return Snapshot(books, state.ledger.take_changed_spans())


@dataclass(frozen=True)
class ReadSnapshot:
    """A snapshot that was read and is whole.

    Attributes:
        seconds: when it was made, since the start of the job.
        packed_spans: the values of each span in msgpack, by place.
        replies: replies by token and number.
    """

    seconds: float
    books: list[Any]
    packed_spans: list[bytes]
    replies: dict[str, dict[int, Reply]]

    @classmethod
    def of(cls, snapshot: Snapshot) -> ReadSnapshot:
        """Read all of a snapshot; raises SnapshotDamagedError if it cannot be used."""
        kind, *values = _values(snapshot.books)
        if kind != FORMAT:
            raise SnapshotDamagedError(f"its format is {kind!r:.20}, not {FORMAT}")
        seconds, books, replies = values
        spans = list[bytes]()
        for place, body in snapshot.spans:
            if place != len(spans):
                raise SnapshotDamagedError(f"span {len(spans)} is missing")
            spans.append(body)
        if len(spans) != books[0]["spans"]:
            raise SnapshotDamagedError(f"it has {len(spans)} spans of {books[0]['spans']}")
        return cls(seconds, books, spans, {token: dict(_replies(given)) for token, given in replies.items()})

    def restore(self, state: JobState) -> None:
        """Give the books to a state that has only the changes of other kinds."""
        state.take_over_books(self.books, map(_values, self.packed_spans))


def _replies(given: Iterable[tuple[int, tuple[str, list[Any]]]]) -> Iterable[tuple[int, Reply]]:
    try:
        for number, (name, values) in given:
            yield number, REPLIES.decode_values(name, values)
    except ProtocolError as error:
        raise SnapshotDamagedError(str(error)) from error


def _values(body: bytes) -> list[Any]:
    found: list[Any] = msgpack.unpackb(body, strict_map_key=False)
    return found
