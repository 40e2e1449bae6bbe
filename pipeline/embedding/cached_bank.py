"""Copies of some rows of one bank of a node, each with the count of pushes that it was read at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.batch import Float32Array, Int32Array

Versions = NDArray[np.int64]

ABSENT = -1
# Knuth, The Art of Computer Programming, volume 3, 6.4: the golden ratio's share of 2**32.
MULTIPLIER = np.uint32(2654435769)


def slots_of(slots: int, rows: int) -> int:
    """How many slots a bank of so many rows has where so many are asked for: at least one."""
    return max(1, min(slots, rows))


def slot_bytes(dim: int) -> int:
    """Memory of one slot when it is filled: the row's number, its count of pushes, its floats."""
    return 4 + 8 + 4 * dim


class CachedBank:
    """A direct-mapped cache: a row has one slot, where the row that came last is. Owned by one thread.

    Args:
        slots: how many rows it holds at most; those of the whole bank at least need no more.
        rows: of the bank.
        dim: floats in a row.
    """

    def __init__(self, slots: int, rows: int, dim: int) -> None:
        self.slots = slots_of(slots, rows)
        self._direct = self.slots >= rows
        self._rows = np.full(self.slots, ABSENT, np.int32)
        self._versions = np.zeros(self.slots, np.int64)
        # Not touched before rows come, so that a large cache takes memory as it fills.
        self._values = np.empty((self.slots, dim), np.float32)

    def find(self, rows: Int32Array, oldest: int, out: Float32Array) -> Versions:
        """Copies what it has of `rows`, int32 [D], to `out`, float32 [D, dim], C-contiguous.

        Gives int64 [D]: the count of pushes that each copy was read at; ABSENT where there is none, or one
        from before `oldest`. What is in `out` there says nothing.
        """
        slots = self._slots_of(rows)
        np.take(self._values, slots, axis=0, out=out, mode="clip")
        versions = self._versions[slots]
        versions[(self._rows[slots] != rows) | (versions < oldest)] = ABSENT
        return versions

    def put(self, rows: Int32Array, values: Float32Array, version: int) -> None:
        """Keeps distinct rows int32 [D], `values` float32 [D, dim] of them, read at `version`."""
        slots = self._slots_of(rows)
        self._rows[slots] = rows
        # Of rows with one slot only one is in it.
        kept = self._rows[slots] == rows
        slots = slots[kept]
        self._values[slots] = values[kept]
        self._versions[slots] = version

    def _slots_of(self, rows: Int32Array) -> NDArray[np.intp]:
        if self._direct:
            return rows.astype(np.intp)
        mixed = rows.view(np.uint32) * MULTIPLIER
        # The upper bits of the product, scaled to the number of slots (Lemire, arXiv 1805.10941).
        return ((mixed.astype(np.uint64) * np.uint64(self.slots)) >> np.uint64(32)).astype(np.intp)
