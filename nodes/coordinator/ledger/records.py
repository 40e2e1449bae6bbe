"""Records of the ledger: its sums, and what its file keeps of each batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ....pipeline.data.span import Span
from ....pipeline.types import BatchId

BatchRange: TypeAlias = tuple[int, int, int, int]
"""Batches: epoch, span, first number, number after the last."""


@dataclass
class LedgerTotals:
    """The ledger's sums.

    `untrained` are the distinct batches that were left out and not trained either.
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
    bad_rows: int = 0


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
class JournalEntry:
    """A change of the job's state, as the store keeps it.

    Attributes:
        seconds: since the start of the job.
        token, number: of the node that requested it, and of its request; empty and 0 for a decision.
        kind, body: of the change, and the values of its fields in msgpack.
    """

    seconds: float
    token: str
    number: int
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True)
class UnreadSpan:
    """A span that a dead reader had cut wholly, and that is to be read again."""

    number: int
    examples: int


@dataclass(frozen=True, slots=True)
class Replay:
    """A span of which the batches that are not in `skip` are to be trained again."""

    epoch: int
    span: Span
    skip: list[int]
