"""An index from 64-bit keys to rows, for many keys at once.

Open addressing with linear probing (Knuth, The Art of Computer Programming, vol. 3, section 6.4, algorithm
L), in NumPy operations over all keys of a call. Written by hand, because a dict takes a call for each key,
and pyarrow and polars build their tables anew for each call. Imports no torch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray, Int32Array, Uint64Array

ABSENT: Final = -1
"""The row of a key that has none."""

_SMALLEST: Final = 1024
_PLACES_A_KEY: Final = 3


class KeyRange(NamedTuple):
    """The keys of rows [start, stop) of a hashed table with `rows` rows."""

    start: int
    stop: int
    rows: int


EVERY_KEY: Final = KeyRange(0, 1, 1)


class IdIndex:
    """Find the rows of keys; used by one thread.

    At most a third of the places are taken, so a search ends after a few steps. Places are in the order of
    keys, so those of sorted keys are read one after the other. The index doubles as keys come.

    Args:
        keys: uint64 [rows]: the key of each row; the owner's memory, which it changes before `add`.
        key_range: where keys come from, evenly spread as hashes are. Others are found, too, but slowly.
    """

    def __init__(self, keys: Uint64Array, key_range: KeyRange = EVERY_KEY) -> None:
        self._keys = keys
        start, stop, rows = key_range
        # Of the upper halves of keys.
        self._lowest = (start << 32) // rows
        self._span = -(-(stop << 32) // rows) - self._lowest
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
        at = self._first_places(keys)
        found: Int32Array = self._places.take(at) - 1
        # A free place has the row ABSENT, which "wrap" reads as the last one; no key is missed by that.
        differs = self._keys.take(found, mode="wrap") != keys
        open_keys: IndexArray = np.flatnonzero(differs & (found != ABSENT))
        at = at[open_keys]
        while len(open_keys):
            at = self._next_places(at)
            rows = self._places.take(at) - 1
            found[open_keys] = rows
            goes_on = (self._keys.take(rows, mode="wrap") != keys[open_keys]) & (rows != ABSENT)
            open_keys, at = open_keys[goes_on], at[goes_on]
        return found

    def add(self, rows: Int32Array) -> None:
        """Add rows by their keys, which are distinct and not in the index."""
        self._count += len(rows)
        if _PLACES_A_KEY * self._count > len(self._places):
            size = len(self._places)
            while _PLACES_A_KEY * self._count > size:
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
        size = len(self._places)
        at = keys >> np.uint64(32)
        at -= np.uint64(self._lowest)
        at *= np.uint64((size << 32) // self._span)
        at >>= np.uint64(32)
        at &= np.uint64(size - 1)
        return at.view(np.int64)

    def _next_places(self, at: NDArray[np.intp]) -> NDArray[np.intp]:
        return (at + 1) & (len(self._places) - 1)
