"""A bit for each row."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....types import Int32Array, Mask

_BLOCK_BYTES: Final = 1 << 15
_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class RowBits:
    """A set of rows that takes a bit for each row that there is; used by one thread.

    Args:
        rows: number of rows.

    Attributes:
        bits: uint8 [rows / 8]; sets of as many rows are joined by |=.
    """

    def __init__(self, rows: int) -> None:
        self.bits: NDArray[np.uint8] = np.zeros(-(-rows // 8), np.uint8)

    def has(self, rows: Int32Array) -> Mask:
        """Return which of rows int32 [N] are in the set."""
        mask: Mask = (self.bits[rows >> 3] >> (rows & 7).astype(np.uint8) & 1).astype(np.bool_)
        return mask

    def add(self, rows: Int32Array) -> None:
        """Add rows int32 [N], repeats allowed."""
        np.bitwise_or.at(self.bits, rows >> 3, _bit_of(rows))

    def remove(self, rows: Int32Array) -> None:
        """Remove rows int32 [N], repeats allowed, whether they are there or not."""
        np.bitwise_and.at(self.bits, rows >> 3, ~_bit_of(rows))

    def count(self) -> int:
        """Return how many rows are in the set."""
        return int(_ONES.take(self.bits).sum(dtype=np.int64))

    def numbers(self) -> NDArray[np.int64]:
        """Return the rows in the set, int64 [N], ascending."""
        rows: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        for start in range(0, len(self.bits), _BLOCK_BYTES):
            block = np.unpackbits(self.bits[start : start + _BLOCK_BYTES], bitorder="little")
            rows.append(np.flatnonzero(block) + 8 * start)
        return np.concatenate(rows)


def _bit_of(rows: Int32Array) -> NDArray[np.uint8]:
    return np.uint8(1) << (rows & 7).astype(np.uint8)
