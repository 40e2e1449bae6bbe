"""Find many ids among those of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray, Int32Array, Mask

Ids: TypeAlias = NDArray[Any]
"""int32 or uint64 [S]: what a request asks for one by one: rows of a bank, or keys of growing tables."""

CELLS_PER_ID: Final = 16
_NOWHERE: Final[IndexArray] = np.zeros(0, np.int64)


class IdFinder:
    """Finds ids by a table of their places, indexed by their lowest bits; used by one thread.

    Five times as fast as a search in sorted ids. What the table still has of an earlier batch does no harm,
    since each place is checked.
    """

    def __init__(self) -> None:
        self._places: Int32Array = np.zeros(1, np.int32)
        self._is_crowded: Mask = np.zeros(1, np.bool_)

    def find(self, ids: Ids, others: Sequence[Ids]) -> list[tuple[IndexArray, IndexArray]]:
        """Return for each of `others` the positions of what is among `ids`, in it and in `ids`.

        Both are int64, the first ascending. `ids` are distinct.
        """
        if not len(ids):
            return [(_NOWHERE, _NOWHERE)] * len(others)
        every = np.concatenate(others)
        found, targets = self._find(ids, every)
        ends = np.cumsum([len(some) for some in others])
        hits, low = [], 0
        for high, end, some in zip(np.searchsorted(found, ends), ends, others, strict=True):
            hits.append((found[low:high] - (end - len(some)), targets[low:high]))
            low = high
        return hits

    def _find(self, ids: Ids, every: Ids) -> tuple[IndexArray, IndexArray]:
        self._fit(len(ids))
        own, cells = self._cells(ids), self._cells(every)
        numbers: Int32Array = np.arange(len(ids), dtype=np.int32)
        self._places[own] = numbers
        # Ids whose cell another one has taken.
        lost = np.flatnonzero(self._places[own] != numbers)
        places = np.take(self._places, cells, mode="clip")
        hit = np.take(ids, places, mode="clip") == every
        if len(lost):
            self._is_crowded[own[lost]] = True
            crowded = np.flatnonzero(np.take(self._is_crowded, cells, mode="clip"))
            self._is_crowded[own[lost]] = False
            order = lost[np.argsort(ids[lost])]
            nearest = order[np.searchsorted(ids[order], every[crowded]).clip(max=len(order) - 1)]
            same = ids[nearest] == every[crowded]
            places[crowded[same]] = nearest[same]
            hit[crowded[same]] = True
        found = np.flatnonzero(hit)
        return found, places[found].astype(np.int64)

    def _cells(self, ids: Ids) -> Ids:
        cells: Ids = ids & ids.dtype.type(len(self._places) - 1)
        return cells if cells.dtype == np.int32 else cells.astype(np.int64)

    def _fit(self, count: int) -> None:
        """Have a power of 2 of cells, for so many ids."""
        while len(self._places) < CELLS_PER_ID * count:
            self._places = np.zeros(2 * len(self._places), np.int32)
            self._is_crowded = np.zeros(len(self._places), np.bool_)
