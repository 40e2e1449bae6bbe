"""The exact mean, and whether a float32 is the nearest one to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]


def exact_mean(parts: Sequence[Values], weights: Sequence[float]) -> NDArray[np.float64]:
    """In as many digits as it takes; float64 [n]."""
    total = math.fsum(weights)
    shares = weights if total > 0 else [1.0] * len(parts)
    columns = zip(*(part.astype(np.float64).tolist() for part in parts), strict=True)
    sums = [math.fsum(x * w for x, w in zip(column, shares, strict=True)) for column in columns]
    return np.array(sums) / math.fsum(shares)


def is_rounded(found: Values, exact: NDArray[np.float64]) -> bool:
    """Whether float32 values are those nearest to exact ones (ties and float64's own error aside)."""
    ulp = np.spacing(np.abs(exact.astype(np.float32))).astype(np.float64)
    return bool((np.abs(found.astype(np.float64) - exact) <= ulp * (0.5 + 1e-6)).all())
