"""Find many ids among those of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray

Ids: TypeAlias = NDArray[Any]
"""int32 or uint64 [S]: what a request asks for one by one: rows of a bank, or keys of growing tables."""

# The fewer, the less memory is read, and the more ids are searched for in vain.
CELLS_PER_ID: Final = 8
_LAST_MARK: Final = 255
NOWHERE: Final[IndexArray] = np.zeros(0, np.int64)


class IdFinder:
    """Finds ids by marks of their lowest bits, and what is marked by a search; used by one thread.

    Two batches have few ids in common, so few are searched for.
    """

    def __init__(self) -> None:
        self._marks: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self._mark = 0

    def find(self, ids: Ids, others: Sequence[Ids]) -> list[tuple[IndexArray, IndexArray]]:
        """Find the ids of each of `others` that are among `ids`: their positions in it, and in `ids`.

        Both are int64, the first ascending. `ids` are distinct.
        """
        if not len(ids):
            return [(NOWHERE, NOWHERE)] * len(others)
        every = others[0] if len(others) == 1 else np.concatenate(others)
        positions, targets = self._find(ids, every)
        if len(others) == 1:
            return [(positions, targets)]
        ends = np.cumsum([len(some) for some in others])
        hits, low = [], 0
        for high, end, some in zip(np.searchsorted(positions, ends), ends, others, strict=True):
            hits.append((positions[low:high] - (end - len(some)), targets[low:high]))
            low = high
        return hits

    def _find(self, ids: Ids, every: Ids) -> tuple[IndexArray, IndexArray]:
        likely = self._likely(ids, every)
        some = np.take(every, likely, mode="clip")
        order = None
        # A bank's rows ascend, unless columns share a table; keys ascend in each table.
        if not (ids[1:] > ids[:-1]).all():
            order = np.argsort(ids, kind="stable")
            ids = ids[order]
        nearest = np.searchsorted(ids, some)
        hit = np.flatnonzero(np.take(ids, nearest, mode="clip") == some)
        targets = nearest[hit]
        return likely[hit], targets if order is None else order[targets]

    def _likely(self, ids: Ids, every: Ids) -> IndexArray:
        """Return the positions in `every` of all that is among `ids`, and of some more; ascending."""
        if self._mark == _LAST_MARK or len(self._marks) < CELLS_PER_ID * len(ids):
            size = max(len(self._marks), 1 << (CELLS_PER_ID * len(ids) - 1).bit_length())
            self._marks, self._mark = np.zeros(size, np.uint8), 0
        # A new mark, so that earlier ones need not be cleared.
        self._mark += 1
        self._marks[self._cells(ids)] = self._mark
        return np.flatnonzero(np.take(self._marks, self._cells(every), mode="clip") == self._mark)

    def _cells(self, ids: Ids) -> IndexArray:
        cells: IndexArray = (ids & ids.dtype.type(len(self._marks) - 1)).astype(np.int64)
        return cells
