"""How far the replicas are apart, chunk by chunk, without any node holding them all."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CHUNK_ELEMENTS = 1 << 18


class Divergence:
    """Sums for `‖w_i - mean‖ / ‖mean‖`, averaged over the replicas, in float64; fed chunk after chunk."""

    def __init__(self, replicas: int) -> None:
        self._distances = np.zeros(replicas, dtype=np.float64)
        self._mean_square = 0.0

    def add(self, chunks: Sequence[NDArray[np.float32]]) -> None:
        """The same elements of every replica, float32 [n] each."""
        stacked = np.stack(chunks).astype(np.float64)
        mean = stacked.mean(axis=0)
        self._distances += np.square(stacked - mean).sum(axis=1)
        self._mean_square += float(np.square(mean).sum())

    def value(self) -> float | None:
        """The divergence; None if the mean is zero."""
        if self._mean_square == 0.0:
            return None
        return float(np.mean(np.sqrt(self._distances))) / math.sqrt(self._mean_square)
