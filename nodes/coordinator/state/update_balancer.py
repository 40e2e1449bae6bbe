"""Balancer of dense updates over unequal trainers, without I/O.

Heartbeats come in. Orders go out: into how many micro-batches a trainer cuts its batches, each for one dense
update.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from typing import Final

from ....pipeline.wire.control.orders import MAX_MICRO_BATCHES

# Fewest batches, and seconds, of one ratio measurement.
MEASURED_BATCHES: Final = 16
MEASURED_SECONDS: Final = 1.0
# Running mean: a new measurement weighs at least 1/AVERAGED.
AVERAGED: Final = 16
# Window in which the fastest trainer is determined.
FASTEST_SECONDS: Final = 30.0
# Heartbeats kept per trainer.
KEPT_HEARTBEATS: Final = 512
# Ratio below which a trainer is not cut; up to MORE_AT_FIRST is added while little is known.
NEARLY_EQUAL: Final = 1.08
MORE_AT_FIRST: Final = 0.25
# Relative change of the micro-batches below which no order is given.
SMALLEST_CHANGE: Final = 0.05
# Seconds in which missing updates are made up. LARGEST_CATCH_UP limits the extra rate, LARGEST_GROWTH the
# factor by which one order raises the micro-batches.
CATCH_UP_SECONDS: Final = 10.0
LARGEST_CATCH_UP: Final = 0.5
LARGEST_GROWTH: Final = 4.0
# If the micro-batches change by this factor, measure again; if the ratio changes by OTHER_MACHINES, forget
# the cost fit too.
OTHER_MICRO_BATCHES: Final = 1.25
OTHER_MACHINES: Final = 1.5
# Smallest relative spread of micro-batches for a cost fit; FADING is the decay of older measurements.
SMALLEST_SPREAD: Final = 0.15
FADING: Final = 0.95


@dataclass(frozen=True, slots=True)
class UpdateCounts:
    """Figures of a trainer from its heartbeat.

    Attributes:
        seconds: time of the heartbeat.
        batches: number of batches that its workers have trained.
        updates: number of dense updates made from them.
        micro_batches: micro-batches into which it cuts a batch now.
    """

    seconds: float
    batches: int
    updates: int
    micro_batches: float


class _MicroBatchCost:
    """Cost of one more micro-batch, by linear fit."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        self.ratio = 0.0

    def add(self, micro_batches: float, ratio: float) -> None:
        """Add a measurement."""
        new = (1.0, micro_batches, ratio, micro_batches * micro_batches, micro_batches * ratio)
        self._sums = [FADING * old + value for old, value in zip(self._sums, new, strict=True)]
        weight, k, r, kk, kr = self._sums
        variance = kk / weight - (k / weight) ** 2
        if variance >= (SMALLEST_SPREAD * k / weight) ** 2:
            self.ratio = max(0.0, (kr / weight - k * r / weight**2) / variance)
        else:
            # A wrong or outdated cost fades, so that it is measured again.
            self.ratio *= FADING


class _Pace:
    """Pace of one trainer relative to the fastest.

    A slowdown of all trainers at once, such as a stalled disk or a busy machine, does not change it.

    Attributes:
        last: its last heartbeat.
        ratio: time of its batches over that of the fastest trainer's; 0 before it is measured.
    """

    def __init__(self, first: UpdateCounts) -> None:
        self.last = first
        self.ratio = 0.0
        self._earlier: deque[UpdateCounts] = deque([first], maxlen=KEPT_HEARTBEATS)
        self._start_seconds = first.seconds
        self._micro_batches = first.micro_batches
        self._measurements = 0
        self._cost = _MicroBatchCost()

    @property
    def known_seconds(self) -> float:
        """Seconds from its first kept heartbeat to the last."""
        return self.last.seconds - self._earlier[0].seconds

    @property
    def batch_seconds(self) -> float:
        """Mean seconds per batch since its first kept heartbeat."""
        first = self._earlier[0]
        return self.known_seconds / max(1, self.last.batches - first.batches)

    def ratio_since(self, seconds: float, other: _Pace) -> float | None:
        """Return another trainer's batches per batch of this one.

        Counts the time in which both are known. None if this trainer trained nothing then.
        """
        since = max(seconds, self._earlier[0].seconds, other._earlier[0].seconds)
        until = min(self.last.seconds, other.last.seconds)
        batches = self._batches_at(until) - self._batches_at(since)
        return (other._batches_at(until) - other._batches_at(since)) / batches if batches > 0.0 else None

    def _batches_at(self, seconds: float) -> float:
        """Return the batches trained by then, interpolated between two heartbeats."""
        index = bisect_right(self._earlier, seconds, key=lambda counts: counts.seconds)
        if not index:
            return float(self._earlier[0].batches)
        before, after = (
            self._earlier[index - 1],
            self._earlier[index] if index < len(self._earlier) else self.last,
        )
        passed = after.seconds - before.seconds
        share = min(1.0, (seconds - before.seconds) / passed) if passed > 0.0 else 1.0
        return before.batches + share * (after.batches - before.batches)

    def record_heartbeat(self, counts: UpdateCounts) -> None:
        """Record a heartbeat of this trainer."""
        before, self.last = self.last, counts
        self._earlier.append(before)
        if counts.micro_batches != before.micro_batches:
            # Batches between the two heartbeats were cut into either number of micro-batches.
            self._start_seconds = counts.seconds
            if _differ(counts.micro_batches, self._micro_batches, OTHER_MICRO_BATCHES):
                self._micro_batches, self._measurements = counts.micro_batches, 0

    def is_due(self, until_seconds: float) -> bool:
        """Return whether enough was trained since the last measurement."""
        start = self._start_seconds
        batches = self._batches_at(until_seconds) - self._batches_at(start)
        return until_seconds - start >= MEASURED_SECONDS and batches >= MEASURED_BATCHES

    def measure(self, fastest: _Pace) -> bool:
        """Measure the ratio if that is due; return whether it was."""
        until = min(self.last.seconds, fastest.last.seconds)
        ratio = self.ratio_since(self._start_seconds, fastest)
        if ratio is None or not self.is_due(until):
            return False
        self._start_seconds = until
        if self._measurements and _differ(ratio, self.ratio, OTHER_MACHINES):
            self._measurements, self._cost = 0, _MicroBatchCost()
        self._measurements = min(AVERAGED, self._measurements + 1)
        self.ratio += (ratio - self.ratio) / self._measurements
        self._cost.add(self.last.micro_batches, ratio)
        return True

    def most_micro_batches(self) -> float:
        """Return the number of micro-batches whose overhead equals the batch's time."""
        if not self._cost.ratio:
            return float(MAX_MICRO_BATCHES)
        of_examples = self.ratio - self._cost.ratio * self.last.micro_batches
        return min(float(MAX_MICRO_BATCHES), max(1.0, of_examples / self._cost.ratio))


def _differ(first: float, second: float, factor: float) -> bool:
    return not second / factor <= first <= second * factor


class UpdateBalancer:
    """Balancer of a job's dense updates.

    A trainer that is k times slower cuts each batch into about k micro-batches, and makes a dense update of
    each. Cutting makes a trainer slower still, so the number of micro-batches follows the measured time of
    its batches with the present number. Updates that are missing by then are made up. Batches of nearly equal
    trainers are not cut. The overhead of micro-batches never exceeds the time of the examples; if that limit
    is reached, the counts of updates stay unequal.

    The idea is from Adaptive SGD (Ma, Rusu et al., heterogeneous CPU+GPU), which changes the batch itself.
    Here the batch stays the unit of readers, ledger and pushes.
    """

    def __init__(self) -> None:
        self._paces: dict[str, _Pace] = {}

    def record_heartbeat(self, trainer: str, counts: UpdateCounts) -> float | None:
        """Process a heartbeat; return the trainer's new number of micro-batches.

        Returns None if the number stays.
        """
        pace = self._paces.get(trainer)
        if pace is None:
            self._paces[trainer] = _Pace(counts)
            return None
        pace.record_heartbeat(counts)
        if not pace.is_due(counts.seconds):
            return None
        best = self._wanted(pace)
        if abs(best - counts.micro_batches) <= SMALLEST_CHANGE * counts.micro_batches:
            return None
        return best

    def lose(self, trainer: str) -> None:
        """Forget a trainer that is gone."""
        self._paces.pop(trainer, None)

    def _wanted(self, pace: _Pace) -> float:
        """Measure a trainer if due; return its number of micro-batches."""
        last, recently = pace.last, pace.last.seconds - FASTEST_SECONDS
        recent = {name: pace.ratio_since(recently, other) or 0.0 for name, other in self._paces.items()}
        name = max(recent, key=lambda trainer: recent[trainer])
        fastest = self._paces[name]
        if not pace.measure(fastest):
            return last.micro_batches
        if fastest is pace or (last.micro_batches == 1.0 and recent[name] < self._limit(pace)):
            return 1.0
        missing_seconds = (fastest.last.updates - last.updates) * fastest.batch_seconds
        more = min(LARGEST_CATCH_UP, max(-LARGEST_CATCH_UP, missing_seconds / CATCH_UP_SECONDS))
        most = min(LARGEST_GROWTH * last.micro_batches, pace.most_micro_batches())
        micro_batches = min(pace.ratio * (1.0 + more), most)
        return round(micro_batches, 3) if micro_batches > 1.0 + SMALLEST_CHANGE else 1.0

    def _limit(self, pace: _Pace) -> float:
        """Return the ratio above which a trainer's batches are cut."""
        return NEARLY_EQUAL + MORE_AT_FIRST * max(0.0, 1.0 - pace.known_seconds / FASTEST_SECONDS)
