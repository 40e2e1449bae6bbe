"""Records of the ledger: sums, open spans, and rows of its file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from ....pipeline.data.span import Span
from ....pipeline.types import BatchId

BatchRange: TypeAlias = tuple[int, int, int, int]
"""Batches: epoch, span, first number, number after the last."""

SNAPSHOT_KINDS: Final = (
    "NextSpan", "SpanRead", "TrainedBatches", "ReturnBatches", "SpansReadAgain", "ShardRestored",
)  # fmt: skip
"""Kinds of change whose whole effect is in a snapshot: nearly all of a long journal.

Other kinds here need another FORMAT of `state/snapshot.py`.
"""


@dataclass
class LedgerTotals:
    """The ledger's sums.

    `untrained` are the distinct batches that were left out and never trained. `restored_of_read_spans` are
    the examples in spans read by this run that the resumed run had settled; `parsed_examples` lacks them.
    `stray` batches were trained, but their span has no batch of such a number: its reader died for that.
    `repeated` acknowledgements are of other deliveries of a batch that was settled before and is not owed.
    """

    trained_examples: int = 0
    distinct_examples: int = 0
    distinct_batches: int = 0
    replayed_examples: int = 0
    returned_examples: int = 0
    returned_batches: int = 0
    left_out_examples: int = 0
    left_out_batches: int = 0
    untrained_examples: int = 0
    parsed_examples: int = 0
    restored_of_read_spans: int = 0
    bad_rows: int = 0
    dropped_negatives: int = 0
    stray_batches: int = 0
    repeated_batches: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledgement, as the store keeps it."""

    id: BatchId
    examples: int
    trainer: str
    repeated: bool


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One left-out batch, as the store keeps it."""

    id: BatchId
    examples: int
    trainer: str
    why: str


@dataclass(frozen=True, slots=True)
class WrongDelivery:
    """A batch that this reader must not have delivered to this trainer, and why."""

    reader: str
    trainer: str
    why: str


class LedgerTables(Protocol):
    """Changes of the ledger's file by a change of state; see `LedgerStore`."""

    def grant(self, epoch: int, span: Span, reader: str) -> None:
        """Store that a span was handed out, perhaps again."""

    def span_read(self, epoch: int, number: int, batches: int, examples: int, bad_rows: int) -> None:
        """Store that a whole span was cut."""

    def acknowledge(self, rows: Iterable[Acknowledged]) -> None:
        """Store trained batches."""

    def left_out(self, rows: Iterable[LeftOut]) -> None:
        """Store left-out batches."""

    def returned(self, rows: Iterable[tuple[int, int, int, int, str]]) -> None:
        """Store returned deliveries: (epoch, span, number, examples, trainer)."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A change of the job's state, as the store keeps it.

    Attributes:
        seconds: since the start of the job.
        token, number: token of the requesting node, and number of its request; empty and 0 for a decision.
        kind, body: kind of the change, and the values of its fields in msgpack.
    """

    seconds: float
    token: str
    number: int
    kind: str
    body: bytes


@dataclass(frozen=True)
class LedgerSnapshot:
    """The state of a ledger that owes nothing, but for its open spans; the values are not copied.

    Attributes:
        spans: number of spans that were handed out.
        again, read_again, lost_spans: epochs and numbers of spans of dead readers.
        incomplete: number of open spans with unsettled batches.
        complete_of: number of complete spans by epoch.
        owed_left_out, owed_settled: the values of `OwedBatches`.
        known_deliveries: (reader, trainer, examples).
        settled_deliveries: the values of `SettledDeliveries`; none in a snapshot of before 2026-11-29.
    """

    spans: int
    again: list[tuple[int, int]]
    read_again: list[tuple[int, int]]
    lost_spans: list[tuple[int, int]]
    incomplete: int
    complete_of: dict[int, int]
    reread_batches: int
    owed_left_out: list[BatchId]
    owed_settled: int
    totals: LedgerTotals
    trained_batches_of: dict[str, int]
    trained_examples_of: dict[str, int]
    left_out_examples_of: dict[str, int]
    spans_read_of: dict[str, int]
    known_deliveries: list[tuple[str, str, int]]
    settled_deliveries: list[Any] = field(default_factory=list)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> LedgerSnapshot:
        """Return one from its values in msgpack, by name."""
        return cls(
            read_again=[(epoch, number) for epoch, number in values.pop("read_again")],
            lost_spans=[(epoch, number) for epoch, number in values.pop("lost_spans")],
            owed_left_out=[BatchId(*fields) for fields in values.pop("owed_left_out")],
            totals=LedgerTotals(**values.pop("totals")),
            **values,
        )


class SnapshotDamagedError(ValueError):
    """A snapshot cannot be used."""


@dataclass(frozen=True)
class StoredSnapshot:
    """A snapshot of a job's state, as the store keeps it.

    Attributes:
        body: all but the spans.
        spans: place and values of each span; to be written, of those that have changed.
    """

    body: bytes
    spans: Iterable[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class UnreadSpan:
    """A span that a dead reader had wholly cut, to be read again."""

    number: int
    examples: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A span to retrain, except the batches in `skip`."""

    epoch: int
    span: Span
    skip: list[int]
