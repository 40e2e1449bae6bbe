"""The ledger: spans handed out, batches trained, totals; no I/O.

Batches are known by their ids: rule "A batch is a pure function" (docs/architecture.md).

Words as in docs/architecture.md: `trained` are acknowledgements, `distinct` the ids among them, and
`replayed` further acknowledgements of an id. `returned` are deliveries that came back from a dead trainer,
and `left_out` deliveries of batches whose loss or gradients were not finite, which changed nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from typing import Any

from ....pipeline.checkpoint.saved_ledger import SavedLedger
from ....pipeline.data.span import Span
from ....pipeline.types import BatchId
from ....pipeline.wire.control.messages import UNKNOWN_DELIVERY, DeliveryKey
from .open_spans import OpenSpan, OpenSpans
from .owed_batches import OwedBatches
from .records import (
    Acknowledged,
    BatchRange,
    LedgerSnapshot,
    LedgerTotals,
    LeftOut,
    Replay,
    UnreadSpan,
    WrongDelivery,
)
from .settled_deliveries import SettledDeliveries
from .span_queue import SpanQueue


class LedgerState:
    """State of the ledger; owned by the coordinator's loop.

    Args:
        spans: the plan of the training part. There are `epochs` passes over it, each in an order drawn from
            `seed` if `shuffled`.
        follows: whether spans are added while the job trains, until `queue.end`.
        restored: what the resumed run had trained. It is not handed out again, and not part of `totals`.

    Attributes:
        queue: the spans, and those not handed out yet.
        totals: sums of this run alone.
        spans_read_of: spans that each reader has reported as read.
        reread_batches: number of batches settled after their span was handed out again.
        owed: trained batches that replacement embedding nodes lack.
        deliveries: those that trainers have acknowledged.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        *,
        epochs: int,
        seed: int,
        shuffled: bool,
        follows: bool = False,
        restored: SavedLedger | None = None,
    ) -> None:
        self.restored = restored if restored is not None else SavedLedger(seed)
        self.restored_batches, self.restored_examples = self.restored.batches, self.restored.examples
        self.restored_left_out_examples = self.restored.left_out_examples
        self.queue = SpanQueue(
            spans,
            epochs=epochs,
            seed=seed,
            shuffled=shuffled,
            complete=self.restored.complete.keys(),
            follows=follows,
        )
        self._open = OpenSpans(seed, self.restored)
        self.require_batch = self._open.require_of  # See there.
        # Spans of dead readers, to be handed out again.
        self._again: deque[tuple[int, Span]] = deque()
        self._read_again: set[tuple[int, int]] = set()
        self._lost_spans: set[tuple[int, int]] = set()
        self._incomplete = 0
        self._complete_of = Counter(epoch for epoch, _ in self.restored.complete)
        self._seed = seed
        self.owed = OwedBatches()
        self.totals = LedgerTotals()
        self.trained_batches_of: dict[str, int] = {}
        self.trained_examples_of: dict[str, int] = {}
        self.left_out_examples_of: dict[str, int] = {}
        self.spans_read_of: Counter[str] = Counter()
        self.reread_batches = 0
        # Examples of settled or returned deliveries, by (reader, trainer).
        self._known_deliveries: Counter[tuple[str, str]] = Counter()
        self.deliveries = SettledDeliveries()
        self._wrong_deliveries: list[WrongDelivery] = []

    @property
    def complete(self) -> bool:
        """Whether all spans are read and all batches settled."""
        return self.queue.is_exhausted and self._incomplete == 0 and self.owed.is_settled

    @property
    def all_read(self) -> bool:
        """Whether all spans are read; none can be added."""
        return self.queue.is_exhausted and all(span.batches is not None for span in self._open.values())

    @property
    def complete_epochs(self) -> int:
        """Number of leading epochs whose spans are all read and settled."""
        epoch = 0
        while not self.queue.follows and 0 < self._complete_of[epoch] == len(self.queue):
            epoch += 1
        return epoch

    def _complete(self, epoch: int) -> None:
        self._incomplete -= 1
        self._complete_of[epoch] += 1

    def trained_ranges(self) -> list[BatchRange]:
        """Return the batches that this run has trained so far."""
        return self._open.trained_ranges()

    def grant(self, reader: str) -> tuple[int, Span] | None:
        """Return a reader's next (epoch, span); None when all are handed out."""
        if self._again:
            epoch, span = self._again.popleft()
            self._open.change((epoch, span.number)).reader = reader
            return epoch, span
        if (granted := self.queue.pop()) is None:
            return None
        epoch, span = granted
        self._open.hand_out((epoch, span.number), reader)
        self._incomplete += 1
        return epoch, span

    def grant_replay(self, reader: str) -> Replay | None:
        """Return one span's batches to retrain; None if there are none."""
        granted = self.owed.grant(reader, lambda key: self._open[key].complete)
        if granted is None:
            return None
        (epoch, number), needed = granted
        batches = self._open[epoch, number].batches or 0
        return Replay(epoch, self.queue[number], [batch for batch in range(batches) if batch not in needed])

    @property
    def has_replays(self) -> bool:
        """Whether owed batches can be handed out."""
        return self.owed.has_free(lambda key: self._open[key].complete)

    def replay_read(self, reader: str, epoch: int, number: int) -> None:
        """Record that a reader has cut a span whose owed batches it has."""
        self.owed.read((epoch, number), reader)
        self.spans_read_of[reader] += 1

    def skip_of(self, epoch: int, number: int) -> list[int]:
        """Return the batches of a span that a reader must skip."""
        return self._open.require(epoch, number).skipped

    def lose_reader(self, reader: str) -> list[UnreadSpan]:
        """Mark a dead reader's unfinished spans as unread; return those wholly cut.

        The spans are handed out again after `read_again`.
        """
        unread = []
        self.owed.lose_reader(reader)
        for key, span in self._open.items():
            if span.reader != reader or span.complete:
                continue
            self._lost_spans.add(key)
            if span.batches is not None and span.examples is not None:
                self.totals.parsed_examples -= span.examples - span.restored_examples
                self.totals.restored_of_read_spans -= span.restored_examples
                self.totals.bad_rows -= span.bad_rows
                self.totals.dropped_negatives -= span.dropped_negatives
                unread.append(UnreadSpan(key[1], span.examples))
            self._open.change(key).forget_counts()
        return unread

    def has_unread_of(self, reader: str) -> bool:
        """Return whether a lost reader has unfinished spans, or owed batches."""
        spans = any(span.reader == reader and not span.complete for span in self._open.values())
        return spans or self.owed.has_of(reader)

    @property
    def has_lost_spans(self) -> bool:
        """Whether spans of dead readers are not finished."""
        return any(not self._open[key].complete for key in self._lost_spans)

    def left_out_again(self) -> list[BatchId]:
        """Return left-out batches of which only the shards know whether they have them.

        A dead trainer may have pushed batches of dead readers' spans. Batches left out when they were trained
        again were applied before, by shards that may be lost.
        """
        return sorted(self.owed.left_out) + [
            BatchId(epoch, number, batch, self._seed)
            for epoch, number in sorted(self._lost_spans)
            for batch in self._open[epoch, number].left_out
        ]

    def read_again(self, reader: str) -> list[tuple[int, int]]:
        """Have a lost reader's unfinished spans handed out again, before all others.

        Call it when no trainer has an unsettled batch of this reader, since settled batches are not sent
        again. Returns the spans' epochs and numbers.
        """
        self.owed.release(reader)
        keys = [key for key, span in self._open.items() if span.reader == reader and not span.complete]
        for key in keys:
            self._open.change(key).reader = ""
            self._again.append((key[0], self.queue[key[1]]))
        self._read_again.update(keys)
        return keys

    def settled_examples_of(self, trainer: str) -> int:
        """Return the examples that a trainer has trained or left out, as far as it has said so."""
        return self.trained_examples_of.get(trainer, 0) + self.left_out_examples_of.get(trainer, 0)

    def known_deliveries(self, reader: str, trainer: str) -> int:
        """Return the known examples from a reader to a trainer."""
        return self._known_deliveries[reader, trainer]

    def span_read(
        self,
        epoch: int,
        number: int,
        *,
        batches: int,
        examples: int,
        bad_rows: int,
        dropped_negatives: int = 0,
    ) -> None:
        """Record that a span's reader has cut all of it.

        Raises ValueError for a span that no reader has.
        """
        span = self._open.require(epoch, number)
        if not span.reader:
            raise ValueError(f"span {number} of epoch {epoch} is not assigned to a reader")
        if span.batches is not None:
            raise ValueError(f"span {number} of epoch {epoch} was already reported as read")
        restored = max((*span.restored, *span.restored_left_out), default=-1)
        if span.last >= batches and ((epoch, number) not in self._read_again or restored >= batches):
            raise ValueError(
                f"span {number} of epoch {epoch} has {batches} batches, but its batch {span.last} was trained"
            )
        self._open.change((epoch, number))
        self._remove_strays(span, (epoch, number), batches)
        span.batches, span.examples, span.bad_rows = batches, examples, bad_rows
        span.dropped_negatives = dropped_negatives
        self.spans_read_of[span.reader] += 1
        self.totals.parsed_examples += examples - span.restored_examples
        self.totals.restored_of_read_spans += span.restored_examples
        self.totals.bad_rows += bad_rows
        self.totals.dropped_negatives += dropped_negatives
        if span.complete:
            self._complete(epoch)

    def _remove_strays(self, span: OpenSpan, key: tuple[int, int], batches: int) -> None:
        """Remove settled batches that the span does not have.

        A reader that died had delivered them: they count as trained, but not as a part of the input.
        """
        totals = self.totals
        for number, examples in span.done.cut(batches):
            span.done_examples -= examples
            totals.distinct_examples -= examples
            totals.distinct_batches -= 1
            totals.replayed_examples += examples
            totals.stray_batches += 1
            self.owed.settle(key, number)
        for number in [number for number in span.left_out if number >= batches]:
            totals.untrained_examples -= span.left_out.pop(number)

    def acknowledge(
        self, trainer: str, batch: BatchId, examples: int, delivery: DeliveryKey = UNKNOWN_DELIVERY
    ) -> Acknowledged:
        """Record a batch that a trainer trained and all shards have applied.

        Raises ValueError for an unknown batch.
        """
        span = self._open.require_of(batch, examples)
        self.totals.trained_examples += examples
        self._settled_by(trainer, batch, examples)
        was_owed = self.owed.settle((batch.epoch, batch.span), batch.number)
        needless = self._note_delivery(span, trainer, batch, delivery, was_owed=was_owed)
        repeated = bool(needless) and batch.number not in span.left_out
        self.trained_batches_of[trainer] = self.trained_batches_of.get(trainer, 0) + (not was_owed)
        self.trained_examples_of[trainer] = self.trained_examples_of.get(trainer, 0) + examples
        if repeated:
            self.totals.replayed_examples += examples
        else:
            was_complete = span.complete
            self._open.change((batch.epoch, batch.span))
            self.totals.untrained_examples -= span.train(batch.number, examples)
            self.totals.distinct_examples += examples
            self.totals.distinct_batches += 1
            if span.complete and not was_complete:
                self._complete(batch.epoch)
        return Acknowledged(batch, examples, trainer, repeated)

    def leave_out(
        self,
        trainer: str,
        batch: BatchId,
        examples: int,
        why: str,
        delivery: DeliveryKey = UNKNOWN_DELIVERY,
    ) -> LeftOut:
        """Record a batch that a trainer left out and that changed nothing.

        It counts as trained if another trainer later trains it. Raises ValueError for an unknown batch.
        """
        span = self._open.require_of(batch, examples)
        totals = self.totals
        totals.left_out_examples += examples
        totals.left_out_batches += 1
        self.left_out_examples_of[trainer] = self.left_out_examples_of.get(trainer, 0) + examples
        self._settled_by(trainer, batch, examples)
        was_owed = self.owed.leave_out(batch)
        if not self._note_delivery(span, trainer, batch, delivery, was_owed=was_owed):
            was_complete = span.complete
            self._open.change((batch.epoch, batch.span))
            span.left_out[batch.number] = examples
            totals.untrained_examples += examples
            if span.complete and not was_complete:
                self._complete(batch.epoch)
        return LeftOut(batch, examples, trainer, why)

    def _note_delivery(
        self, span: OpenSpan, trainer: str, batch: BatchId, delivery: DeliveryKey, *, was_owed: bool
    ) -> str:
        """Record a delivery before its batch is settled; return why the batch needed none, or "".

        A needless delivery of a batch that was not owed is noted as the reader's, unless it is not known.
        """
        self.deliveries.add(trainer, delivery)
        needless = span.needless(batch.number)
        if needless and not was_owed and delivery != UNKNOWN_DELIVERY:
            is_beyond = span.is_beyond(batch.number)
            self.totals.stray_batches += is_beyond
            self.totals.repeated_batches += not is_beyond
            why = f"batch {tuple(batch)}: {needless}"
            self._wrong_deliveries.append(WrongDelivery(delivery[0], trainer, why))
        return needless

    def take_wrong_deliveries(self) -> list[WrongDelivery]:
        """Return what was noted since the last call."""
        noted, self._wrong_deliveries = self._wrong_deliveries, []
        return noted

    def return_batches(
        self,
        trainer: str,
        batches: Iterable[tuple[BatchId, int]],
        replays: Container[BatchId] = frozenset(),
        reader: str = "",
    ) -> list[BatchId]:
        """Decide which of a dead trainer's unconfirmed batches are to be trained again.

        Acknowledged batches stay trained or left out; the deliveries of the others are `returned`. A batch of
        `replays`, which was trained before, is trained again while it is owed. `reader` delivered them; by
        default it is the reader of their span.
        """
        again = []
        for batch, examples in batches:
            span = self._open.require(batch.epoch, batch.span)
            settled = batch.number in span.done or batch.number in span.left_out
            if batch in replays:
                settled = not self.owed.has((batch.epoch, batch.span), batch.number)
            if not settled:
                again.append(batch)
                self.totals.returned_examples += examples
                self.totals.returned_batches += 1
                self._known_deliveries[reader or span.reader, trainer] += examples
        return again

    def missing_batches(self) -> int | None:
        """Count the unsettled batches of all epochs; None while spans are unread."""
        if not self.queue.is_empty or self._again or not self.owed.has_all_shards:
            return None
        missing = self.owed.missing()
        if missing is None:
            return None
        for span in self._open.values():
            if span.batches is None:
                return None
            missing += span.batches - span.settled
        return missing

    def misread_spans(self) -> list[str]:
        """Describe complete spans whose batches disagree with their reader's count."""
        return self._open.misread()

    def trained_in(self, numbers: Container[int]) -> int:
        """Count the distinct trained examples in these spans of the first epoch.

        Includes those of the resumed run.
        """
        parts = [
            *((key, span.trained_examples) for key, span in self._open.items()),
            *((key, span.examples) for key, span in self.restored.complete.items()),
            # Spans that were not handed out again.
            *((k, sum(done.values())) for k, done in self.restored.partial.items() if k not in self._open),
        ]
        return sum(examples for (epoch, number), examples in parts if epoch == 0 and number in numbers)

    @property
    def examples_so_far(self) -> int:
        """Distinct examples that the model has seen, with the resumed run's."""
        return self.restored_examples + self.totals.distinct_examples

    def has(self, batch: BatchId) -> bool:
        """Return whether a batch was trained by this run or the resumed one."""
        span = self._open.get((batch.epoch, batch.span))
        done = span is not None and batch.number in span.done
        return done or self.restored.has(batch.epoch, batch.span, batch.number)

    def saved(self) -> SavedLedger:
        """Copy what is settled now, for a checkpoint; see `OpenSpans.settled`."""
        return self._open.settled(self.owed)

    def snapshot(self) -> LedgerSnapshot:
        """Return all but the open spans, while `owed.is_idle`."""
        return LedgerSnapshot(
            spans=len(self._open),
            again=[(epoch, span.number) for epoch, span in self._again],
            read_again=sorted(self._read_again),
            lost_spans=sorted(self._lost_spans),
            incomplete=self._incomplete,
            complete_of=self._complete_of,
            reread_batches=self.reread_batches,
            owed_left_out=sorted(self.owed.left_out),
            owed_settled=self.owed.settled,
            totals=self.totals,
            trained_batches_of=self.trained_batches_of,
            trained_examples_of=self.trained_examples_of,
            left_out_examples_of=self.left_out_examples_of,
            spans_read_of=self.spans_read_of,
            known_deliveries=[(*pair, examples) for pair, examples in self._known_deliveries.items()],
            settled_deliveries=self.deliveries.saved(),
        )

    def take_changed_spans(self) -> list[tuple[int, bytes]]:
        """Return place and values of each span that has changed since the last call."""
        return self._open.take_changed()

    def restore(self, snapshot: LedgerSnapshot, spans: Iterable[list[Any]]) -> None:
        """Take over a snapshot and all open spans by place; none may be open yet."""
        for saved in spans:
            if (opened := self.queue.pop()) is None:
                raise ValueError("the input has fewer spans than were handed out")
            self._open.restore((opened[0], opened[1].number), saved)
        self._again = deque((epoch, self.queue[number]) for epoch, number in snapshot.again)
        self._read_again, self._lost_spans = set(snapshot.read_again), set(snapshot.lost_spans)
        self._incomplete, self._complete_of = snapshot.incomplete, Counter(snapshot.complete_of)
        self.reread_batches, self.totals = snapshot.reread_batches, snapshot.totals
        self.owed.restore(snapshot.owed_left_out, snapshot.owed_settled)
        self.trained_batches_of = snapshot.trained_batches_of
        self.trained_examples_of = snapshot.trained_examples_of
        self.left_out_examples_of = snapshot.left_out_examples_of
        self.spans_read_of = Counter(snapshot.spans_read_of)
        self._known_deliveries = Counter({(reader, to): n for reader, to, n in snapshot.known_deliveries})
        self.deliveries.restore(snapshot.settled_deliveries)

    def _settled_by(self, trainer: str, batch: BatchId, examples: int) -> None:
        """Count a delivery; call it before the batch is settled."""
        key = batch.epoch, batch.span
        reader = self.owed.reader_of(key, batch.number) or self._open[key].reader
        self._known_deliveries[reader, trainer] += examples
        self.reread_batches += key in self._read_again
