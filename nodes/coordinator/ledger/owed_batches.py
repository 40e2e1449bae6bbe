"""Trained batches that a replaced embedding shard lacks: a state machine without I/O.

Batches are owed from the moment this is known until they are trained again. The new shard then applies them;
the other shards recognise and skip them. A span's owed batches are handed out to one reader at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass

from ....pipeline.types import BatchId
from .records import BatchRange

SpanKey = tuple[int, int]


@dataclass(slots=True)
class _HandedOut:
    """Batches of one span that a reader has to deliver again."""

    reader: str
    numbers: set[int]
    read: bool = False


class OwedBatches:
    """The owed batches, by span and epoch. Owned by the coordinator's loop.

    Attributes:
        left_out: batches that were not finite when they were trained again. A shard lacks them for good.
        settled: number of batches that were trained again.
    """

    def __init__(self) -> None:
        self._owed: dict[SpanKey, set[int]] = {}
        self._handed_out: dict[SpanKey, _HandedOut] = {}
        self._missing_shards: set[int] = set()
        self.left_out: set[BatchId] = set()
        self.settled = 0

    @property
    def has_all_shards(self) -> bool:
        """Whether the lacking batches of every embedding shard are known."""
        return not self._missing_shards

    @property
    def missing_shards(self) -> Set[int]:
        """Return the shards whose lacking batches are unknown."""
        return self._missing_shards

    @property
    def is_settled(self) -> bool:
        """Whether every embedding shard has all trained batches."""
        return self.has_all_shards and not self._owed

    @property
    def is_idle(self) -> bool:
        """Whether nothing is owed or handed out, as a snapshot requires."""
        return self.is_settled and not self._handed_out

    def restore(self, left_out: Iterable[BatchId], settled: int) -> None:
        """Take over what a snapshot remembers."""
        self.left_out, self.settled = set(left_out), settled
        self._owed, self._handed_out, self._missing_shards = {}, {}, set()

    def lose_shard(self, number: int) -> None:
        self._missing_shards.add(number)

    def restore_shard(self, number: int, lacking: Iterable[BatchRange]) -> int:
        """Add the batches that a replacement shard lacks; return their count."""
        count = 0
        for epoch, span, start, stop in lacking:
            self.owe((epoch, span), range(start, stop))
            count += stop - start
        self._missing_shards.discard(number)
        return count

    def lacking(self, key: SpanKey) -> Set[int]:
        """Return the trained batches of a span that a shard lacks."""
        left_out = {batch.number for batch in self.left_out if (batch.epoch, batch.span) == key}
        return self._owed.get(key, set()) | left_out

    def reader_of(self, key: SpanKey, number: int) -> str:
        """Return the reader that has an owed batch; empty for none."""
        handed_out = self._handed_out.get(key)
        return handed_out.reader if handed_out is not None and number in handed_out.numbers else ""

    def has_free(self, is_complete: Callable[[SpanKey], bool]) -> bool:
        """Return whether `grant` would hand something out."""
        return self._next(is_complete) is not None

    def has(self, key: SpanKey, number: int) -> bool:
        return number in self._owed.get(key, ())

    def owe(self, key: SpanKey, numbers: Iterable[int]) -> None:
        """Add batches of a span, after those that a reader still has."""
        self._owed.setdefault(key, set()).update(numbers)

    def grant(
        self, reader: str, is_complete: Callable[[SpanKey], bool]
    ) -> tuple[SpanKey, frozenset[int]] | None:
        """Hand out the next span's batches; None if there are none.

        Incomplete spans wait: their reader may still hold the first deliveries of these batches.
        """
        key = self._next(is_complete)
        if key is None:
            return None
        self._handed_out[key] = _HandedOut(reader, set(self._owed[key]))
        return key, frozenset(self._owed[key])

    def read(self, key: SpanKey, reader: str) -> None:
        """Record that a reader has cut a span with owed batches."""
        handed_out = self._handed_out.get(key)
        if handed_out is not None and handed_out.reader == reader:
            handed_out.read = True
            self._forget_finished(key)

    def settle(self, key: SpanKey, number: int) -> bool:
        """Record that a batch was trained again; return whether it was owed."""
        was_owed = self._remove(key, number)
        self.settled += was_owed
        return was_owed

    def leave_out(self, batch: BatchId) -> bool:
        """Record that a batch was left out; return whether it was owed."""
        if was_owed := self._remove((batch.epoch, batch.span), batch.number):
            self.left_out.add(batch)
        return was_owed

    def lose_reader(self, reader: str) -> None:
        """Mark the owed batches of a dead reader as unread."""
        for handed_out in self._handed_out.values():
            if handed_out.reader == reader:
                handed_out.read = False

    def has_of(self, reader: str) -> bool:
        """Return whether owed batches were handed out to this reader."""
        return any(handed_out.reader == reader for handed_out in self._handed_out.values())

    def release(self, reader: str) -> None:
        """Requeue a lost reader's owed batches, once no trainer has any of them."""
        self._handed_out = {
            key: handed_out for key, handed_out in self._handed_out.items() if handed_out.reader != reader
        }

    def missing(self) -> int | None:
        """Count the delivered batches that are still owed.

        Returns None while some are still to be handed out or read.
        """
        if any(key not in self._handed_out for key in self._owed):
            return None
        if not all(handed_out.read for handed_out in self._handed_out.values()):
            return None
        return sum(len(handed_out.numbers) for handed_out in self._handed_out.values())

    def _next(self, is_complete: Callable[[SpanKey], bool]) -> SpanKey | None:
        free = (key for key in self._owed if key not in self._handed_out and is_complete(key))
        return next(free, None)

    def _remove(self, key: SpanKey, number: int) -> bool:
        owed = self._owed.get(key, set())
        if number not in owed:
            return False
        owed.discard(number)
        if not owed:
            del self._owed[key]
        if (handed_out := self._handed_out.get(key)) is not None:
            handed_out.numbers.discard(number)
            self._forget_finished(key)
        return True

    def _forget_finished(self, key: SpanKey) -> None:
        handed_out = self._handed_out[key]
        if handed_out.read and not handed_out.numbers:
            del self._handed_out[key]
