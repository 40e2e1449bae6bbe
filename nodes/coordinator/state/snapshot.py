"""Snapshots of a job's state and last replies, for a coordinator that takes over.

No I/O. The journal still has every change. One that takes over reads those of SNAPSHOT_KINDS only after the
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
from ....pipeline.wire.rpc.channel import REMEMBERED_REPLIES
from ...control.progress import InputSnapshot, MetricsSnapshot
from ..ledger.records import LedgerSnapshot, SnapshotDamagedError, StoredSnapshot
from .bad_batches import BadBatchSnapshot
from .job import JobState

SNAPSHOT_CHANGES: Final = 20_000
"""Trained batches and other changes from one snapshot to the next: well under a second of replay."""

FORMAT: Final = 2
REPLIES: Final = NamedRecords[Reply](
    {kind.__name__: kind for kind in (Done, NextSpanReply, ReturnBatchesReply)}
)
"""Replies to changes of SNAPSHOT_KINDS; the others are given again by the changes beside the snapshot."""

Replies: TypeAlias = Mapping[str, Mapping[int, Reply]]
T = TypeVar("T")


def remember(replies: dict[str, dict[int, T]], token: str, number: int, reply: T) -> None:
    """Add a node's reply; only its latest REMEMBERED_REPLIES are kept."""
    by_number = replies.setdefault(token, {})
    by_number[number] = reply
    if len(by_number) > REMEMBERED_REPLIES:
        del by_number[next(iter(by_number))]


def plain_reply(reply: Reply) -> list[Any] | None:
    """Return a reply as plain values; None for one of another kind."""
    if type(reply) not in REPLIES.kinds.values():
        return None
    return [REPLIES.name_of(reply), values_of(reply)]


def plain_replies(replies: Replies) -> dict[str, dict[int, list[Any]]]:
    """Return those that a snapshot has, by token and number."""
    return {
        token: {number: plain for number, reply in by_number.items() if (plain := plain_reply(reply))}
        for token, by_number in replies.items()
    }


def changes_in(change: Any) -> int:
    """Return by how much a change brings the next snapshot nearer."""
    return 1 + (len(change.batches) if isinstance(change, TrainedBatches) else 0)


@dataclass(frozen=True)
class JobSnapshot:
    """What the changes of SNAPSHOT_KINDS have made of a job's state; the values are not copied.

    Attributes:
        seconds: when it was made, since the start of the job.
        lost_dense_updates, synced_iterations: as in `TrainingState`.
        replies: the replies to living nodes, by token: number, and values of `plain_reply`.
    """

    seconds: float
    ledger: LedgerSnapshot
    metrics: MetricsSnapshot
    input: InputSnapshot
    bad_batches: BadBatchSnapshot
    lost_dense_updates: int
    synced_iterations: dict[str, int]
    replies: dict[str, list[tuple[int, list[Any]]]]

    @classmethod
    def of(cls, state: JobState, replies: Mapping[str, Mapping[int, list[Any]]]) -> JobSnapshot:
        """Return one of now; nothing may be owed: `OwedBatches.is_idle`."""
        training = state.training
        return cls(
            seconds=state.seconds(),
            ledger=state.ledger.snapshot(),
            metrics=training.metrics.snapshot(),
            input=training.input.size.snapshot(),
            bad_batches=training.bad_batches.snapshot(),
            lost_dense_updates=training.lost_dense_updates,
            synced_iterations=training.synced_iterations,
            replies={
                token: list(by_number.items())
                for token, by_number in replies.items()
                if (member := state.members.find(token)) is not None and member.alive
            },
        )

    def restore(self, state: JobState, spans: Iterable[list[Any]]) -> None:
        """Give it, and all open spans by place, to a state that has only the changes of other kinds."""
        state.ledger.restore(self.ledger, spans)
        training = state.training
        training.metrics.restore(self.metrics)
        training.input.size.restore(self.input)
        training.bad_batches.restore(self.bad_batches)
        training.restore_updates(self.synced_iterations, lost=self.lost_dense_updates)

    def to_bytes(self) -> bytes:
        """Return its values by name, in msgpack."""
        packed: bytes = msgpack.packb({"format": FORMAT, **vars(self)}, default=vars)
        return packed

    @classmethod
    def from_bytes(cls, body: bytes) -> JobSnapshot:
        """Read one; raises SnapshotDamagedError for another format."""
        values = _values(body)
        # Format 1 was a list, with its number first.
        number = values.pop("format") if isinstance(values, dict) else values[0]
        if number != FORMAT:
            raise SnapshotDamagedError(f"its format is {number!r:.20}, not {FORMAT}")
        return cls(
            ledger=LedgerSnapshot.from_values(values.pop("ledger")),
            metrics=MetricsSnapshot(**values.pop("metrics")),
            input=InputSnapshot(**values.pop("input")),
            bad_batches=BadBatchSnapshot(**values.pop("bad_batches")),
            **values,
        )


def snapshot_of(state: JobState, replies: Mapping[str, Mapping[int, list[Any]]]) -> StoredSnapshot:
    """Return a snapshot, with the spans that have changed since the last one.

    `replies` are those of `plain_reply`. Takes O(changes since).
    """
    return StoredSnapshot(JobSnapshot.of(state, replies).to_bytes(), state.ledger.take_changed_spans())


@dataclass(frozen=True)
class ReadSnapshot:
    """A snapshot that was read and is whole.

    Attributes:
        packed_spans: the values of each span in msgpack, by place.
        replies: replies by token and number.
    """

    job: JobSnapshot
    packed_spans: list[bytes]
    replies: dict[str, dict[int, Reply]]

    @classmethod
    def of(cls, snapshot: StoredSnapshot) -> ReadSnapshot:
        """Read all of a snapshot; raises SnapshotDamagedError if it cannot be used."""
        job = JobSnapshot.from_bytes(snapshot.body)
        spans = list[bytes]()
        for place, body in snapshot.spans:
            if place != len(spans):
                raise SnapshotDamagedError(f"span {len(spans)} is missing")
            spans.append(body)
        if len(spans) != job.ledger.spans:
            raise SnapshotDamagedError(f"it has {len(spans)} spans of {job.ledger.spans}")
        return cls(job, spans, {token: dict(_replies(by_number)) for token, by_number in job.replies.items()})

    def restore(self, state: JobState) -> None:
        """Give it to a state that has only the changes of other kinds."""
        self.job.restore(state, map(_values, self.packed_spans))


def _replies(numbered: Iterable[tuple[int, list[Any]]]) -> Iterable[tuple[int, Reply]]:
    try:
        for number, (name, values) in numbered:
            yield number, REPLIES.decode_values(name, values)
    except ProtocolError as error:
        raise SnapshotDamagedError(str(error)) from error


def _values(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False)
