"""Rows of a checkpoint that changed since all rows were written.

A node sometimes writes all rows, and otherwise only the changed ones. Its earlier files stay in the
checkpoint; numbered changes replace rows in the order of their numbers. One checkpoint may bring several of
them. Rows that changed while they were copied are then of no one moment, and have later changes of that
checkpoint. Its last ones have the batches that were applied at the moment that it is of.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...checkpoint.reader import TensorReader
from ...config.tables import TableSettings
from ...errors import CheckpointError
from ...types import Float32Array, IndexArray, Mask, Uint64Array
from ..growing.row_directory import IDS, USED_AT
from ..placement.ranges import WEIGHTS

ROLE: Final = "embedding"
CHANGED_ROWS: Final = "changed_rows"
_ROLE: Final = re.compile(rf"{ROLE}-(\d+)(?:-changes-(\d+))?")


def part_role(node: int, changes: int) -> str:
    """Return the role of a node's files in a checkpoint.

    `changes` is the number of these changes, from 1; 0 for the files with all rows.
    """
    return f"{ROLE}-{node}-changes-{changes}" if changes else f"{ROLE}-{node}"


def parse_role(role: str) -> tuple[int, int] | None:
    """Return the node and the number of its changes; None for any other role."""
    match = _ROLE.fullmatch(role)
    return (int(match[1]), int(match[2] or 0)) if match else None


class SavedChanges:
    """Changed rows of one node, of one number; several threads may call it.

    Args:
        reader: reader of the files.
        where: the checkpoint's folder, for errors; an attribute too.

    Raises:
        CheckpointError: arrays of a table do not have the same rows.
    """

    def __init__(self, reader: TensorReader, where: str) -> None:
        self._reader = reader
        self.where = where
        self._stops: dict[str, int] = {}
        self._rows: dict[str, NDArray[np.int64]] = {}
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        for tensor in reader.names:
            table, dot, array = tensor.rpartition(".")
            if dot:
                self._shapes.setdefault(table, {})[array] = reader.shape(tensor)
        for table, shapes in self._shapes.items():
            if len({shape[:1] for shape in shapes.values()}) != 1 or len(shapes.get(CHANGED_ROWS, ())) != 1:
                raise self._error(f"the changed rows of table {table} do not fit together")

    def check(self, table: str, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise CheckpointError unless the changes fit a table with arrays of `shapes`."""
        self._stops[table] = next((shape[0] for shape in shapes.values()), 0)
        saved_shapes = {
            name: shape[1:] for name, shape in self._shapes.get(table, {}).items() if name != CHANGED_ROWS
        }
        if saved_shapes and saved_shapes != {name: shape[1:] for name, shape in shapes.items()}:
            raise self._error(f"the changed rows of table {table} do not fit its arrays")

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables with changed rows."""
        return tuple(self._shapes)

    def read(self, table: str, array: str) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the changed rows of a table's array, ascending, and their values.

        Both are empty if no row of the table changed. Raises CheckpointError as `lay_over` does.
        """
        if table not in self._shapes:
            return np.zeros(0, np.int64), np.zeros(0)
        return self._changed_rows(table), self._reader.read(f"{table}.{array}")

    def lay_over(self, table: str, array: str, start: int, values: NDArray[Any]) -> None:
        """Replace the changed rows in `values`, rows of a table's array from `start` on.

        Raises CheckpointError for changes that cannot be read or do not fit.
        """
        if table not in self._shapes:
            return
        rows = self._changed_rows(table)
        first, stop = np.searchsorted(rows, [start, start + len(values)])
        if first < stop:
            changed = self._reader.read_rows(f"{table}.{array}", int(first), int(stop))
            if changed.dtype != values.dtype:
                raise self._error(f"{table}.{array} is {changed.dtype}, not {values.dtype}")
            values[rows[first:stop] - start] = changed

    def _changed_rows(self, table: str) -> NDArray[np.int64]:
        stop = self._stops.get(table, 0)
        rows = self._rows.get(table)
        if rows is None:
            rows = self._reader.read(f"{table}.{CHANGED_ROWS}")
            in_order = rows.dtype == np.int64 and len(rows) > 0 and bool(np.all(rows[1:] > rows[:-1]))
            if not in_order or rows[0] < 0 or rows[-1] >= stop:
                raise self._error(f"the changed rows of table {table} are not in order")
            self._rows[table] = rows
        return rows

    def _error(self, what: str) -> CheckpointError:
        return CheckpointError(what, where=self.where, remedy="restore the file, or use another checkpoint")


@dataclass(frozen=True, slots=True, eq=False)
class RowChanges:
    """Rows of one table that replace earlier ones.

    Attributes:
        table: name of the table.
        rows: int64 [n], ascending.
        vectors: float32 [n, dim].
        keys: uint64 [n], the id of each row of a growing table; empty for other tables.
        used: bool [n], which rows of a growing table have an id; empty for other tables.
    """

    table: str
    rows: IndexArray
    vectors: Float32Array
    keys: Uint64Array
    used: Mask

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in (self.rows, self.vectors, self.keys, self.used))

    @classmethod
    def read(cls, changes: SavedChanges, table: TableSettings) -> RowChanges:
        """Read the changed rows of a table, without optimizer state.

        Raises CheckpointError for changes that cannot be read or do not fit.
        """
        rows, vectors = changes.read(table.name, WEIGHTS)
        if vectors.dtype != np.float32 or vectors.shape != (len(rows), table.dim):
            raise CheckpointError(
                f"the changed rows of table {table.name} do not fit the table",
                where=changes.where,
                remedy="restore the file, or use another checkpoint",
            )
        if table.growth is None:
            return cls(table.name, rows, vectors, np.zeros(0, np.uint64), np.zeros(0, np.bool_))
        keys, used_at = (changes.read(table.name, array)[1] for array in (IDS, USED_AT))
        return cls(table.name, rows, vectors, keys.view(np.uint64), used_at > 0)
