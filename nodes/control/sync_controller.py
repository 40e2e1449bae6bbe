"""Automatic synchronization settings of a job, from samples of its replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...pipeline.config.sections import SyncSection
from ...pipeline.report.adaptation import Control
from ...pipeline.types import Float32Array
from .divergence import squared_distances
from .sync_law import ControlSample, SyncLaw, SyncSettings

HORIZON_ITERATIONS: Final = 20
"""Iterations of a trainer over which the mean's movement is compared with the replicas' distance.

Over the iterations of one round, the movement would grow with the gap just as the distance does, so their
ratio would say nothing about the gap (benchmarks/quality/results.md).
"""

SAMPLES_PER_HORIZON: Final = 5
# Samples cost each trainer a copy of 64 kB on its control thread.
SHORTEST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaPoint:
    """A sample of a replica, float32 [n], with its iterations and rounds."""

    values: Float32Array
    iterations: int
    rounds: int


class ReplicaMotion:
    """Ratio of the replicas' spread to the movement of their mean.

    The movement counts over HORIZON_ITERATIONS. If samples are further apart, the movement is scaled down in
    proportion. If the mean moved back and forth, the scaled movement is too small and the ratio too large,
    which errs on the safe side.
    """

    def __init__(self) -> None:
        # (iterations, mean), back to the last one before the horizon.
        self._means: deque[tuple[float, NDArray[np.float64]]] = deque()

    def add(self, iterations: float, replicas: list[Float32Array]) -> float | None:
        """Add a sample of all replicas; return the ratio, if known."""
        mean, squares = squared_distances(replicas)
        self._means.append((iterations, mean))
        while len(self._means) > 1 and iterations - self._means[1][0] >= HORIZON_ITERATIONS:
            self._means.popleft()
        then, before = self._means[0]
        if iterations - then < HORIZON_ITERATIONS:
            return None
        moved = float(np.linalg.norm(mean - before)) * HORIZON_ITERATIONS / (iterations - then)
        distance = float(np.sqrt(squares).mean())
        return distance / moved if moved else None

    def forget(self) -> None:
        """Forget the samples so far."""
        self._means.clear()


class SyncController:
    """Controller of a job's synchronization.

    Args:
        elastic: see `Algorithm.elastic`.
    """

    def __init__(self, sync: SyncSection, elastic: tuple[float, float] | None) -> None:
        self._controller = SyncLaw(sync, elastic)
        self._motion = ReplicaMotion()
        self._names: set[str] = set()
        self._last = (0.0, 0.0)
        self.pause_seconds = SHORTEST_PAUSE_SECONDS

    @property
    def settings(self) -> SyncSettings:
        """The settings that trainers and sync nodes should have now."""
        return self._controller.settings

    def add(self, seconds: float, replicas: Mapping[str, ReplicaPoint]) -> bool:
        """Add samples of all replicas, by trainer; return whether the settings have changed.

        Also sets `pause_seconds`, the time until the next samples are wanted.
        """
        if set(replicas) != self._names:
            self._names = set(replicas)
            self._motion.forget()
            self._controller.forget_window()
        iterations = fmean(replica.iterations for replica in replicas.values())
        self._set_pause(seconds, iterations)
        ratio = self._motion.add(iterations, [replica.values for replica in replicas.values()])
        if ratio is None:
            return False
        rounds = fmean(replica.rounds for replica in replicas.values())
        return self._controller.sample(ControlSample(seconds, iterations, rounds, ratio))

    def report(self) -> Control:
        """Return the bound, what was reached, and the decisions."""
        return self._controller.report()

    def _set_pause(self, seconds: float, iterations: float) -> None:
        then, before = self._last
        self._last = (seconds, iterations)
        if iterations > before and seconds > then:
            ideal_seconds = (
                HORIZON_ITERATIONS / SAMPLES_PER_HORIZON * (seconds - then) / (iterations - before)
            )
            self.pause_seconds = min(max(ideal_seconds, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)


def control_of(
    sync: SyncSection, trainers: int, elastic: tuple[float, float] | None
) -> SyncController | None:
    """Return the job's controller; None if there is none."""
    return SyncController(sync, elastic) if sync.control == "auto" and trainers > 1 else None
