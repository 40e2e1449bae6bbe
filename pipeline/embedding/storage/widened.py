"""bfloat16 rows that are read and written as float32. Knows no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class WidenedRows:
    """The rows of bfloat16 bits, uint16 [rows, dim], as an array of float32 [rows, dim] would show them.

    Reading is exact. Writing rounds to the nearest, ties to even. Owned by whoever owns the bits.
    """

    dtype: np.dtype[Any] = np.dtype(np.float32)
    itemsize = 4
    ndim = 2

    def __init__(self, bits: NDArray[np.uint16]) -> None:
        self.bits = bits

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, dim]."""
        return self.bits.shape

    @property
    def nbytes(self) -> int:
        """Of the float32 that they show: what they take in a file."""
        return 2 * self.bits.nbytes

    def __len__(self) -> int:
        return len(self.bits)

    def __getitem__(self, rows: slice) -> WidenedRows:
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
        """In memory of their own, as bfloat16."""
        return WidenedRows(self.bits.copy())


def nearest_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; what is no number stays none."""
    whole = np.ascontiguousarray(values, np.float32).view(np.uint32)
    # As `c10::detail::round_to_nearest_even` of torch does it.
    rounded = (whole + (np.uint32(0x7FFF) + ((whole >> 16) & np.uint32(1)))) >> 16
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
