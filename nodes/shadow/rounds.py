"""Counting rounds and the sync gap of one trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class RoundCounter:
    """Rounds, gaps and seconds of one trainer. Any of its threads may call.

    The sync gap is the number of iterations of the whole trainer between two completed rounds.

    Args:
        iterations: gives the trainer's iterations so far, over all its workers.
    """

    def __init__(self, iterations: Callable[[], int]) -> None:
        self._iterations = iterations
        self._lock = threading.Lock()
        self._rounds = 0
        self._incomplete = 0
        self._gap_sum = 0
        self._gap_max = 0
        self._seconds = 0.0
        self._cpu_seconds = 0.0
        self._synced_iterations = 0
        self._at_last_round = 0

    def completed(
        self, started_iterations: int, seconds: float, cpu_seconds: float, ended_iterations: int | None = None
    ) -> None:
        """A round is complete; it carried the replica as it was at `started_iterations`. `ended_iterations`
        is when it was, if that is not now."""
        with self._lock:
            # Of two workers' rounds the later one may be told first.
            now = max(
                self._iterations() if ended_iterations is None else ended_iterations, self._at_last_round
            )
            gap = now - self._at_last_round
            self._rounds += 1
            self._gap_sum += gap
            self._gap_max = max(self._gap_max, gap)
            self._seconds += seconds
            self._cpu_seconds += cpu_seconds
            self._at_last_round = now
            self._synced_iterations = max(self._synced_iterations, started_iterations)

    def incomplete(self) -> None:
        """A round ended without all of its slices."""
        with self._lock:
            self._incomplete += 1

    def metrics(self) -> dict[str, Any]:
        """The counts so far. The open gap, since the last round, counts toward the maximum."""
        with self._lock:
            open_gap = self._iterations() - self._at_last_round
            return {
                "rounds": self._rounds,
                "incomplete_rounds": self._incomplete,
                "gap_sum": self._gap_sum,
                "gap_max": max(self._gap_max, open_gap),
                "gap_open": open_gap,
                "round_seconds": self._seconds,
                "round_cpu_seconds": self._cpu_seconds,
                "synced_iterations": self._synced_iterations,
            }
