"""An index from 64-bit keys to rows, for many keys at once.

Open addressing with double hashing (Knuth, The Art of Computer Programming, vol. 3, section 6.4, algorithm
D), in NumPy operations over all keys of a call. Each step of the longest search costs some of them, so short
ones matter more than neighboring memory. Written by hand, because a dict takes a call for each key, and
pyarrow and polars build their tables anew for each call. Imports no torch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray, Int32Array, Uint64Array

ABSENT: Final = -1
"""The row of a key that has none."""

# The row of a place whose key was removed: searches go on behind it.
_REMOVED: Final = -2
_SMALLEST: Final = 1024
_PLACES_A_KEY: Final = 3
# Steps are of the high bits, places of the low ones.
_STEP_BITS: Final = np.uint64(40)


class IdIndex:
    """Find the rows of keys; used by one thread.

    At most a third of the places are taken, so a search ends after a few steps. The index doubles as keys
    come.

    Args:
        keys: uint64 [rows]: the key of each row; the owner's memory, which it changes before `add` and after
            `remove`. The bits of keys must be well mixed, as those of hashes are.
    """

    def __init__(self, keys: Uint64Array) -> None:
        self._keys = keys
        # A row's number plus one; 0 is a free place.
        self._places: Int32Array = np.zeros(_SMALLEST, np.int32)
        self._count = 0
        # Places with a key or a removed one.
        self._taken = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        return self._places.nbytes

    def find(self, keys: Uint64Array, used_next: NDArray[Any] | None = None) -> Int32Array:  # noqa: ARG002
        """Return the row of each key, int32 [N]; ABSENT where there is none.

        `used_next` is for `CompiledIdIndex` alone.
        """
        if not len(self._keys):
            # An index of no rows has none that a search could read.
            return np.full(len(keys), ABSENT, np.int32)
        return self._search(keys)[0]

    def add(self, rows: Int32Array) -> None:
        """Add rows by their keys, which are distinct and not in the index."""
        self._count += len(rows)
        self._taken += len(rows)
        if _PLACES_A_KEY * self._taken > len(self._places):
            rows = np.concatenate([self._places[self._places > 0] - 1, rows])
            size = _SMALLEST
            # With room for as many again as are removed before the next time.
            while _PLACES_A_KEY * self._count * 5 > size * 4:
                size *= 2
            self._places = np.zeros(max(size, len(self._places)), np.int32)
            self._taken = self._count
        self._place(rows)

    def remove(self, rows: Int32Array) -> None:
        """Remove rows, which are distinct and in the index."""
        _, slots = self._search(self._keys[rows])
        self._places[slots] = _REMOVED + 1
        self._count -= len(rows)

    def _search(self, keys: Uint64Array) -> tuple[Int32Array, NDArray[np.intp]]:
        """Return the row of each key, int32 [N], and where its search ended."""
        ends = self._first_places(keys)
        rows_found: Int32Array = self._places.take(ends)
        rows_found -= 1
        # A place without a key has a negative row, for which "wrap" reads the key of another row.
        goes_on = (self._keys.take(rows_found, mode="wrap") != keys) | (rows_found == _REMOVED)
        open_keys: IndexArray = np.flatnonzero(goes_on)
        open_keys = open_keys[rows_found[open_keys] != ABSENT]
        slots, open_only = ends[open_keys], keys[open_keys]
        steps = _steps(open_only)
        while len(open_keys):
            slots = self._next_places(slots, steps)
            rows = self._places.take(slots)
            rows -= 1
            rows_found[open_keys], ends[open_keys] = rows, slots
            other = (self._keys.take(rows, mode="wrap") != open_only) | (rows == _REMOVED)
            left = np.flatnonzero(other & (rows != ABSENT))
            open_keys, slots, open_only, steps = open_keys[left], slots[left], open_only[left], steps[left]
        return rows_found, ends

    def _place(self, rows: Int32Array) -> None:
        keys = self._keys[rows]
        slots, steps = self._first_places(keys), _steps(keys)
        while len(rows):
            free = self._places[slots] == 0
            # Of several keys that want one free place the last gets it.
            self._places[slots[free]] = rows[free] + 1
            moves_on = self._places[slots] != rows + 1
            rows, steps = rows[moves_on], steps[moves_on]
            slots = self._next_places(slots[moves_on], steps)

    def _first_places(self, keys: Uint64Array) -> NDArray[np.intp]:
        return (keys & np.uint64(len(self._places) - 1)).view(np.int64)

    def _next_places(self, slots: NDArray[np.intp], steps: NDArray[np.intp]) -> NDArray[np.intp]:
        return (slots + steps) & (len(self._places) - 1)


def _steps(keys: Uint64Array) -> NDArray[np.intp]:
    """Return the distance from place to place of each key's search.

    It is odd, so a search comes to all places.
    """
    return ((keys >> _STEP_BITS) | np.uint64(1)).view(np.int64)
