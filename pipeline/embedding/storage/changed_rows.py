"""The rows of a bank that changed after a change epoch, see `RowBank.change_epoch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...types import IndexArray, Int32Array
from ..placement.plan import Piece
from .row_storage import RowArray

BLOCK_ROWS: Final = 1 << 18
"""Rows whose change epochs, and what is computed from them, stay in the cache."""

Fetch: TypeAlias = Callable[[Callable[[], NDArray[Any]]], NDArray[Any]]
"""Runs a short step on the thread that owns a store, for another thread, and returns its result."""


@dataclass(frozen=True)
class ChangedRows:
    """The changed rows of a piece.

    Attributes:
        rows: int64 [N], at least one, ascending, numbered from the piece's start.
        arrays: all arrays of the piece, as `ShardStore.pieces` yields them.
    """

    piece: Piece
    rows: NDArray[np.int64]
    arrays: dict[str, RowArray]


class ChangeEpochs(Protocol):
    """The change epoch of each row's last change; 0 for none."""

    def mark(self, rows: IndexArray | Int32Array, change_epoch: int) -> None:
        """Note a change of rows int32 or int64 [N].

        Called by the thread that owns the store, or by that of the rows where all are in memory.
        """
        ...

    def forget(self) -> None:
        """Have no changed rows."""
        ...

    def count(self, change_epoch: int) -> int:
        """Return how many rows changed after `change_epoch`, or a few more."""
        ...

    def rows(self, change_epoch: int, fetch: Fetch) -> NDArray[np.int64]:
        """Return the rows that changed after `change_epoch`, int64 [N], ascending, distinct.

        Each step takes about a millisecond. Rows that change between two steps may be among those found.
        """
        ...


class EpochsInMemory:
    """The change epochs of rows that are all in memory.

    A byte a row, not a bit, because threads change neighbouring rows at the same time.
    """

    def __init__(self, rows: int) -> None:
        self._changed_at = np.zeros(rows, np.uint8)

    def mark(self, rows: IndexArray | Int32Array, change_epoch: int) -> None:
        self._changed_at[rows] = change_epoch

    def forget(self) -> None:
        self._changed_at.fill(0)

    def count(self, change_epoch: int) -> int:
        return sum(int(np.count_nonzero(block > change_epoch)) for _, block in self._blocks())

    def rows(self, change_epoch: int, fetch: Fetch) -> NDArray[np.int64]:
        changed = [fetch(partial(_above, block, change_epoch)) + start for start, block in self._blocks()]
        return np.concatenate(changed) if changed else np.zeros(0, np.int64)

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        for start in range(0, len(self._changed_at), BLOCK_ROWS):
            yield start, self._changed_at[start : start + BLOCK_ROWS]


def _above(changed_at: NDArray[np.uint8], change_epoch: int) -> NDArray[np.int64]:
    return np.flatnonzero(changed_at > change_epoch)
