"""The change epochs of rows that are in memory or in a file."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....types import IndexArray, Int32Array
from ..changed_rows import BLOCK_ROWS, Fetch
from .row_cache import ABSENT

LIST_ROWS: Final = 32
"""An array of few rows takes as much memory as one of so many more."""

MOST_BITMAPS: Final = 2
"""Bitmaps that are kept; of those before the newest one the epochs are no longer told apart."""

_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class ReplacedChanges:
    """Rows that changed and then made way: a state machine without I/O.

    They are listed by the change epoch of their last change. Once the lists take more memory than half a bit
    for each row, the oldest of them become a bitmap of their epoch. Of many bitmaps the two oldest become
    one, which counts as if all of its rows had changed in the newer of both epochs: more rows are found then,
    never fewer, and none that changed before the last epoch is taken for one that changed in it.

    Args:
        rows: number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lists: list[tuple[int, Int32Array]] = []
        self._listed = 0
        self._bitmaps: dict[int, NDArray[np.uint8]] = {}

    def add(self, rows: Int32Array, epochs: NDArray[np.uint8]) -> None:
        """Note the epochs, at least 1, of the last changes of rows int32 [N]."""
        for epoch in np.unique(epochs).tolist():
            some = rows[epochs == epoch]
            self._lists.append((epoch, some))
            self._listed += len(some) + LIST_ROWS
        most = self._rows // 64
        if self._listed > most:
            self._shorten(most // 2)

    def forget(self) -> None:
        """Have no rows."""
        self._lists, self._listed, self._bitmaps = [], 0, {}

    def count(self, change_epoch: int) -> int:
        """Return how many rows changed after `change_epoch`, or more: some are counted twice."""
        bitmaps = (bits for epoch, bits in self._bitmaps.items() if epoch > change_epoch)
        counted = sum(int(_ONES.take(bits).sum(dtype=np.int64)) for bits in bitmaps)
        return counted + sum(len(rows) for epoch, rows in self._lists if epoch > change_epoch)

    def bitmap(self, change_epoch: int) -> NDArray[np.uint8]:
        """Return a bit for each row, uint8 [rows / 8], set for those that changed after `change_epoch`."""
        found = self._empty()
        for epoch, bits in self._bitmaps.items():
            if epoch > change_epoch:
                found |= bits
        for epoch, rows in self._lists:
            if epoch > change_epoch:
                set_bits(found, rows)
        return found

    def _shorten(self, most: int) -> None:
        """Make bitmaps of the oldest lists until the others take at most so much."""
        self._lists.sort(key=lambda entry: entry[0])
        while self._listed > most:
            epoch, rows = self._lists.pop(0)
            self._listed -= len(rows) + LIST_ROWS
            if epoch not in self._bitmaps:
                self._bitmaps[epoch] = self._empty()
            set_bits(self._bitmaps[epoch], rows)
        while len(self._bitmaps) > MOST_BITMAPS:
            oldest, next_one = sorted(self._bitmaps)[:2]
            self._bitmaps[next_one] |= self._bitmaps.pop(oldest)

    def _empty(self) -> NDArray[np.uint8]:
        return np.zeros(-(-self._rows // 8), np.uint8)


class CachedChanges:
    """The change epochs of cached rows; see `ChangeEpochs`.

    Args:
        rows: number of rows.
        row_of: int32 [places], see `RowCache.row_of`.

    Attributes:
        changed_at: uint8 [places], the epoch of the last change since a row has its place; 0 if memory has
            the values of the file. Written by the thread of the row.
        replaced: rows that changed and made way.
    """

    def __init__(self, rows: int, row_of: Int32Array) -> None:
        self._row_of = row_of
        self.changed_at: NDArray[np.uint8] = np.zeros(len(row_of), np.uint8)
        self.replaced = ReplacedChanges(rows)

    def mark(self, rows: IndexArray | Int32Array, change_epoch: int) -> None:
        self.replaced.add(rows.astype(np.int32), np.full(len(rows), change_epoch, np.uint8))

    def forget(self) -> None:
        self.replaced.forget()
        # Their values are not in the file, and nobody asks for what changed after epoch 0.
        np.minimum(self.changed_at, 1, out=self.changed_at)

    def count(self, change_epoch: int) -> int:
        return int(np.count_nonzero(self.changed_at > change_epoch)) + self.replaced.count(change_epoch)

    def rows(self, change_epoch: int, fetch: Fetch) -> NDArray[np.int64]:
        places = range(0, len(self.changed_at), BLOCK_ROWS)
        found = [fetch(partial(self._in_block, start, change_epoch)) for start in places]
        # After those in memory, because a row may make way between two steps.
        bits = fetch(partial(self.replaced.bitmap, change_epoch))
        for rows in found:
            set_bits(bits, rows)
        return _set_in(bits)

    def _in_block(self, start: int, change_epoch: int) -> Int32Array:
        stop = start + BLOCK_ROWS
        rows = self._row_of[start:stop][self.changed_at[start:stop] > change_epoch]
        found: Int32Array = rows[rows != ABSENT]
        return found


def set_bits(bits: NDArray[np.uint8], rows: Int32Array) -> None:
    """Set the bits of rows int32 [N], repeats allowed."""
    np.bitwise_or.at(bits, rows >> 3, np.uint8(1) << (rows & 7).astype(np.uint8))


def _set_in(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the numbers of the set bits, int64 [N], ascending."""
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for start in range(0, len(bits), BLOCK_ROWS // 8):
        block = np.unpackbits(bits[start : start + BLOCK_ROWS // 8], bitorder="little")
        found.append(np.flatnonzero(block) + 8 * start)
    return np.concatenate(found)
