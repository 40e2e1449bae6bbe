"""The change epochs of rows that are in memory or in a file."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ....types import IndexArray, Int32Array
from ..changed_rows import BLOCK_ROWS, Fetch
from .row_cache import ABSENT

LIST_ROWS: Final = 32
"""An array of few rows takes as much memory as one of so many more."""

_ONES: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


class ReplacedChanges:
    """Rows that changed and then made way: a state machine without I/O.

    They are listed by the change epoch of their last change. Once the lists take more memory than a bit for
    each row, the oldest of them become such bits, which count as if all of these rows had changed in the
    newest epoch among them: more rows are found then, never fewer.

    Args:
        rows: number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lists: list[tuple[int, Int32Array]] = []
        self._listed = 0
        self._bits: NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._bits_epoch = 0

    def add(self, rows: Int32Array, epochs: NDArray[np.uint8]) -> None:
        """Note the epochs, at least 1, of the last changes of rows int32 [N]."""
        for epoch in np.unique(epochs).tolist():
            some = rows[epochs == epoch]
            self._lists.append((epoch, some))
            self._listed += len(some) + LIST_ROWS
        most = self._rows // 32
        if self._listed > most:
            self._shorten(most // 2)

    def forget(self) -> None:
        """Have no rows."""
        self._lists, self._listed = [], 0
        self._bits, self._bits_epoch = np.zeros(0, np.uint8), 0

    def count(self, change_epoch: int) -> int:
        """Return how many rows `listed` and `bits` have, those counted twice that they have twice."""
        counted = int(_ONES.take(self.bits(change_epoch)).sum(dtype=np.int64))
        return counted + sum(len(rows) for epoch, rows in self._lists if epoch > change_epoch)

    def listed(self, change_epoch: int) -> Int32Array:
        """Return rows that changed after `change_epoch`, int32 [N], in no order and with repeats."""
        found = [rows for epoch, rows in self._lists if epoch > change_epoch]
        return np.concatenate(found) if found else np.zeros(0, np.int32)

    def bits(self, change_epoch: int) -> NDArray[np.uint8]:
        """Return a bit for each row, uint8, which is set for further ones; empty if there are none."""
        return self._bits if self._bits_epoch > change_epoch else self._bits[:0]

    def _shorten(self, most: int) -> None:
        """Make bits of the oldest lists until the others take at most so much."""
        if not len(self._bits):
            self._bits = np.zeros(-(-self._rows // 8), np.uint8)
        self._lists.sort(key=lambda entry: entry[0])
        while self._listed > most:
            epoch = self._lists[0][0]
            some = [rows for other, rows in self._lists if other == epoch]
            self._lists = self._lists[len(some) :]
            for rows in some:
                self._listed -= len(rows) + LIST_ROWS
                np.bitwise_or.at(self._bits, rows >> 3, np.uint8(1) << (rows & 7).astype(np.uint8))
            self._bits_epoch = max(self._bits_epoch, epoch)


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
        found.append(fetch(partial(self.replaced.listed, change_epoch)))
        found.append(_rows_of_bits(fetch(lambda: self.replaced.bits(change_epoch).copy())))
        return np.unique(np.concatenate(found)).astype(np.int64)

    def _in_block(self, start: int, change_epoch: int) -> Int32Array:
        stop = start + BLOCK_ROWS
        rows = self._row_of[start:stop][self.changed_at[start:stop] > change_epoch]
        found: Int32Array = rows[rows != ABSENT]
        return found


def _rows_of_bits(bits: NDArray[np.uint8]) -> Int32Array:
    """Return the numbers of the set bits, int32 [N], ascending."""
    found: list[NDArray[Any]] = [np.zeros(0, np.int32)]
    for start in range(0, len(bits), BLOCK_ROWS):
        set_bits = np.unpackbits(bits[start : start + BLOCK_ROWS], bitorder="little")
        found.append((np.flatnonzero(set_bits) + 8 * start).astype(np.int32))
    return np.concatenate(found)
