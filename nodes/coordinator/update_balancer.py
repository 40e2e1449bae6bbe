"""Balances the dense updates of unequal trainers: a state machine without I/O and without a clock.

Heartbeats in, orders out: into how many parts a trainer cuts its batches, each part for one dense update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...pipeline.wire.control_orders import MAX_PARTS

# A rate is measured over at least so many batches, and so long.
MEASURED_BATCHES: Final = 16
MEASURED_SECONDS: Final = 1.0
# The rate is the mean of the first measurements; from then on a new one weighs one in so many.
AVERAGED: Final = 16
# A trainer that takes at most so much longer than the fastest one is not cut; while there are fewer
# measurements it takes more to tell the two apart.
NEARLY_EQUAL: Final = 1.08
NOT_CLEARLY_SLOWER: Final = 1.25
# Orders that would change the parts by less are not given.
SMALLEST_CHANGE: Final = 0.05
# A trainer whose batches take so many times longer than before is not waited for to be measured.
STANDING_STILL: Final = 2.0
# What is missing is made up for within about so long, by at most this much more than the fastest's rate.
CATCH_UP_SECONDS: Final = 10.0
LARGEST_CATCH_UP: Final = 0.5
LARGEST_GROWTH: Final = 4.0
# Where the parts differ by more than this factor, the time of a batch is measured anew; where that differs by
# more without them, nothing that was learned of the machine holds.
OTHER_PARTS: Final = 1.25
ANOTHER_MACHINE: Final = 1.5
# Parts of this spread, as a share of their mean, tell what a part costs; each measurement weighs so much less
# than the next one.
SMALLEST_SPREAD: Final = 0.15
FADING: Final = 0.95


@dataclass(frozen=True, slots=True)
class UpdateCounts:
    """What a heartbeat tells of a trainer.

    Attributes:
        seconds: when it came.
        batches: that its workers have trained.
        updates: dense updates that they made of these.
        parts: of a batch, as it cuts them now.
    """

    seconds: float
    batches: int
    updates: int
    parts: float


class _PartCost:
    """What each part adds to the time of a batch: the slope of a line through the latest measurements."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self.seconds = 0.0

    def add(self, parts: float, batch_seconds: float) -> None:
        """Add a measurement."""
        new = (1.0, parts, batch_seconds, parts * parts, parts * batch_seconds)
        self._sums = [FADING * old + one for old, one in zip(self._sums, new, strict=True)]
        weight, k, t, kk, kt = self._sums
        variance = kk / weight - (k / weight) ** 2
        if variance >= (SMALLEST_SPREAD * k / weight) ** 2:
            self.seconds = max(0.0, (kt / weight - k * t / weight**2) / variance)
        else:
            # So that a cost which was wrong, or has changed, is looked for again.
            self.seconds *= FADING


class _Pace:
    """The measured pace of one trainer."""

    def __init__(self, first: UpdateCounts) -> None:
        self.last = first
        self._start = first
        self._batch_seconds = 0.0
        self._measurements = 0
        self._parts = first.parts
        self._cost = _PartCost()

    @property
    def is_certain(self) -> bool:
        """Whether there are as many measurements as are averaged."""
        return self._measurements == AVERAGED

    @property
    def batch_seconds(self) -> float | None:
        """Return the seconds of a batch, measured last or, where it stands still, so far."""
        if not self._batch_seconds:
            return None
        since = self.last.seconds - self._start.seconds
        so_far = since / (self.last.batches - self._start.batches + 1)
        return so_far if so_far > STANDING_STILL * self._batch_seconds else self._batch_seconds

    def beat(self, counts: UpdateCounts) -> bool:
        """Take a heartbeat; return whether it completed a measurement."""
        self.last, start = counts, self._start
        if counts.parts != start.parts:
            # What is between the two was trained with both.
            self._start = counts
            if _differ(counts.parts, self._parts, OTHER_PARTS):
                self._parts, self._measurements = counts.parts, 0
            return False
        batches, seconds = counts.batches - start.batches, counts.seconds - start.seconds
        if batches < MEASURED_BATCHES or seconds < MEASURED_SECONDS:
            return False
        self._start = counts
        self._add(seconds / batches)
        return True

    def most_parts(self) -> float:
        """Return the parts whose own cost is as much time as the batch takes without it."""
        if not self._cost.seconds:
            return float(MAX_PARTS)
        of_examples = self._batch_seconds - self._cost.seconds * self.last.parts
        return min(float(MAX_PARTS), max(1.0, of_examples / self._cost.seconds))

    def _add(self, batch_seconds: float) -> None:
        if self._measurements and _differ(batch_seconds, self._batch_seconds, ANOTHER_MACHINE):
            # The machine itself has become slower or faster, and nothing that was learned holds any more.
            self._measurements, self._cost = 0, _PartCost()
        self._measurements = min(AVERAGED, self._measurements + 1)
        self._batch_seconds += (batch_seconds - self._batch_seconds) / self._measurements
        self._cost.add(self.last.parts, batch_seconds)


def _differ(one: float, other: float, factor: float) -> bool:
    return not other / factor <= one <= other * factor


class UpdateBalancer:
    """Make all trainers do as many dense updates as the fastest one does batches.

    A trainer that is k times slower cuts each batch into about k parts and makes a dense update of each. The
    loop is closed: cutting makes a trainer slower still, and the parts follow the time that batches took with
    the present number of them; what is missing by then is made up for. Trainers that are nearly equal are not
    cut. Parts never take more of a batch's time than its examples do: where that does not suffice, the counts
    stay unequal.

    Source: the idea is that of Adaptive SGD (Ma, Rusu et al., heterogeneous CPU+GPU), which changes the batch
    itself; here that stays the unit of readers, ledger and pushes.
    """

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}

    def beat(self, trainer: str, counts: UpdateCounts) -> float | None:
        """Take a heartbeat; return the parts that this trainer is to cut its batches into from now on.

        None where nothing is to change.
        """
        pace = self._paces.get(trainer)
        if pace is None:
            self._paces[trainer] = _Pace(counts)
            return None
        if not pace.beat(counts):
            return None
        wanted = self._wanted(pace)
        if abs(wanted - counts.parts) <= SMALLEST_CHANGE * counts.parts:
            return None
        return wanted

    def lose(self, trainer: str) -> None:
        """Forget a trainer that is gone."""
        self._paces.pop(trainer, None)

    def _wanted(self, pace: _Pace) -> float:
        """Return the parts that a trainer should cut into, which has just been measured."""
        paces = [(seconds, other) for other in self._paces.values() if (seconds := other.batch_seconds)]
        fastest_seconds, fastest = min(paces, key=lambda found: found[0])
        own_seconds, own = pace.batch_seconds, pace.last
        assert own_seconds is not None
        if fastest is pace:
            return 1.0
        ratio = own_seconds / fastest_seconds
        certain = pace.is_certain and fastest.is_certain
        if own.parts == 1.0 and ratio < (NEARLY_EQUAL if certain else NOT_CLEARLY_SLOWER):
            return 1.0
        due = fastest.last.updates + (own.seconds - fastest.last.seconds) / fastest_seconds
        missing = due - own.updates
        more = min(LARGEST_CATCH_UP, max(-LARGEST_CATCH_UP, missing * fastest_seconds / CATCH_UP_SECONDS))
        parts = min(ratio * (1.0 + more), LARGEST_GROWTH * own.parts, pace.most_parts())
        return round(parts, 3) if parts > 1.0 + SMALLEST_CHANGE else 1.0
