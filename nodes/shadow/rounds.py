"""Rounds of one trainer: their counts, the sync gap, and the fixed-rate barrier."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from ...pipeline.report.rendering.quality_warnings import FIRST_ITERATIONS


class RoundCounter:
    """Counts of rounds, gaps and seconds of one trainer.

    The sync gap is the number of iterations of the whole trainer between two completed rounds. Any of the
    trainer's threads may call.

    Args:
        iterations: returns the trainer's iterations so far, over all its workers.
    """

    def __init__(self, iterations: Callable[[], int]) -> None:
        self._iterations = iterations
        self._lock = threading.Lock()
        self._rounds = 0
        self._first_rounds = 0
        self._incomplete = 0
        self._gap_sum = 0
        self._gap_max = 0
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._synced_iterations = 0
        self._iterations_at_last_round = 0

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """Count a complete round, which synchronized the replica as of `started_iterations`."""
        with self._lock:
            now = self._iterations()
            gap = now - self._iterations_at_last_round
            self._rounds += 1
            # A round that began before the first iteration had nothing to synchronize.
            self._first_rounds += 0 < started_iterations <= FIRST_ITERATIONS
            self._gap_sum += gap
            self._gap_max = max(self._gap_max, gap)
            self._seconds += seconds
            self._cpu_seconds += cpu_seconds
            self._iterations_at_last_round = now
            self._synced_iterations = max(self._synced_iterations, started_iterations)

    def continue_from(self, iterations: int) -> None:
        """Count the first gap from the last round of an earlier counter."""
        with self._lock:
            self._iterations_at_last_round = iterations

    def incomplete(self) -> None:
        """Count a round that ended without all of its slices."""
        with self._lock:
            self._incomplete += 1

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far.

        The gap since the last round counts toward the maximum.
        """
        with self._lock:
            open_gap = self._iterations() - self._iterations_at_last_round
            return {
                "rounds": self._rounds,
                "first_rounds": self._first_rounds,
                "incomplete_rounds": self._incomplete,
                "gap_sum": self._gap_sum,
                "gap_max": max(self._gap_max, open_gap),
                "gap_open": open_gap,
                "round_seconds": self._seconds,
                "round_cpu_seconds": self._cpu_seconds,
                "synced_iterations": self._synced_iterations,
            }


class DueSteps:
    """The steps at which training wakes the shadow thread: nobody has to look.

    A step compares one number. The shadow thread sets it, and looks at the steps after that, so that none is
    missed. Both sides may run at any time.

    Attributes:
        steps: the steps; NEVER while time alone decides when a round is due.
        wake: wakes the shadow thread; set before there are steps.
    """

    NEVER = sys.maxsize

    def __init__(self) -> None:
        self.steps = self.NEVER
        self.wake: Callable[[], object] = lambda: None

    def stepped(self, steps: int) -> None:
        """Say that so many steps are done; for the thread that trains."""
        if steps >= self.steps:
            self.steps = self.NEVER
            self.wake()


STARVED_SECONDS = 0.2


class _WorkerStatus(Enum):
    WORKING = "working"
    AT_GATE = "at the gate"
    STARVED = "starved"


class RoundGate:
    """A barrier for workers and shadow thread, for rounds with peers.

    The rounds have a fixed rate. Any thread may call; a worker calls for itself. A round is due when no
    worker is working and either a worker is at the gate or another trainer waits for this one. A worker
    without input for STARVED_SECONDS does not delay rounds, so that trainers whose input has ended still take
    part, and the others do not wait in vain.

    Args:
        workers: the number of workers.
        every: iterations of a worker between two rounds, k.
        arrived: called, on the worker's thread, when a round may have become due.
    """

    def __init__(self, workers: int, every: int, arrived: Callable[[], None]) -> None:
        self._every = every
        self._arrived = arrived
        self._changed = threading.Condition()
        self._statuses = [_WorkerStatus.STARVED] * workers
        self._starved_since = [0.0] * workers
        self._iterations = [0] * workers
        self._in_round = False
        self._open = False

    def work(self, index: int) -> None:
        """Wait for the current round's end, then mark the worker working."""
        with self._changed:
            while self._in_round and not self._open:
                self._changed.wait()
            self._statuses[index] = _WorkerStatus.WORKING

    def iterated(self, index: int) -> None:
        """Count an iteration; after every k-th, wait as in `arrive`."""
        self._iterations[index] += 1
        if self._iterations[index] % self._every == 0:
            self.arrive(index)

    def arrive(self, index: int) -> None:
        """Wait until a round has ended or the gate is opened."""
        with self._changed:
            if self._open:
                return
            self._statuses[index] = _WorkerStatus.AT_GATE
        self._arrived()
        with self._changed:
            while self._statuses[index] is _WorkerStatus.AT_GATE and not self._open:
                self._changed.wait()
            self._statuses[index] = _WorkerStatus.WORKING

    def starve(self, index: int) -> None:
        """Mark the worker as without input; it may call this repeatedly."""
        with self._changed:
            if self._statuses[index] is _WorkerStatus.WORKING:
                self._statuses[index] = _WorkerStatus.STARVED
                self._starved_since[index] = time.monotonic()

    def enter(self, *, awaited: bool) -> bool:
        """Begin a round if one is due; return whether it has begun.

        `awaited` says whether another trainer waits for this one.
        """
        with self._changed:
            now = time.monotonic()
            if (
                self._open
                or self._in_round
                or not all(self._is_waiting(i, now) for i in range(len(self._statuses)))
            ):
                return False
            if not awaited and _WorkerStatus.AT_GATE not in self._statuses:
                return False
            self._in_round = True
            return True

    def leave(self) -> None:
        """End the round, complete or not, and release the waiting workers."""
        with self._changed:
            self._in_round = False
            for index, status in enumerate(self._statuses):
                if status is _WorkerStatus.AT_GATE:
                    self._statuses[index] = _WorkerStatus.WORKING
            self._changed.notify_all()

    def open(self) -> None:
        """Open the gate for good; no worker waits any more."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    @property
    def has_waiting_worker(self) -> bool:
        with self._changed:
            return _WorkerStatus.AT_GATE in self._statuses

    def _is_waiting(self, index: int, now: float) -> bool:
        status = self._statuses[index]
        if status is _WorkerStatus.STARVED:
            return now - self._starved_since[index] >= STARVED_SECONDS
        return status is _WorkerStatus.AT_GATE
