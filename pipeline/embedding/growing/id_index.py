"""An index from 64-bit keys to rows, for many keys at once.

Open addressing with linear probing (Knuth, The Art of Computer Programming, vol. 3, section 6.4, algorithm
L), in NumPy operations over all keys of a call. Written by hand, because a dict takes a call for each key,
and pyarrow and polars build their tables anew for each call. Imports no torch.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray, Int32Array, Uint64Array

ABSENT: Final = -1
"""The row of a key that has none."""

_SMALLEST: Final = 1024


class IdIndex:
    """Find the rows of keys; used by one thread.

    At most half of the places are taken, so a search ends after a few steps. The index doubles as keys come.

    Args:
        keys: uint64 [rows]: the key of each row; the owner's memory, which it changes before `add`. The keys
            must be well mixed in their low bits, as hashes are.
    """

    def __init__(self, keys: Uint64Array) -> None:
        self._keys = keys
        # A row's number plus one; 0 is a free place.
        self._places: Int32Array = np.zeros(_SMALLEST, np.int32)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._count

    @property
    def bytes(self) -> int:
        """Return the bytes of the index."""
        return self._places.nbytes

    def find(self, keys: Uint64Array) -> Int32Array:
        """Return the row of each key, int32 [N]; ABSENT where there is none."""
        found = np.full(len(keys), ABSENT, np.int32)
        at = self._first_places(keys)
        rows = self._places[at] - 1
        open_keys: IndexArray = np.flatnonzero(rows != ABSENT)
        rows, at = rows[open_keys], at[open_keys]
        while len(open_keys):
            same = self._keys[rows] == keys[open_keys]
            found[open_keys[same]] = rows[same]
            other = ~same
            open_keys, at = open_keys[other], self._next_places(at[other])
            rows = self._places[at] - 1
            taken = rows != ABSENT
            open_keys, at, rows = open_keys[taken], at[taken], rows[taken]
        return found

    def add(self, rows: Int32Array) -> None:
        """Add rows by their keys, which are distinct and not in the index."""
        self._count += len(rows)
        if 2 * self._count > len(self._places):
            size = len(self._places)
            while 2 * self._count > size:
                size *= 2
            rows = np.concatenate([self._places[self._places > 0] - 1, rows])
            self._places = np.zeros(size, np.int32)
        self._place(rows)

    def rebuild(self, rows: Int32Array) -> None:
        """Hold only these rows, whose keys are distinct."""
        self._places.fill(0)
        self._count = 0
        self.add(rows)

    def _place(self, rows: Int32Array) -> None:
        at = self._first_places(self._keys[rows])
        while len(rows):
            free = self._places[at] == 0
            # Of several keys that want one free place the last gets it.
            self._places[at[free]] = rows[free] + 1
            moves_on = self._places[at] != rows + 1
            rows, at = rows[moves_on], self._next_places(at[moves_on])

    def _first_places(self, keys: Uint64Array) -> NDArray[np.intp]:
        return (keys & np.uint64(len(self._places) - 1)).astype(np.intp)

    def _next_places(self, at: NDArray[np.intp]) -> NDArray[np.intp]:
        return (at + 1) & (len(self._places) - 1)
