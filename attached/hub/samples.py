"""The samples that loops share: a state machine without I/O.

Each epoch of a data set has an order, which is a function of a seed and the epoch's number. Loops are given
places in it. What a loop that died or left was given and had not trained is given out again, first of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...pipeline.errors import ClusterError
from ...pipeline.wire.control.loops import SamplesRecord, SamplesReply, TakeSamples


@dataclass(frozen=True, slots=True)
class SampleRange:
    """Places `start` to `stop` in the order of an epoch."""

    epoch: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class GivenRange:
    """Places that a loop has; `at` counts the examples given to it before."""

    at: int
    places: SampleRange

    @property
    def end(self) -> int:
        """How many examples it was given with these."""
        return self.at + len(self.places)


class SampleStream:
    """The places of one data set that were given out, and to whom.

    `granted = finished + returned + held` holds at any time, in examples. A loop is known by its name, which
    it keeps when it comes back.

    Args:
        name: the name of the stream.
        first: the first request, whose data set, order and epochs hold for all.
    """

    def __init__(self, name: str, first: TakeSamples) -> None:
        self._name = name
        self._size, self._seed, self._epochs = first.size, first.seed, first.epochs
        self._epoch, self._next = 0, 0
        self._granted, self._finished, self._returned = 0, 0, 0
        self._again: deque[SampleRange] = deque()
        self._held: dict[str, deque[GivenRange]] = {}
        self._finished_by: dict[str, int] = {}

    def saved(self) -> dict[str, Any]:
        """Return everything, as values of JSON."""
        return {
            "size": self._size,
            "seed": self._seed,
            "epochs": self._epochs,
            "epoch": self._epoch,
            "next": self._next,
            "granted": self._granted,
            "finished": self._finished,
            "returned": self._returned,
            "again": [asdict(places) for places in self._again],
            "held": {name: [asdict(entry) for entry in held] for name, held in self._held.items()},
            "finished_by": self._finished_by,
        }

    @classmethod
    def of_saved(cls, name: str, saved: Mapping[str, Any]) -> SampleStream:
        """Return the stream that was saved. Raises KeyError or TypeError for another form."""
        first = TakeSamples(name, saved["size"], 1, saved["seed"], saved["epochs"], None, 0)
        stream = cls(name, first)
        stream._epoch, stream._next = saved["epoch"], saved["next"]
        stream._granted, stream._finished = saved["granted"], saved["finished"]
        stream._returned = saved["returned"]
        stream._again.extend(SampleRange(**entry) for entry in saved["again"])
        for loop, held in saved["held"].items():
            stream._held[loop] = deque(
                GivenRange(entry["at"], SampleRange(**entry["places"])) for entry in held
            )
        stream._finished_by.update(saved["finished_by"])
        return stream

    def take(self, name: str, request: TakeSamples) -> SamplesReply:
        """Give a loop the next places of its pass.

        There are none if the pass is over.

        Raises ClusterError if its data set is another one.
        """
        settings = (self._size, self._seed, self._epochs)
        if (request.size, request.seed, request.epochs) != settings:
            raise ClusterError(
                f"samples {self._name!r}: a data set of {request.size:,} examples, seed {request.seed} and"
                f" {request.epochs or 'any number of'} epochs given; the other loops have {self._size:,},"
                f" {self._seed} and {self._epochs or 'any number of'}",
                remedy="give all loops the same, or another name",
            )
        self.finish(name, request.finished)
        received = self._position(name)
        if request.received is not None:
            received = request.received
            # A hub died before the loop had its reply.
            self._take_back(name, received)
        epoch = request.epoch
        if epoch is None:
            epoch = self._epoch if self._next < self._size else self._epoch + 1
        places = self._next_places(epoch, request.span)
        if places is None:
            return SamplesReply(epoch, epoch, 0, 0)
        self._held.setdefault(name, deque()).append(GivenRange(received, places))
        self._granted += len(places)
        return SamplesReply(epoch, places.epoch, places.start, places.stop)

    def finish(self, name: str, finished: int) -> None:
        """Record how many examples a loop has trained so far.

        It trains them in the order in which it got them.
        """
        held = self._held.get(name, deque())
        self._finished_by[name] = max(finished, self._finished_by.get(name, 0))
        while held and held[0].at < finished:
            first = held.popleft()
            done = min(finished - first.at, len(first.places))
            self._finished += done
            if done < len(first.places):
                rest = replace(first.places, start=first.places.start + done)
                held.appendleft(GivenRange(first.at + done, rest))
                return

    def give_back(self, name: str) -> int:
        """Take back what a loop was given and has not trained; return the examples."""
        return self._take_back(name, 0)

    def forget_loops(self) -> None:
        """Take back what all loops hold, and forget the loops."""
        for name in list(self._held):
            self.give_back(name)
        self._held, self._finished_by = {}, {}

    def _take_back(self, name: str, received: int) -> int:
        """Take back what a loop was given beyond the first `received` examples."""
        held = self._held.get(name, deque())
        back = [entry.places for entry in held if entry.end > received]
        self._held[name] = deque(entry for entry in held if entry.end <= received)
        count = sum(map(len, back))
        self._returned += count
        self._again.extend(back)
        return count

    def _position(self, name: str) -> int:
        """Return how many examples a loop was given, of its whole pass."""
        held = self._held.get(name)
        return held[-1].end if held else self._finished_by.get(name, 0)

    def record(self) -> SamplesRecord:
        """Return the sums so far."""
        held = sum(len(entry.places) for all_of in self._held.values() for entry in all_of)
        return SamplesRecord(self._name, self._granted, self._finished, self._returned, held)

    def _next_places(self, epoch: int, span: int) -> SampleRange | None:
        if self._again:
            places = self._again.popleft()
            if len(places) > span:
                self._again.appendleft(SampleRange(places.epoch, places.start + span, places.stop))
                places = SampleRange(places.epoch, places.start, places.start + span)
            return places
        if epoch > self._epoch and not (self._epochs and epoch >= self._epochs):
            self._epoch, self._next = self._epoch + 1, 0
        if epoch != self._epoch or self._next >= self._size:
            return None
        start, self._next = self._next, min(self._next + span, self._size)
        return SampleRange(self._epoch, start, self._next)
