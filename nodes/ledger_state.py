"""The ledger as a state machine without I/O: which spans are out, which batches are trained (contract 7).

Words as in the design: `trained` are acknowledgements, `distinct` the ids among them, `replayed` further
acknowledgements of an id, `returned` deliveries that came back from a dead trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..pipeline.data.batch import BatchId
from ..pipeline.data.spans import Span, span_order


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One acknowledgement, as the store keeps it."""

    id: BatchId
    examples: int
    trainer: str
    repeated: bool


@dataclass(slots=True)
class _OpenSpan:
    """A span of one epoch that was handed out."""

    reader: str
    batches: int | None = None
    examples: int | None = None
    done: dict[int, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.batches is not None and len(self.done) == self.batches


@dataclass
class LedgerTotals:
    """The ledger's sums."""

    trained_examples: int = 0
    trained_batches: int = 0
    distinct_examples: int = 0
    distinct_batches: int = 0
    replayed_examples: int = 0
    returned_examples: int = 0
    returned_batches: int = 0
    parsed_examples: int = 0
    bad_rows: int = 0


class LedgerState:
    """Spans out, batches in. Owned by the coordinator's loop."""

    def __init__(self, spans: Sequence[Span], *, epochs: int, seed: int, shuffled: bool) -> None:
        self._spans = list(spans)
        self._order = self._grants(epochs, seed, shuffled)
        self._next = next(self._order, None)
        self._open: dict[tuple[int, int], _OpenSpan] = {}
        self._incomplete = 0
        self._seed = seed
        self.totals = LedgerTotals()
        self.trained_batches_of: dict[str, int] = {}
        self.trained_examples_of: dict[str, int] = {}

    @property
    def complete(self) -> bool:
        """Whether every span of every epoch was read and all of its batches are trained."""
        return self._next is None and self._incomplete == 0

    def grant(self, reader: str) -> tuple[int, Span] | None:
        """The next span for a reader, as (epoch, span); None when all are handed out."""
        if self._next is None:
            return None
        epoch, span = self._next
        self._next = next(self._order, None)
        self._open[epoch, span.number] = _OpenSpan(reader)
        self._incomplete += 1
        return epoch, span

    def span_read(self, epoch: int, number: int, *, batches: int, examples: int, bad_rows: int) -> None:
        """A reader has cut a whole span; raises ValueError for one that it does not have."""
        span = self._require(epoch, number)
        if span.batches is not None:
            raise ValueError(f"span {number} of epoch {epoch} was read before")
        last = max(span.done, default=-1)
        if last >= batches:
            raise ValueError(
                f"batch {last} of span {number} of epoch {epoch} was trained, and it has {batches}"
            )
        span.batches, span.examples = batches, examples
        self.totals.parsed_examples += examples
        self.totals.bad_rows += bad_rows
        if span.complete:
            self._incomplete -= 1

    def acknowledge(self, trainer: str, batch: BatchId, examples: int) -> Acknowledged:
        """A trainer has trained a batch, and all shards have its push. Raises ValueError for a stranger."""
        if batch.seed != self._seed:
            raise ValueError(f"batch {tuple(batch)} is of seed {batch.seed}; this job's is {self._seed}")
        span = self._require(batch.epoch, batch.span)
        if examples <= 0 or (span.batches is not None and batch.number >= span.batches):
            raise ValueError(f"batch {tuple(batch)} with {examples} examples is none of its span")
        repeated = batch.number in span.done
        self.totals.trained_examples += examples
        self.totals.trained_batches += 1
        self.trained_batches_of[trainer] = self.trained_batches_of.get(trainer, 0) + 1
        self.trained_examples_of[trainer] = self.trained_examples_of.get(trainer, 0) + examples
        if repeated:
            self.totals.replayed_examples += examples
        else:
            was_complete = span.complete
            span.done[batch.number] = examples
            self.totals.distinct_examples += examples
            self.totals.distinct_batches += 1
            if span.complete and not was_complete:
                self._incomplete -= 1
        return Acknowledged(batch, examples, trainer, repeated)

    def return_batches(self, batches: Iterable[tuple[BatchId, int]]) -> list[BatchId]:
        """The verdict on what a dead trainer had not confirmed to a reader: what is to be trained again.

        Batches whose acknowledgement is here stay trained; the others' deliveries are `returned`.
        """
        again = []
        for batch, examples in batches:
            if batch.number not in self._require(batch.epoch, batch.span).done:
                again.append(batch)
                self.totals.returned_examples += examples
                self.totals.returned_batches += 1
        return again

    def missing_batches(self) -> int | None:
        """Batches that are not trained, of all spans of all epochs; None while some are still to be read."""
        if self._next is not None:
            return None
        missing = 0
        for span in self._open.values():
            if span.batches is None:
                return None
            missing += span.batches - len(span.done)
        return missing

    def misread_spans(self) -> list[str]:
        """Complete spans whose batches do not hold the examples that their reader counted; in words."""
        return [
            f"span {number} of epoch {epoch}: {sum(span.done.values())} of {span.examples} examples"
            for (epoch, number), span in self._open.items()
            if span.complete and sum(span.done.values()) != span.examples
        ]

    def _require(self, epoch: int, number: int) -> _OpenSpan:
        try:
            return self._open[epoch, number]
        except KeyError:
            raise ValueError(f"span {number} of epoch {epoch} was not handed out") from None

    def _grants(self, epochs: int, seed: int, shuffled: bool) -> Iterator[tuple[int, Span]]:
        for epoch in range(epochs):
            for place in span_order(len(self._spans), epoch, seed, shuffled):
                yield epoch, self._spans[place]
