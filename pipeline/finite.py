"""Whether all numbers of an array are finite."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether all values are finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    # The sum is not finite if an element isn't, rarely otherwise; several times faster than isfinite.
    return math.isfinite(total) or bool(np.isfinite(values).all())
