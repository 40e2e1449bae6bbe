"""Rows in bfloat16, rounded stochastically, seen as float32.

Stochastic rounding goes up or down at random, so that the mean is the value itself. A step smaller than half
the distance to the next bfloat16 is always lost by rounding to nearest; here it is taken with the probability
of its part of that distance. Source: Gupta et al.: Deep Learning with Limited Numerical Precision (arXiv
1502.02551), section 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.hashing import GOLDEN_RATIO, MASK, mix

WORDS_PER_ROW = 1024
"""64-bit words of random bits a row, each for four floats."""


def rounding_bits(key: int, rows: NDArray[np.int64], dim: int) -> NDArray[np.int32]:
    """Return 16 random bits for each float.

    int32 [M, dim], in [0, 65536). A function of (key, row, float) alone, not of the other rows. Uses the hash
    of `data/hashing.py` over counters.

    Args:
        key: 64 bits, different for each step.
        rows: int64 [M], at least 0.
        dim: floats in a row, at most 4096.
    """
    words = (dim + 3) // 4
    # (row * WORDS_PER_ROW + key + word) * GOLDEN_RATIO, term by term: one product a row and not one a word.
    counters = rows.astype(np.uint64)
    counters *= np.uint64(WORDS_PER_ROW * GOLDEN_RATIO & MASK)
    counters += np.uint64(key * GOLDEN_RATIO & MASK)
    bits = np.empty((len(rows), words), np.uint64)
    # By columns: a row's few words would make a loop of their own each.
    for word in range(words):
        np.add(counters, np.uint64(word * GOLDEN_RATIO & MASK), out=bits[:, word])
    mix(bits, np.empty_like(bits))
    # The quarters by their weight, not their address, so that byte order changes no value.
    return bits.astype("<u8", copy=False).view("<u2")[:, :dim].astype(np.int32)


def round_at_random(values: torch.Tensor, bits: NDArray[np.int32]) -> torch.Tensor:
    """Return bfloat16 bits, int16 [M, dim], of float32 [M, dim].

    `values` must be contiguous, and is overwritten.

    Added to the lower half of a float, which bfloat16 lacks, the bits carry into the upper half with a
    probability proportional to the lower half. The sign is separate, so negative numbers are rounded alike.
    Values of bfloat16 do not change, infinities included; one beyond the largest may become infinity.
    """
    whole = values.view(torch.int32)
    whole += torch.from_numpy(bits)
    whole >>= 16
    return whole.to(torch.int16)


class WidenedRows:
    """Show bfloat16 bits, uint16 [rows, dim], as float32 [rows, dim].

    Reading is exact. Writing rounds to the nearest, ties to even. Owned by whoever owns the bits.
    """

    dtype: np.dtype[Any] = np.dtype(np.float32)
    itemsize = 4
    ndim = 2

    def __init__(self, bits: NDArray[np.uint16]) -> None:
        self.bits = bits

    @property
    def shape(self) -> tuple[int, ...]:
        """Return [rows, dim]."""
        return self.bits.shape

    @property
    def nbytes(self) -> int:
        """Return the bytes of the float32 values, as in a file."""
        return 2 * self.bits.nbytes

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> WidenedRows:
        return WidenedRows(self.bits[rows])

    def __setitem__(self, rows: slice, values: NDArray[np.float32]) -> None:
        self.bits[rows] = nearest_bits(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("bfloat16 cannot be shown as float32 without a copy")
        whole = self.bits.astype(np.uint32)
        whole <<= 16
        return whole.view(np.float32).astype(dtype or np.float32, copy=False)

    def copy(self) -> WidenedRows:
        """Return a copy in memory of its own, as bfloat16."""
        return WidenedRows(self.bits.copy())


def nearest_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the nearest bfloat16's bits, ties to even; keep NaN."""
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # As `c10::detail::round_to_nearest_even` of torch does it.
    rounded = (whole + (np.uint32(0x7FFF) + ((whole >> 16) & np.uint32(1)))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
