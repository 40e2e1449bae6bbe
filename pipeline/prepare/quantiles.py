"""Quantiles of numbers in bounded memory: a histogram whose bins are the numbers of 8 significant bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .value_counts import ValueCounts

_BINS: Final = 1 << 16
_SIGN: Final = np.uint32(0x8000_0000)
RELATIVE_ERROR: Final = 2.0**-7
"""Of a quantile: it is at most so far nearer to 0 than the number it stands for. Whole numbers up to 256 are
exact."""


class Quantiles:
    """Of float32 numbers, none of them NaN.

    Attributes:
        counts: by bin, the upper half of the bits of a float32 made to rise with the number.
    """

    def __init__(self, counts: ValueCounts | None = None) -> None:
        self.counts = ValueCounts(_BINS) if counts is None else counts

    def add(self, values: NDArray[np.float32]) -> None:
        """Adds float32 [n]."""
        bits = (values + np.float32(0)).view(np.uint32)
        # Negative numbers rise as their bits fall.
        rising = np.where(bits & _SIGN, ~bits, bits | _SIGN)
        found = np.bincount(rising >> np.uint32(16), minlength=_BINS)
        keys = np.flatnonzero(found)
        self.counts.add(keys.astype(np.uint64), found[keys])

    def at(self, fractions: Sequence[float]) -> list[float]:
        """The number below or at which each fraction of all lies; nothing for no numbers."""
        total = int(self.counts.counts.sum())
        if not total:
            return []
        reached = np.cumsum(self.counts.counts)
        places = np.searchsorted(reached, np.ceil(np.array(fractions) * total).clip(1), side="left")
        rising = self.counts.keys[places].astype(np.uint32) << np.uint32(16)
        # Of a bin the number nearest to 0, which has zeros in the lower half.
        bits: NDArray[np.uint32] = np.where(rising & _SIGN, rising ^ _SIGN, ~rising & np.uint32(0xFFFF_0000))
        found: list[float] = bits.view(np.float32).astype(float).tolist()
        return found
