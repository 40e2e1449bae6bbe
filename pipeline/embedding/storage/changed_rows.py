"""The rows of a table's piece that changed after a change epoch, see `RowBank.changed_at`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..placement.plan import Piece
from .row_storage import RowArray

# Their change epochs, and what is computed from them, stay in the cache.
_BLOCK_ROWS: Final = 1 << 18

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


def changed_bytes(changed_at: NDArray[np.uint8], change_epoch: int, arrays: Mapping[str, RowArray]) -> int:
    """Return the bytes that a piece's changed rows take in a file.

    They are those of rows and state, in float32, and of the rows' numbers. `changed_at` is uint8
    [rows]; `arrays` are those of the piece.
    """
    count = sum(int(np.count_nonzero(block > change_epoch)) for _, block in _blocks(changed_at))
    row_bytes: int = sum(values.nbytes // max(1, len(values)) for values in arrays.values())
    return count * (row_bytes + np.dtype(np.int64).itemsize)


def changed_rows(changed_at: NDArray[np.uint8], change_epoch: int, fetch: Fetch) -> NDArray[np.int64]:
    """Return the numbers of a piece's changed rows, int64 [N], ascending.

    `changed_at` is uint8 [rows]. Each step takes about a millisecond. Rows that change between two steps may
    be among those found.
    """
    blocks = [
        fetch(partial(_rows_above, block, change_epoch)) + start for start, block in _blocks(changed_at)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int64)


def _blocks(changed_at: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    for start in range(0, len(changed_at), _BLOCK_ROWS):
        yield start, changed_at[start : start + _BLOCK_ROWS]


def _rows_above(changed_at: NDArray[np.uint8], change_epoch: int) -> NDArray[np.int64]:
    return np.flatnonzero(changed_at > change_epoch)
