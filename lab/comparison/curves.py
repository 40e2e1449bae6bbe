"""The mean of several runs' curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...pipeline.report.rendering.curves import with_breaks
from ...pipeline.report.tables.placement import Point

POINTS = 120

Floats = npt.NDArray[np.float64]


def from_start(curve: Sequence[Point]) -> list[Point]:
    """Shift the curve to start at 0: processes start at different times."""
    first = min((x for x, _ in curve), default=0.0)
    return [(x - first, y) for x, y in curve]


def mean_curve(curves: Sequence[Sequence[Point]]) -> tuple[Floats, Floats]:
    """Average curves over the part that all have, with linear interpolation.

    A curve does not count in its pauses; y is NaN where all pause. Returns x and y, both empty if the curves
    do not overlap.
    """
    known = [np.asarray(with_breaks(curve), dtype=np.float64) for curve in curves if curve]
    nothing = np.empty(0)
    if not known:
        return nothing, nothing
    low = max(curve[:, 0].min() for curve in known)
    high = min(curve[:, 0].max() for curve in known)
    if low > high:
        return nothing, nothing
    grid = np.linspace(low, high, POINTS) if high > low else np.array([low])
    values = np.array([np.interp(grid, curve[:, 0], curve[:, 1]) for curve in known])
    counts = (~np.isnan(values)).sum(axis=0)
    return grid, np.where(counts > 0, np.nansum(values, axis=0) / np.maximum(counts, 1), np.nan)
