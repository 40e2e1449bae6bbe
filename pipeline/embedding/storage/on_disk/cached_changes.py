"""The change epochs of rows that are in memory or in a file."""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....types import IndexArray, Int32Array
from ..changed_rows import BLOCK_ROWS, Fetch
from .row_bits import RowBits
from .row_cache import ABSENT

LIST_ROWS: Final = 32
"""An array of few rows takes as much memory as one of so many more."""

MOST_BITMAPS: Final = 2
"""Bitmaps that are kept; of those before the newest one the epochs are no longer told apart."""


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
        self._bitmaps: dict[int, RowBits] = {}

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
        return sum(bits.count() for bits in bitmaps) + sum(
            len(rows) for epoch, rows in self._lists if epoch > change_epoch
        )

    def after(self, change_epoch: int) -> RowBits:
        changed = RowBits(self._rows)
        for epoch, bits in self._bitmaps.items():
            if epoch > change_epoch:
                changed.bits |= bits.bits
        for epoch, rows in self._lists:
            if epoch > change_epoch:
                changed.add(rows)
        return changed

    def _shorten(self, most: int) -> None:
        """Make bitmaps of the oldest lists until the others take at most so much."""
        self._lists.sort(key=lambda entry: entry[0])
        while self._listed > most:
            epoch, rows = self._lists.pop(0)
            self._listed -= len(rows) + LIST_ROWS
            if epoch not in self._bitmaps:
                self._bitmaps[epoch] = RowBits(self._rows)
            self._bitmaps[epoch].add(rows)
        while len(self._bitmaps) > MOST_BITMAPS:
            oldest, next_one = sorted(self._bitmaps)[:2]
            self._bitmaps[next_one].bits |= self._bitmaps.pop(oldest).bits


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
        self._rows, self._row_of = rows, row_of
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
        in_memory = [fetch(partial(self._in_block, start, change_epoch)) for start in places]
        changed = RowBits(self._rows)
        # After those in memory, because a row may make way between two steps.
        changed.bits |= fetch(lambda: self.replaced.after(change_epoch).bits)
        for rows in in_memory:
            changed.add(rows)
        return changed.numbers()

    def _in_block(self, start: int, change_epoch: int) -> Int32Array:
        stop = start + BLOCK_ROWS
        rows = self._row_of[start:stop][self.changed_at[start:stop] > change_epoch]
        changed: Int32Array = rows[rows != ABSENT]
        return changed
