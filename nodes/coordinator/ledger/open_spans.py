"""The spans that were handed out, with the batches that are settled; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from ....pipeline.checkpoint.saved_ledger import SavedLedger, SavedSpan
from ....pipeline.data.span import to_runs
from ....pipeline.types import BatchId
from .batch_sizes import BatchSizes
from .owed_batches import OwedBatches, SpanKey
from .records import BatchRange


@dataclass(slots=True)
class OpenSpan:
    """A span that was handed out in one epoch.

    Settled batches are trained or left out; the span has their examples by batch number.

    Attributes:
        place: number of spans that were handed out before it.
        reader: the reader that has it; empty while it waits to be handed out again.
        restored: batches that the resumed run had trained.
        restored_left_out: batches that the resumed run had left out.
        batches, examples: numbers of the whole span; None until it was read.
        done: batches that this run trained.
        left_out: batches that this run left out, and has not trained.
    """

    place: int
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

    def is_beyond(self, number: int) -> bool:
        """Return whether its reader has said that it has no batch of this number."""
        return self.batches is not None and number >= self.batches

    def refusal(self, number: int) -> str:
        """Return why its reader must not deliver a batch in this run at all, or ""."""
        if self.is_beyond(number):
            return f"it is not in its span, which has {self.batches} batches"
        if number in self.restored:
            return "it was trained by the run that this one resumes"
        return "it was left out by the run that this one resumes" if number in self.restored_left_out else ""

    def needless(self, number: int) -> str:
        """Return why a batch that is not owed needs no delivery, or ""."""
        is_settled = number in self.done or number in self.left_out
        return "it was delivered before" if is_settled else self.refusal(number)

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

    def saved(self) -> bytes:
        """Return what `OpenSpans.restore` needs of it, in msgpack."""
        counts = self.batches, self.examples, self.bad_rows, self.dropped_negatives
        packed: bytes = msgpack.packb([self.reader, *counts, self.done.saved(), self.left_out])
        return packed


class OpenSpans(dict[SpanKey, OpenSpan]):
    """Spans that were handed out, in order, by epoch and number.

    It knows which have changed since they were saved. Owned by the coordinator's loop.

    Args:
        seed: the run's, part of every batch's id.
        restored: what the resumed run had settled.
    """

    def __init__(self, seed: int, restored: SavedLedger) -> None:
        super().__init__()
        self._seed = seed
        self._restored = restored
        self._changed: set[SpanKey] = set()

    def hand_out(self, key: SpanKey, reader: str) -> OpenSpan:
        """Add a span that a reader gets; return it."""
        restored = self._restored
        span = OpenSpan(len(self), reader, restored.partial.get(key, {}), restored.left_out.get(key, {}))
        self[key] = span
        self._changed.add(key)
        return span

    def change(self, key: SpanKey) -> OpenSpan:
        """Return a span that changes now."""
        self._changed.add(key)
        return self[key]

    def require(self, epoch: int, number: int) -> OpenSpan:
        """Return a span; raises ValueError if it was not handed out."""
        try:
            return self[epoch, number]
        except KeyError:
            raise ValueError(f"span {number} of epoch {epoch} was not handed out") from None

    def require_of(self, batch: BatchId, examples: int) -> OpenSpan:
        """Return the span of a batch that a trainer or reader names.

        Raises ValueError if it was not handed out. What its reader must not deliver is `OpenSpan.refusal`.
        """
        if batch.seed != self._seed:
            raise ValueError(f"batch {tuple(batch)} has seed {batch.seed}; this job's is {self._seed}")
        span = self.require(batch.epoch, batch.span)
        if examples <= 0:
            raise ValueError(f"batch {tuple(batch)} with {examples} examples")
        return span

    def trained_ranges(self) -> list[BatchRange]:
        """Return the batches that this run has trained so far."""
        return [
            (*key, start, stop) for key, span in self.items() for start, stop in to_runs(sorted(span.done))
        ]

    def misread(self) -> list[str]:
        """Describe complete spans whose batches disagree with their reader's count."""
        return [
            f"span {number} of epoch {epoch}: {span.settled_examples} of {span.examples} examples"
            for (epoch, number), span in self.items()
            if span.complete and span.settled_examples != span.examples
        ]

    def settled(self, owed: OwedBatches) -> SavedLedger:
        """Copy what is settled now, for a checkpoint.

        Takes O(spans + batches of unfinished spans).
        """
        restored = self._restored
        complete = dict(restored.complete)
        partial = {key: dict(numbers) for key, numbers in restored.partial.items()}
        left_out = {key: dict(numbers) for key, numbers in restored.left_out.items()}
        for key, span in self.items():
            if span.left_out:
                left_out[key] = {**span.restored_left_out, **span.left_out}
            # A resumed run trains again what a shard lacks.
            lacking = owed.lacking(key)
            if span.complete and not lacking:
                partial.pop(key, None)
                complete[key] = SavedSpan(span.batches or 0, span.trained_examples, span.bad_rows)
            elif done := {number: size for number, size in span.done.items() if number not in lacking}:
                partial[key] = {**span.restored, **done}
        return SavedLedger(self._seed, complete, partial, left_out)

    def take_changed(self) -> list[tuple[int, bytes]]:
        """Return place and values of each span that has changed since the last call."""
        changed, self._changed = self._changed, set()
        return [(span.place, span.saved()) for span in map(self.__getitem__, changed)]

    def restore(self, key: SpanKey, saved: list[Any]) -> None:
        """Add the next span, with its values from `OpenSpan.saved`."""
        reader, *counts, done, left_out = saved
        span = self.hand_out(key, reader)
        self._changed.discard(key)
        span.batches, span.examples, span.bad_rows, span.dropped_negatives = counts
        span.done, span.left_out = BatchSizes.of_saved(done), left_out
        span.done_examples = span.done.examples
