"""A growing table of a checkpoint in memory, found by hashes of ids."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..growing.id_index import ABSENT, IdIndex
from ..growing.row_directory import IDS, USED_AT
from ..placement.ranges import WEIGHTS
from .bf16_rows import WidenedRows, nearest_bits
from .first_values import row_values
from .saved_changes import SavedChanges
from .saved_tables import SavedTables


def values_of_keys(table: TableSettings, number: int, seed: int, keys: Uint64Array) -> Float32Array:
    """Return the vectors of ids without a row, float32 [N, dim].

    They are those of a new row of table `number`, as its storage rounds them. Any thread may call.
    """
    values = row_values(seed, number, keys, table.dim, table.init_scale)
    return np.asarray(WidenedRows(nearest_bits(values))) if table.storage == "bfloat16" else values


class GrownRows:
    """The ids of a growing table that had a row, and their vectors.

    Immutable, so any thread may use it.

    Args:
        saved: the tables of the checkpoint.
        table: settings of the table.
        number: the table's number in the job.
        seed: the seed of the run.
        read_bytes: bytes of rows to read at once.

    Raises CheckpointError for a file that cannot be read.

    Attributes:
        keys: uint64 [n], ascending: the hashes of the ids.
        vectors: float32 [n, dim], read-only: the vector of each id.
    """

    def __init__(
        self, saved: SavedTables, table: TableSettings, number: int, seed: int, read_bytes: int
    ) -> None:
        self._table, self._number, self._seed = table, number, seed
        directory = saved.read_directory(table.name)
        used = np.flatnonzero(directory.used_at > 0)
        in_order = np.argsort(directory.keys[used])
        vectors = np.empty((len(used), table.dim), np.float32)
        place = np.empty(len(used), np.intp)
        place[in_order] = np.arange(len(used))
        step = max(1, read_bytes // (4 * table.dim))
        for start in range(0, table.rows, step):
            stop = min(start + step, table.rows)
            first, last = np.searchsorted(used, [start, stop])
            if first < last:
                block = saved.read(table.name, start, stop)
                vectors[place[first:last]] = block[used[first:last] - start]
        self._set(directory.keys[used][in_order], used[in_order], vectors)

    def with_changes(self, changes: Sequence[SavedChanges]) -> GrownRows:
        """Return the table with these rows replaced, in order.

        This object stays as it is. Raises CheckpointError for changes that cannot be read.
        """
        made = copy.copy(self)
        for one in changes:
            made._replace(one)
        return made

    def _replace(self, changes: SavedChanges) -> None:
        rows, ids = changes.read(self._table.name, IDS)
        if not len(rows):
            return
        used = changes.read(self._table.name, USED_AT)[1] > 0
        changed = np.zeros(self._table.rows, np.bool_)
        changed[rows] = True
        stays = ~changed[self._rows]
        keys = np.concatenate([self.keys[stays], ids[used].view(np.uint64)])
        in_order = np.argsort(keys)
        vectors = np.concatenate([self.vectors[stays], changes.read(self._table.name, WEIGHTS)[1][used]])
        self._set(
            keys[in_order], np.concatenate([self._rows[stays], rows[used]])[in_order], vectors[in_order]
        )

    def _set(self, keys: Uint64Array, rows: IndexArray, vectors: Float32Array) -> None:
        self.keys, self._rows, self.vectors = keys, rows, vectors
        self.vectors.flags.writeable = False
        self._index = IdIndex(self.keys)
        self._index.add(np.arange(len(keys), dtype=np.int32))

    def find(self, keys: Uint64Array) -> Int32Array:
        """Return the place of each key in `self.keys`, int32 [N]; ABSENT without one."""
        return self._index.find(keys)

    def lookup(self, keys: Uint64Array, out: Float32Array | None = None) -> Float32Array:
        """Return the vectors of keys, float32 [N, dim].

        An id that had no row has its first values. They are written to `out`, C-contiguous, if given.
        """
        rows = self.find(keys)
        if out is None:
            out = np.empty((len(keys), self._table.dim), np.float32)
        known = rows != ABSENT
        out[known] = self.vectors[rows[known]]
        absent = keys[~known]
        if len(absent):
            out[~known] = values_of_keys(self._table, self._number, self._seed, absent)
        return out
