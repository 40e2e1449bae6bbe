"""The samples that loops share: a state machine without I/O.

Each epoch of a data set has an order, which is a function of a seed and the epoch's number. Loops are given
places in it. What a loop that died or left was given and had not trained is given out again, first of all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ...pipeline.errors import ClusterError
from ...pipeline.wire.control.loops import SamplesRecord, SamplesReply, TakeSamples


@dataclass(frozen=True, slots=True)
class Places:
    """Places `start` to `stop` in the order of an epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class SampleStream:
    """The places of one data set that were given out, and to whom.

    `granted = finished + returned + held` holds at any time, in examples.

    Args:
        name: the name of the stream.
        first: the first request, whose data set, order and epochs hold for all.
    """

    def __init__(self, name: str, first: TakeSamples) -> None:
        self._name = name
        self._size, self._seed, self._epochs = first.size, first.seed, first.epochs
        self._epoch, self._next = 0, 0
        self._granted, self._finished, self._returned = 0, 0, 0
        self._again: deque[Places] = deque()
        self._held: dict[str, deque[Places]] = {}
        self._finished_by: dict[str, int] = {}

    def take(self, token: str, request: TakeSamples) -> SamplesReply:
        """Give a loop the next places of its pass.

        There are none if the pass is over.

        Raises ClusterError if its data set is another one.
        """
        own = (self._size, self._seed, self._epochs)
        if (request.size, request.seed, request.epochs) != own:
            raise ClusterError(
                f"samples {self._name!r}: a data set of {request.size:,} examples, seed {request.seed} and"
                f" {request.epochs or 'any number of'} epochs given; the other loops have {self._size:,},"
                f" {self._seed} and {self._epochs or 'any number of'}",
                remedy="give all loops the same, or another name",
            )
        self.finish(token, request.finished)
        at = request.epoch
        if at is None:
            at = self._epoch if self._next < self._size else self._epoch + 1
        places = self._next_places(at, request.span)
        if places is None:
            return SamplesReply(at, at, 0, 0)
        self._held.setdefault(token, deque()).append(places)
        self._granted += len(places)
        return SamplesReply(at, places.epoch, places.start, places.stop)

    def finish(self, token: str, finished: int) -> None:
        """Record how many examples a loop has trained so far.

        It trains them in the order in which it got them.
        """
        held = self._held.get(token, deque())
        left = finished - self._finished_by.get(token, 0)
        while left > 0 and held:
            places = held.popleft()
            done = min(left, len(places))
            if done < len(places):
                held.appendleft(Places(places.epoch, places.start + done, places.stop))
            left -= done
            self._finished += done
            self._finished_by[token] = self._finished_by.get(token, 0) + done

    def give_back(self, token: str) -> int:
        """Take back what a loop was given and has not trained; return the examples."""
        held = self._held.pop(token, deque())
        count = sum(map(len, held))
        self._returned += count
        self._again.extend(held)
        return count

    def record(self) -> SamplesRecord:
        """Return the sums so far."""
        held = sum(len(places) for all_of in self._held.values() for places in all_of)
        return SamplesRecord(self._name, self._granted, self._finished, self._returned, held)

    def _next_places(self, at: int, span: int) -> Places | None:
        if self._again:
            places = self._again.popleft()
            if len(places) > span:
                self._again.appendleft(Places(places.epoch, places.start + span, places.stop))
                places = Places(places.epoch, places.start, places.start + span)
            return places
        if at > self._epoch and not (self._epochs and at >= self._epochs):
            self._epoch, self._next = self._epoch + 1, 0
        if at != self._epoch or self._next >= self._size:
            return None
        start, self._next = self._next, min(self._next + span, self._size)
        return Places(self._epoch, start, self._next)
