"""The weighted mean of arrays, block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .types import Float32Array

# Fits into the fastest caches; with smaller blocks the calls cost more than the cache saves.
BLOCK = 16_384
HALVED_BLOCK = 65_536


class WeightedMean:
    """The weighted mean of float32 arrays of equal length, exact to float32 rounding.

    The arrays are summed in their order in float64, block by block. Two arrays of equal weight are summed in
    float32 and halved, which rounds just as well; if that sum overflows float32, float64 is used.
    """

    def __init__(self) -> None:
        self._sum = np.empty(BLOCK)
        self._term = np.empty(BLOCK)

    def into(self, out: Float32Array, parts: Sequence[Float32Array], weights: Sequence[float]) -> None:
        """Write the mean of `parts` into `out`, which must not be one of them.

        If all weights are 0, they count as equal.
        """
        largest = max(weights)
        # Scaled by a power of two, so that sums are finite and nothing is rounded.
        exponent = math.frexp(largest)[1]
        shares = [math.ldexp(weight, -exponent) for weight in weights] if largest > 0 else [1.0] * len(parts)
        # Infinite and NaN values give infinite and NaN means; that is expected, so no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            if len(parts) == 2 and shares[0] == shares[1] and self._halved(out, *parts):
                return
            for start in range(0, len(out), BLOCK):
                self._block(out, parts, shares, start, min(start + BLOCK, len(out)))

    def _halved(self, out: Float32Array, first: Float32Array, second: Float32Array) -> bool:
        half, finite = np.float32(0.5), True
        for start in range(0, len(out), HALVED_BLOCK):
            block = out[start : start + HALVED_BLOCK]
            np.add(first[start : start + HALVED_BLOCK], second[start : start + HALVED_BLOCK], out=block)
            np.multiply(block, half, out=block)
            # The sum is not finite if an element isn't, rarely otherwise; several times faster than isfinite.
            finite = finite and math.isfinite(block.sum())
        return finite

    def _block(
        self, out: Float32Array, parts: Sequence[Float32Array], shares: Sequence[float], start: int, stop: int
    ) -> None:
        total, term = self._sum[: stop - start], self._term[: stop - start]
        for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
            into = term if number else total
            np.multiply(part[start:stop], share, out=into, dtype=np.float64)
            if number:
                np.add(total, term, out=total)
        np.divide(total, sum(shares), out=total)
        out[start:stop] = total
