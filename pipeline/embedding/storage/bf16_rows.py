"""Rows in bfloat16, rounded stochastically, seen as float32.

Stochastic rounding goes up or down at random, so that the mean is the value itself. Rounding to nearest
always loses a step smaller than half the distance to the next bfloat16. Stochastic rounding takes such a step
to the next bfloat16, with the probability step / distance. Source: Gupta et al.: Deep Learning with Limited
Numerical Precision (arXiv 1502.02551), section 3.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.hashing import GOLDEN_RATIO, MASK, mix

BFLOAT16_MAX: Final = torch.finfo(torch.bfloat16).max

WORDS_PER_ROW = 1024
"""64-bit words of random bits a row, each for four floats."""


RowNumbers: TypeAlias = NDArray[np.int64] | NDArray[np.uint64]
"""int64 [M], at least 0, or uint64 [M]: what tells rows apart."""


def rounding_bits(key: int, rows: RowNumbers, dim: int) -> NDArray[np.int32]:
    """Return 16 random bits for each float: int32 [M, dim], in [0, 65536).

    The bits depend only on (key, row, float), not on other rows. They are hashes of counters, see
    `data/hashing.py`.

    Args:
        key: 64 bits, different for each step.
        rows: the number of each row.
        dim: floats in a row, at most 4096.
    """
    words = (dim + 3) // 4
    # (row * WORDS_PER_ROW + key + word) * GOLDEN_RATIO, term by term, for one product a row instead of one a
    # word.
    counters = rows.astype(np.uint64)
    counters *= np.uint64(WORDS_PER_ROW * GOLDEN_RATIO & MASK)
    counters += np.uint64(key * GOLDEN_RATIO & MASK)
    bits = np.empty((len(rows), words), np.uint64)
    # Column by column, because loops over a row's few words are slow.
    for word in range(words):
        np.add(counters, np.uint64(word * GOLDEN_RATIO & MASK), out=bits[:, word])
    mix(bits, np.empty_like(bits))
    # As little-endian, so that the byte order of the machine changes no value.
    return bits.astype("<u8", copy=False).view("<u2")[:, :dim].astype(np.int32)


def round_at_random(values: torch.Tensor, bits: NDArray[np.int32]) -> torch.Tensor:
    """Round float32 [M, dim] stochastically to bfloat16 bits, int16 [M, dim].

    `values` must be contiguous, and is overwritten. `bits` are those of `rounding_bits`. They are added to
    the lower half of each float, which bfloat16 lacks, and carry into the upper half with a probability
    proportional to the lower half. The sign is separate, so negative numbers are rounded in the same way.
    Values that bfloat16 can represent do not change, infinities included. A value beyond its largest may
    become infinity.
    """
    whole = values.view(torch.int32)
    whole += torch.from_numpy(bits)
    whole >>= 16
    return whole.to(torch.int16)


def add_at_random(values: torch.Tensor, steps: torch.Tensor, rows: RowNumbers, key: int) -> torch.Tensor:
    """Return the bits, int16 [M, dim], of rows of bfloat16 after steps, rounded stochastically.

    Args:
        values: [M, dim], the rows before, of a type with at least bfloat16's values.
        steps: float32 [M, dim], contiguous; overwritten.
        rows, key: see `rounding_bits`.
    """
    steps += values
    # Rounding would turn a finite value beyond the largest bfloat16 into infinity.
    steps.clamp_(-BFLOAT16_MAX, BFLOAT16_MAX)
    return round_at_random(steps, rounding_bits(key, rows, steps.shape[1]))


class WidenedRows:
    """Show bfloat16 bits, uint16 [rows, dim], as float32 [rows, dim].

    Reading is exact. Writing rounds to the nearest, ties to even. The owner of the bits decides which thread
    may call.
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

    def __getitem__(self, rows: slice) -> WidenedRows:
        return WidenedRows(self.bits[rows])

    def __setitem__(self, rows: slice | NDArray[np.int64], values: NDArray[np.float32]) -> None:
        self.bits[rows] = nearest_bits(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("bfloat16 cannot be shown as float32 without a copy")
        whole = self.bits.astype(np.uint32)
        whole <<= 16
        return whole.view(np.float32).astype(dtype or np.float32, copy=False)

    def take(self, rows: NDArray[np.int64], axis: int = 0, mode: Literal["clip"] = "clip") -> WidenedRows:
        """Return copies of rows, as NumPy's `take` does, still in bfloat16."""
        return WidenedRows(self.bits.take(rows, axis=axis, mode=mode))

    def copy(self) -> WidenedRows:
        """Return a copy, still in bfloat16."""
        return WidenedRows(self.bits.copy())


def nearest_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # The same as `c10::detail::round_to_nearest_even` of torch.
    rounded = (whole + (np.uint32(0x7FFF) + ((whole >> 16) & np.uint32(1)))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
