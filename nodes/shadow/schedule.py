"""Schedule of a trainer's rounds, by iterations and duty cycle."""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

from ...pipeline.config.sections import SyncSection

# Pause between attempts if a node is lost or this trainer is not in the group.
RETRY_SECONDS = 0.05
# Complete rounds from which the usual cost is taken.
USUAL_ROUNDS = 5
# A trainer without an iteration for this long has nothing to train: its rounds are due by time alone.
# Otherwise its replica would fall behind and then pull the others back.
STALLED_SECONDS = 1.0
STALL_LOOK_SECONDS = STALLED_SECONDS / 4
SHORTEST_LOOK_SECONDS = 0.005
LONGEST_LOOK_SECONDS = 0.05
# Shortest wait: timers fire this much early, and sums of times are rounded.
CLOCK_SECONDS = 1e-6


class RoundSchedule:
    """Schedule of rounds in shadow mode, without I/O or clock.

    A round costs `t = max(CPU seconds, bytes / link rate)`. The next one begins no sooner than
    `max(t / duty, its seconds)` after the begin of this one and, if this one was incomplete, no sooner than
    RETRY_SECONDS after its end. Without `sync.gap` that is all.

    With `sync.gap = k`, the trainer must also have done k iterations since the begin of the last complete
    round. In its first N = `sync.start_iterations` iterations, it needs only `1 + (k - 1) * i // N` after
    iteration i, and `sync.start_duty` applies. A round is also due if another trainer waits for this one, or
    after STALLED_SECONDS without an iteration; with nothing new to send, only STALLED_SECONDS after the begin
    of the last one. With a gap, exceptional costs do not count: the first complete
    round counts as free, and any other as at most the lower median of the last USUAL_ROUNDS complete ones,
    including itself.

    Times are seconds by any clock that never goes back; iterations are those of the whole trainer. All calls
    come from one thread.

    Attributes:
        earliest_seconds: time before which no round is due; the first one is due at once.
        due_iterations: iterations of the trainer at which the next round is due; 0 without `sync.gap`.
    """

    def __init__(self, sync: SyncSection) -> None:
        self._sync = sync
        self._costs: deque[float] = deque(maxlen=USUAL_ROUNDS)
        self._began = (0.0, 0)
        # Time and iterations at the last check since then, and the fewest seconds per iteration before it.
        self._looked = (0.0, 0)
        self._looked_pace = 0.0
        self._iteration_seconds = 0.0
        # For the last rounds: seconds per iteration before each, and its CPU seconds.
        self._last_change = (-math.inf, -1)
        self.earliest_seconds = -math.inf
        self.due_iterations = 0
        # Iterations at the begin of the last complete round; None at first, when a round is due at once.
        self._counted_from: int | None = None

    def began(self, now: float, iterations: int) -> None:
        """Record that a round began."""
        began, before = self._began
        if self.earliest_seconds > -math.inf and iterations > before:
            # The fastest so far: an extra check costs less than a late one.
            passed = (now - began) / (iterations - before)
            self._iteration_seconds = min(passed, self._iteration_seconds or passed)
        self._began = self._looked = (now, iterations)
        self._looked_pace = 0.0

    def ended(self, *, complete: bool, seconds: float, cpu_seconds: float, moved_bytes: int) -> None:
        """Record that the last round has ended; `moved_bytes` are its sent and received bytes."""
        began, iterations = self._began
        cost = cpu_seconds
        if self._sync.link_bytes_per_second is not None:
            cost = max(cost, moved_bytes / self._sync.link_bytes_per_second)
        if self._sync.gap is not None:
            cost = self._counted(cost, complete=complete)
        pause = max(cost / self._duty(iterations), seconds) - seconds
        self.earliest_seconds = began + seconds + (pause if complete else max(pause, RETRY_SECONDS))
        if complete:
            self._counted_from = iterations
            self._set_due()

    def is_due(self, now: float, iterations: int, *, awaited: bool = False) -> bool:
        """Return whether a round is due.

        `awaited` says whether another trainer waits for this one.
        """
        if iterations != self._last_change[1]:
            self._last_change = (now, iterations)
        if self._is_early(now):
            return False
        stalled = now - self._last_change[0] >= STALLED_SECONDS
        if stalled and not awaited and iterations == self._counted_from:
            # It has nothing to send, and what the others sent can wait: an idle job costs no bandwidth.
            return now - self._began[0] >= STALLED_SECONDS
        return self._sync.gap is None or awaited or stalled or iterations >= self.due_iterations

    def wait_seconds(
        self, now: float, iterations: int, *, awaited: bool = False, notified: bool = False
    ) -> float:
        """Return the seconds to wait; 0 if a round is due.

        After `earliest_seconds`, this is half of the least time of the missing iterations, within bounds.
        Iterations must be polled: workers only write their counters. If the caller
        is `notified` when iterations reach `due_iterations`, only a stall is left to look for.
        """
        if self.is_due(now, iterations, awaited=awaited):
            return 0.0
        if self._is_early(now):
            return self.earliest_seconds - now
        if notified:
            return STALL_LOOK_SECONDS
        expected = (self.due_iterations - iterations) * self._least_iteration_seconds(now, iterations)
        return min(max(expected / 2, SHORTEST_LOOK_SECONDS), LONGEST_LOOK_SECONDS)

    def _least_iteration_seconds(self, now: float, iterations: int) -> float:
        """Return the time of an iteration, by rounds or by the looks so far.

        The first gap may be long, or never reached: rounds alone would teach too late.
        """
        looked, before = self._looked
        if iterations > before:
            # One more, since the first and the last iteration were seen in part.
            self._looked_pace = (now - looked) / (iterations - before + 1)
        self._looked = (now, iterations)
        return self._iteration_seconds or self._looked_pace

    def _is_early(self, now: float) -> bool:
        return self.earliest_seconds - now > CLOCK_SECONDS

    def _set_due(self) -> None:
        if self._sync.gap is not None and self._counted_from is not None:
            self.due_iterations = self._counted_from + self._target_gap(self._sync.gap, self._counted_from)

    def _counted(self, cost: float, *, complete: bool) -> float:
        """Return the part of a round's cost that determines its pause."""
        if complete:
            self._costs.append(cost)
            if len(self._costs) == 1:
                return 0.0
        return min(cost, median_low(self._costs)) if self._costs else cost

    def _duty(self, iterations: int) -> float:
        sync = self._sync
        if sync.start_duty is not None and iterations < sync.start_iterations:
            return sync.start_duty
        return sync.duty

    def _target_gap(self, gap: int, iterations: int) -> int:
        first = self._sync.start_iterations
        return 1 + (gap - 1) * iterations // first if iterations < first else gap
