"""Where the records of rows lie in a file: state machines without I/O.

A disk reads and writes pages, which have many rows. Rows that make way together lie far apart in the order of
their numbers, so that each of them costs a page of its own. `MovingSlots` gives them slots side by side, and
remembers which. That takes memory for each row, of which a growing table takes ten times as much anyway.
Source: Rosenblum and Ousterhout, The Design and Implementation of a Log-Structured File System.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ....types import IndexArray, Int32Array
from .row_bits import RowBits
from .row_cache import ABSENT

SPARE: Final = 1.25
"""Slots for each row, where they move. If there were as many as rows, free ones would lie scattered: those of
rows that are written again before others of the same time are free."""

MOVING_SLOT_BYTES: Final = 4 + SPARE
"""Bytes of memory for each row whose slot moves: the slot, and which are taken."""

_LOOKED_AT: Final = 1 << 16
"""Slots that are looked through at once for free ones."""


class RowSlots(Protocol):
    """The slots of rows; used by one thread.

    Attributes:
        count: how many rows have a slot.
    """

    count: int

    def __len__(self) -> int:
        """Return how many slots there are."""
        ...

    def find(self, rows: Int32Array) -> Int32Array:
        """Return the slot of each row int32 [N]; ABSENT for one without."""
        ...

    def place(self, rows: Int32Array) -> Int32Array:
        """Return the slots of distinct rows int32 [N]; those without get one."""
        ...

    def move(self, rows: Int32Array) -> Int32Array:
        """Return slots of distinct rows int32 [N] for records that are written whole."""
        ...

    def free(self, rows: Int32Array) -> None:
        """Take the slots of distinct rows int32 [N] from those that have one."""
        ...


class FixedSlots:
    """Each row's slot has its number: a bit a row."""

    def __init__(self, rows: int) -> None:
        self._has = RowBits(rows)
        self._rows = rows
        self.count = 0

    def __len__(self) -> int:
        return self._rows

    def find(self, rows: Int32Array) -> Int32Array:
        return np.where(self._has.has(rows), rows, np.int32(ABSENT))

    def place(self, rows: Int32Array) -> Int32Array:
        self.count += len(rows) - int(self._has.has(rows).sum())
        self._has.add(rows)
        return rows

    move = place

    def free(self, rows: Int32Array) -> None:
        self.count -= int(self._has.has(rows).sum())
        self._has.remove(rows)


class MovingSlots:
    """Rows that are written together get the next free slots.

    The file is gone through from its begin to its end again and again. Next come the slots of the rows that
    were written longest ago; where those that were not used longest lose their ids, all of them are free.
    """

    def __init__(self, rows: int) -> None:
        self._slot_of: Int32Array = np.full(rows, ABSENT, np.int32)
        self._taken: NDArray[np.bool_] = np.zeros(int(SPARE * rows) + 1, np.bool_)
        self._next = 0
        self.count = 0

    def __len__(self) -> int:
        return len(self._taken)

    def find(self, rows: Int32Array) -> Int32Array:
        slots: Int32Array = self._slot_of[rows]
        return slots

    def place(self, rows: Int32Array) -> Int32Array:
        slots = self.find(rows)
        absent = np.flatnonzero(slots == ABSENT)
        slots[absent] = self._take(rows[absent])
        return slots

    def move(self, rows: Int32Array) -> Int32Array:
        # More slots than rows: once these are free there are enough.
        self.free(rows)
        return self._take(rows)

    def free(self, rows: Int32Array) -> None:
        slots = self._slot_of[rows]
        slots = slots[slots != ABSENT]
        self._taken[slots] = False
        self._slot_of[rows] = ABSENT
        self.count -= len(slots)

    def _take(self, rows: Int32Array) -> Int32Array:
        """Give the next free slots to rows that have none."""
        free_slots: list[IndexArray] = []
        needed = len(rows)
        while needed:
            stop = min(self._next + _LOOKED_AT, len(self._taken))
            free = np.flatnonzero(~self._taken[self._next : stop])[:needed] + self._next
            needed -= len(free)
            free_slots.append(free)
            self._next = stop if needed else int(free[-1]) + 1
            self._next %= len(self._taken)
        slots = np.concatenate([np.zeros(0, np.int64), *free_slots]).astype(np.int32)
        self._taken[slots] = True
        self._slot_of[rows] = slots
        self.count += len(slots)
        return slots
