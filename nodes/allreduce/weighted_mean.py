"""The weighted mean of a few float32 arrays, exact to float32 rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...pipeline.types import Float32Array

# What fits into the fastest caches; small enough calls cost more than they save.
BLOCK = 16_384
HALVED_BLOCK = 65_536


class WeightedMean:
    """Means of equally long float32 arrays, summed in their order in float64, block by block.

    Two arrays that count the same are summed in float32 and halved, which rounds just as well; where that
    leaves the range of float32 although the mean does not, float64 is used.
    """

    def __init__(self) -> None:
        self._sum = np.empty(BLOCK)
        self._term = np.empty(BLOCK)

    def into(self, out: Float32Array, parts: Sequence[Float32Array], weights: Sequence[float]) -> None:
        """Writes the mean of `parts` into `out`, which is none of them. With all weights 0, all count the
        same."""
        largest = max(weights)
        # Scaled by a power of two, so that sums are finite and nothing is rounded.
        exponent = math.frexp(largest)[1]
        shares = [math.ldexp(weight, -exponent) for weight in weights] if largest > 0 else [1.0] * len(parts)
        # Infinite and NaN values give infinite and NaN means, as arithmetic has it; that is no news here.
        with np.errstate(over="ignore", invalid="ignore"):
            if len(parts) == 2 and shares[0] == shares[1] and self._halved(out, *parts):
                return
            for at in range(0, len(out), BLOCK):
                self._block(out, parts, shares, at, min(at + BLOCK, len(out)))

    def _halved(self, out: Float32Array, one: Float32Array, other: Float32Array) -> bool:
        half, finite = np.float32(0.5), True
        for at in range(0, len(out), HALVED_BLOCK):
            block = out[at : at + HALVED_BLOCK]
            np.add(one[at : at + HALVED_BLOCK], other[at : at + HALVED_BLOCK], out=block)
            np.multiply(block, half, out=block)
            # Not finite if any of them isn't; seldom otherwise. Several times as fast as asking each.
            finite = finite and math.isfinite(block.sum())
        return finite

    def _block(
        self, out: Float32Array, parts: Sequence[Float32Array], shares: Sequence[float], at: int, stop: int
    ) -> None:
        total, term = self._sum[: stop - at], self._term[: stop - at]
        for number, (part, share) in enumerate(zip(parts, shares, strict=True)):
            into = term if number else total
            np.multiply(part[at:stop], share, out=into, dtype=np.float64)
            if number:
                np.add(total, term, out=total)
        np.divide(total, sum(shares), out=total)
        out[at:stop] = total
