"""A growing table of a checkpoint in memory, found by hashes of ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..growing.id_index import ABSENT, IdIndex
from .bf16_rows import WidenedRows, nearest_bits
from .first_values import row_values
from .saved_changes import RowChanges
from .saved_tables import SavedTables


def values_of_keys(table: TableSettings, number: int, seed: int, keys: Uint64Array) -> Float32Array:
    """Return the vectors of ids without a row, float32 [N, dim].

    They are those of a new row of table `number`, as its storage rounds them. Any thread may call.
    """
    return as_stored(row_values(seed, number, keys, table.dim, table.init_scale), table.storage)


def as_stored(values: Float32Array, storage: str) -> Float32Array:
    """Return the values as a storage rounds them, float32 [N, dim]."""
    return np.asarray(WidenedRows(nearest_bits(values))) if storage == "bfloat16" else values


RowsOf: TypeAlias = Callable[[tuple[int, int]], Float32Array]
"""Makes an array of rows, float32 [rows, dim], of any values."""


class GrownRows:
    """The ids of a growing table that had a row, and their vectors.

    Each id is where its embedding node had it, so that rows can be replaced in place. Any thread may use it,
    but none during `apply`.

    Args:
        saved: the tables of the checkpoint.
        table: settings of the table.
        number: the table's number in the job.
        seed: the seed of the run.
        read_bytes: bytes of rows to read at once.
        rows_of: makes the array of the vectors.

    Raises CheckpointError for a file that cannot be read.
    """

    def __init__(
        self,
        saved: SavedTables,
        table: TableSettings,
        number: int,
        seed: int,
        read_bytes: int,
        rows_of: RowsOf = lambda shape: np.empty(shape, np.float32),
    ) -> None:
        self._table, self._number, self._seed = table, number, seed
        directory = saved.read_directory(table.name)
        self._key_of = np.require(directory.keys, requirements="W")
        self._used = directory.used_at > 0
        # Pages without a row that is used take no memory.
        self._vector_of = rows_of((table.rows, table.dim))
        step = max(1, read_bytes // (4 * table.dim))
        for start in range(0, table.rows, step):
            stop = min(start + step, table.rows)
            used = np.flatnonzero(self._used[start:stop])
            if len(used):
                self._vector_of[start + used] = saved.read(table.name, start, stop)[used]
        self._index = IdIndex(self._key_of)
        self._index.add(np.flatnonzero(self._used).astype(np.int32))
        self._in_order: IndexArray | None = None
        self._place_of: Int32Array | None = None

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Replace rows in place, in order.

        Changes may be of no one moment: an id may then have two rows, up to later changes among them.
        """
        rows = np.unique(np.concatenate([change.rows for change in changes]))
        self._index.remove(rows[self._used[rows]].astype(np.int32))
        for change in changes:
            self._key_of[change.rows] = change.keys
            self._used[change.rows] = change.used
            self._vector_of[change.rows[change.used]] = change.vectors[change.used]
        self._index.add(rows[self._used[rows]].astype(np.int32))
        self._in_order = self._place_of = None

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self._index)

    @property
    def dim(self) -> int:
        """Return the number of floats in a row."""
        return self._table.dim

    @property
    def keys(self) -> Uint64Array:
        """Return the hashes of the ids, uint64 [n], ascending; a copy."""
        return self._key_of[self._order()]

    @property
    def vectors(self) -> Float32Array:
        """Return a copy of the vectors, float32 [n, dim], in the order of `keys`."""
        return self._vector_of[self._order()]

    def vectors_at(self, places: IndexArray) -> Float32Array:
        """Return the vectors at places of `keys`, float32 [..., dim]."""
        return self._vector_of[self._order()[places]]

    def find(self, keys: Uint64Array) -> Int32Array:
        """Return the place of each key in `self.keys`, int32 [N]; ABSENT without one."""
        places = self._index.find(keys)
        known = places != ABSENT
        place_of = self._place_of
        if place_of is None:
            place_of = np.full(len(self._key_of), ABSENT, np.int32)
            place_of[self._order()] = np.arange(len(self), dtype=np.int32)
            # Only now: other threads may ask meanwhile.
            self._place_of = place_of
        places[known] = place_of[places[known]]
        return places

    def absent(self, keys: Uint64Array) -> int:
        """Return how many of the keys have no row."""
        return int((self._index.find(keys) == ABSENT).sum())

    def _order(self) -> IndexArray:
        order = self._in_order
        if order is None:
            used = np.flatnonzero(self._used)
            self._in_order = order = used[np.argsort(self._key_of[used])]
        return order

    def lookup(self, keys: Uint64Array, out: Float32Array | None = None) -> Float32Array:
        """Return the vectors of keys, float32 [N, dim].

        An id that had no row has its first values. They are written to `out`, C-contiguous, if given.
        """
        rows = self._index.find(keys)
        if out is None:
            out = np.empty((len(keys), self._table.dim), np.float32)
        known = rows != ABSENT
        out[known] = self._vector_of[rows[known]]
        absent = keys[~known]
        if len(absent):
            out[~known] = values_of_keys(self._table, self._number, self._seed, absent)
        return out
