"""Changed rows of a table in memory, read before they replace others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...config.tables import TableSettings
from ...errors import CheckpointError
from ...types import Float32Array, IndexArray, Mask, Uint64Array
from ..growing.row_directory import IDS, USED_AT
from ..placement.ranges import WEIGHTS
from .saved_changes import SavedChanges


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
        """Return the bytes that the changes take."""
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
