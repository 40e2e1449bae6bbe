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


def is_mean(found: Values, parts: Sequence[Values], weights: Sequence[float]) -> bool:
    """Whether float32 values are the mean within the error that `WeightedMean` states."""
    exact = exact_mean(parts, weights)
    base = parts[list(weights).index(max(weights))].astype(np.float64)
    apart = np.max([np.abs(part - base) for part in parts], axis=0)
    bound = (np.abs(exact) + (len(parts) + 2) * apart) / 2**24
    return bool((np.abs(found.astype(np.float64) - exact) <= bound + np.finfo(np.float32).tiny).all())
