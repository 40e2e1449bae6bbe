"""Divergence of the replicas, computed chunk by chunk."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...pipeline.types import Float32Array

CHUNK_ELEMENTS = 1 << 18
"""Elements per chunk that a trainer is asked for."""
SAMPLED_ELEMENTS = 1 << 14
"""Most elements of a sample of each replica, evenly spread."""


class Divergence:
    """Sums, in float64, for the mean over replicas of `‖w_i - mean‖ / ‖mean‖`."""

    def __init__(self, replicas: int) -> None:
        self._distances = np.zeros(replicas, dtype=np.float64)
        self._mean_square = 0.0

    def add(self, chunks: Sequence[Float32Array]) -> None:
        """Add the same elements of every replica, float32 [n] each."""
        stacked = np.stack(chunks).astype(np.float64)
        mean = stacked.mean(axis=0)
        self._distances += np.square(stacked - mean).sum(axis=1)
        self._mean_square += float(np.square(mean).sum())

    def value(self) -> float | None:
        """Return the divergence; None if the mean is zero or anything is not finite."""
        if self._mean_square == 0.0:
            return None
        value = float(np.mean(np.sqrt(self._distances))) / math.sqrt(self._mean_square)
        return value if math.isfinite(value) else None


def divergence_of(replicas: Sequence[Float32Array]) -> float | None:
    """Return the divergence of samples, float32 [n] each; None without any, or as `Divergence.value`."""
    sums = Divergence(len(replicas))
    if replicas:
        sums.add(replicas)
    return sums.value()
