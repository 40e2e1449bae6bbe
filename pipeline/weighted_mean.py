"""The weighted mean of arrays, block by block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .types import Float32Array, is_finite

# Three arrays of this length fit into the fastest caches; with shorter ones the calls cost more.
BLOCK = 16_384
HALVED_BLOCK = 65_536


class WeightedMean:
    """The weighted mean of float32 arrays of equal length.

    With b the array of the largest weight, it is b plus the weighted mean of the differences from b, in
    float32. So equal arrays have themselves as their mean, and where arrays are near each other, as replicas
    are, the error is that of one rounding: for n arrays x at most 2^-24 (|mean| + (n + 2) max |x - b|). Two
    arrays of equal weight are summed and halved. If that overflows, the mean is computed in float64.
    """

    def __init__(self) -> None:
        self._sum = np.empty(BLOCK, dtype=np.float32)
        self._term = np.empty(BLOCK, dtype=np.float32)

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
            if len(parts) == 2 and shares[0] == shares[1]:
                finite = _halve(out, *parts)
            else:
                finite = self._add_differences(out, parts, shares)
            if not finite:
                _in_float64(out, parts, shares)

    def _add_differences(
        self, out: Float32Array, parts: Sequence[Float32Array], shares: Sequence[float]
    ) -> bool:
        """Return whether all means are finite."""
        largest, total = shares.index(max(shares)), sum(shares)
        base = parts[largest]
        others = [
            (part, np.float32(share / total))
            for number, (part, share) in enumerate(zip(parts, shares, strict=True))
            if number != largest
        ]
        finite = True
        for start in range(0, len(out), BLOCK):
            part = slice(start, min(start + BLOCK, len(out)))
            difference, term = self._sum[: part.stop - start], self._term[: part.stop - start]
            difference[:] = 0
            for values, share in others:
                np.subtract(values[part], base[part], out=term)
                np.multiply(term, share, out=term)
                np.add(difference, term, out=difference)
            block = np.add(base[part], difference, out=out[part])
            finite = finite and is_finite(block)
        return finite


def _halve(out: Float32Array, first: Float32Array, second: Float32Array) -> bool:
    half, finite = np.float32(0.5), True
    for start in range(0, len(out), HALVED_BLOCK):
        block = out[start : start + HALVED_BLOCK]
        np.add(first[start : start + HALVED_BLOCK], second[start : start + HALVED_BLOCK], out=block)
        np.multiply(block, half, out=block)
        finite = finite and is_finite(block)
    return finite


def _in_float64(out: Float32Array, parts: Sequence[Float32Array], shares: Sequence[float]) -> None:
    for start in range(0, len(out), BLOCK):
        block = slice(start, start + BLOCK)
        total = parts[0][block] * np.float64(shares[0])
        for part, share in zip(parts[1:], shares[1:], strict=True):
            total += part[block] * np.float64(share)
        out[block] = total / sum(shares)
