"""Records of the ledger: sums, open spans, and rows of its file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ....pipeline.data.span import Span
from ....pipeline.types import BatchId
from .batch_sizes import BatchSizes

BatchRange: TypeAlias = tuple[int, int, int, int]
"""Batches: epoch, span, first number, number after the last."""


@dataclass
class LedgerTotals:
    """The ledger's sums.

    `untrained` are the distinct batches that were left out and never trained. `restored_of_read_spans` are
    the examples in spans read by this run that the resumed run had settled; `parsed_examples` lacks them.
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


@dataclass(slots=True)
class OpenSpan:
    """A span that was handed out in one epoch.

    Settled batches are trained or left out; the span has their examples by batch number.

    Attributes:
        reader: the reader that has it; empty while it waits to be handed out again.
        restored: batches that the resumed run had trained.
        restored_left_out: batches that the resumed run had left out.
        batches, examples: numbers of the whole span; None until it was read.
        done: batches that this run trained.
        left_out: batches that this run left out, and has not trained.
    """

    reader: str
    restored: Mapping[int, int] = field(default_factory=dict)
    restored_left_out: Mapping[int, int] = field(default_factory=dict)
    batches: int | None = None
    examples: int | None = None
    bad_rows: int = 0
    dropped_negatives: int = 0
    done: BatchSizes = field(default_factory=BatchSizes)
    left_out: dict[int, int] = field(default_factory=dict)
    done_examples: int = 0

    def train(self, number: int, examples: int) -> int:
        """Record a trained batch; return its examples if it was left out, else 0."""
        self.done.add(number, examples)
        self.done_examples += examples
        return self.left_out.pop(number, 0)

    def forget_counts(self) -> None:
        """Forget what its reader has reported, since another reader has to cut it."""
        self.batches = self.examples = None
        self.bad_rows = self.dropped_negatives = 0

    @property
    def skipped(self) -> list[int]:
        """Return the batches that a reader must not send, ascending."""
        return sorted({*self.restored, *self.restored_left_out, *self.done, *self.left_out})

    @property
    def restored_examples(self) -> int:
        """Return the examples of the batches that the resumed run had settled."""
        return sum(self.restored.values()) + sum(self.restored_left_out.values())

    @property
    def settled(self) -> int:
        """Number of batches that need nothing more."""
        return len(self.done) + len(self.left_out) + len(self.restored) + len(self.restored_left_out)

    @property
    def last(self) -> int:
        """The highest number of a settled batch; -1 if there is none."""
        numbers = (self.done, self.left_out, self.restored, self.restored_left_out)
        return max(max(iter(some), default=-1) for some in numbers)

    @property
    def complete(self) -> bool:
        """Whether all of its batches are settled."""
        return self.batches is not None and self.settled == self.batches

    @property
    def trained_examples(self) -> int:
        """Examples trained by this run and the one that it resumes."""
        return self.done_examples + sum(self.restored.values())

    @property
    def settled_examples(self) -> int:
        """Examples settled by this run and the resumed one."""
        return self.done_examples + sum(self.left_out.values()) + self.restored_examples
