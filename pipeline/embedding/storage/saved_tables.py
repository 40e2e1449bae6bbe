"""The embedding tables of a checkpoint, read by name, whatever nodes wrote them.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...checkpoint.files import FileEntry
from ...checkpoint.manifest import CheckpointManifest
from ...checkpoint.reader import TensorReader
from ...checkpoint.saved import Place
from ...config.row_bytes import row_states
from ...config.tables import TableSettings
from ...data.hashing import table_rows_of
from ...errors import CheckpointError
from ...types import Float32Array, Int32Array, Mask, Uint64Array
from ..growing.row_directory import DIRECTORY_ARRAYS, IDS, USED_AT, USED_SECONDS
from ..placement.ranges import WEIGHTS
from .applied import AppliedBatches
from .saved_changes import ROLE, SavedChanges, parse_role

PLACEMENT_KEY: Final = "placement_digest"
_REMEDY: Final = "restore the file, or use another checkpoint"


def tensor_name(table: str, array: str) -> str:
    """Return the name of a table's array in a checkpoint.

    `array` is "weights" or the name of an array of optimizer state.
    """
    return f"{table}.{array}"


def applied_name(node: int) -> str:
    """Return the name of a node's applied batches in a checkpoint.

    The name has no dot, unlike those of tables' arrays.
    """
    return f"applied:{node}"


@dataclass(frozen=True, slots=True, eq=False)
class SavedDirectory:
    """Which id had which row of a growing table.

    Attributes:
        keys: uint64 [rows], the key of each row; meaningless where it is free.
        used_at: int32 [rows], the batch of each row's last use; 0 where it is free.
        ages: int32 [rows], how many seconds before the last use of any row of its node each was used last,
            meaningless where it is free; None if the table freed no rows by time.
    """

    keys: Uint64Array
    used_at: Int32Array
    ages: Int32Array | None = None

    def owned(self, start: int, stop: int) -> Mask:
        """Return the rows whose id a hashed table would have in [start, stop).

        The mask is bool [rows].
        """
        hashed = table_rows_of(self.keys[None], (len(self.keys),))[0]
        mask: Mask = (self.used_at > 0) & (hashed >= start) & (hashed < stop)
        return mask


@dataclass(frozen=True, slots=True)
class SavedSince:
    """What changed since an earlier checkpoint: the files, and their changes in order."""

    files: list[FileEntry]
    changes: list[SavedChanges]


class SavedTables:
    """Read the requested rows and state of tables from a checkpoint.

    No file of a folder is kept open; several threads may call.

    Args:
        folder: folder of the checkpoint, or its place in a storage.
        manifest: its manifest; the caller has checked sizes and checksums.

    Raises:
        CheckpointError: a file is missing, truncated or not a safetensors file, or part of a table is
            missing.

    Attributes:
        names: the tables, sorted.
        nodes: number of embedding nodes that wrote the tables.
        placement_digest: digest of the rows that each of these nodes had, see `TablePlan.placement_digest`;
            "" if the files do not agree on one.
    """

    def __init__(self, folder: Place, manifest: CheckpointManifest) -> None:
        self._where = str(folder)
        self._parts = parts = _parts_of(manifest.files)
        whole = [entry for (_, changes), entries in parts.items() if not changes for entry in entries]
        self.nodes = len({entry.role for entry in whole})
        self._reader = TensorReader(folder, whole)
        # Sorted, because the changes of a node must replace rows in the order of their numbers.
        changes = {part: TensorReader(folder, parts[part]) for part in sorted(parts) if part[1]}
        self._changes = {part: SavedChanges(reader, self._where) for part, reader in changes.items()}
        self._applied = {node: self._reader for node, changed in parts if not changed}
        self._applied |= {node: reader for (node, _), reader in changes.items()}
        self._arrays: dict[str, dict[str, tuple[int, ...]]] = {}
        for tensor in self._reader.names:
            table, dot, array = tensor.rpartition(".")
            if dot:
                self._arrays.setdefault(table, {})[array] = self._reader.shape(tensor)
        self.names: tuple[str, ...] = tuple(sorted(self._arrays))
        metadata = [m for reader in (self._reader, *changes.values()) for m in reader.metadata.values()]
        digests = {saved_changes.get(PLACEMENT_KEY, "") for saved_changes in metadata}
        self.placement_digest = digests.pop() if len(digests) == 1 else ""
        for name, arrays in self._arrays.items():
            if len(arrays.get(WEIGHTS, ())) != 2 or any(s[0] != arrays[WEIGHTS][0] for s in arrays.values()):
                raise self._error(f"the arrays of table {name} do not fit together", _REMEDY)
        for saved_changes in self._changes.values():
            for name in saved_changes.tables:
                saved_changes.check(name, self._arrays.get(name, {}))

    def rows(self, name: str) -> int:
        """Return the number of rows of a table.

        Raises CheckpointError for an unknown table.
        """
        return self._shape(name)[0]

    def dim(self, name: str) -> int:
        """Return the number of floats in a row of a table.

        Raises CheckpointError for an unknown table.
        """
        return self._shape(name)[1]

    def places(self, name: str) -> list[tuple[int, int, int]]:
        """Return which rows of a table each node had: (start, stop, node), by rows.

        Raises CheckpointError for an unknown table.
        """
        self._shape(name)
        ranges: list[tuple[int, int, int]] = []
        for file, start, stop in self._reader.places(tensor_name(name, WEIGHTS)):
            node = int(self._reader.metadata[file].get("role", f"{ROLE}--1").removeprefix(f"{ROLE}-"))
            if ranges and ranges[-1][1:] == (start, node):
                # The node's range was too large for one file.
                ranges[-1] = (ranges[-1][0], stop, node)
            else:
                ranges.append((start, stop, node))
        return ranges

    def read(self, name: str, start: int, stop: int) -> Float32Array:
        """Return rows [start, stop) of a table, float32 [stop - start, dim].

        The array is a new one. Raises CheckpointError for an unknown table or a file that cannot be read,
        ValueError if the table has no such rows.
        """
        self._shape(name)
        return self._read(name, WEIGHTS, start, stop)

    def read_state(self, name: str, start: int, stop: int) -> dict[str, NDArray[np.float32]]:
        """Return the optimizer's state of rows [start, stop) of a table, by name.

        Each array is a new float32 [stop - start, ...]. Raises as `read` does.
        """
        self._shape(name)
        arrays = [array for array in self._arrays[name] if array != WEIGHTS and array not in DIRECTORY_ARRAYS]
        return {array: self._read(name, array, start, stop) for array in arrays}

    def read_directory(self, name: str) -> SavedDirectory:
        """Return which id had which row of a growing table; raises as `read` does."""
        rows, _ = self._shape(name)
        ids, used_at = (self._read(name, array, 0, rows) for array in (IDS, USED_AT))
        ages = None
        if USED_SECONDS in self._arrays[name]:
            ages = -self._read(name, USED_SECONDS, 0, rows)
            for start, stop, _ in self.places(name):
                # Each node counts from its own start, and one of them may have started anew.
                of_node = ages[start:stop]
                of_node -= of_node[used_at[start:stop] > 0].min(initial=0)
        return SavedDirectory(ids.view(np.uint64), used_at, ages)

    def changes_since(self, before: SavedTables) -> SavedSince | None:
        """Return what replaces rows of an earlier checkpoint of the run.

        Returns None if all rows must be read. A node's changes have every row that differs from its files
        with all rows and the changes before them. So they may be laid over the tables of any earlier
        checkpoint that has these files with all rows.
        """
        nodes = {node for node, _ in (*self._parts, *before._parts)}
        if not all(self._continues(before, node) for node in nodes):
            return None
        new = sorted(part for part, files in self._parts.items() if before._parts.get(part) != files)
        files = [entry for part in new for entry in self._parts[part]]
        return SavedSince(files, [self._changes[part] for part in new])

    def _continues(self, before: SavedTables, node: int) -> bool:
        """Return whether a node's files are those of `before`, and changes after them."""
        last, latest = (
            max((n for owner, n in parts if owner == node), default=0)
            for parts in (before._parts, self._parts)
        )
        # The changes of an abandoned checkpoint have a number that is used again.
        same = {0, last} if last == latest else {0}
        return last <= latest and all(
            self._parts.get((node, number)) == before._parts.get((node, number)) for number in same
        )

    def applied(self, node: int) -> AppliedBatches:
        """Return the batches that a node had applied when it saved.

        Raises CheckpointError if they are missing or cannot be read.
        """
        return AppliedBatches.from_array(self._applied.get(node, self._reader).read(applied_name(node)))

    def require(self, table: TableSettings, *, state: bool = True) -> None:
        """Raise CheckpointError unless the saved table fits `table`.

        A saved table fits if it has the same rows and dim, and with `state` also the state arrays that the
        optimizer of `table` stores.
        """
        rows, dim = self._shape(table.name)
        if rows != table.rows:
            what = f"table {table.name} has {rows:,} rows in the checkpoint and {table.rows:,} in the job"
            raise self._error(what, f"set model.table_rows, or tables.{table.name}.rows, to {rows}")
        if dim != table.dim:
            what = f"table {table.name} has dim {dim} in the checkpoint and {table.dim} in the job"
            raise self._error(what, f"set model.embedding_dim, or tables.{table.name}.dim, to {dim}")
        needed = {s.name: s.shape(rows, dim) for s in row_states(table.optimizer)}
        arrays = self._arrays[table.name]
        if (IDS in arrays) != (table.growth is not None):
            kinds = ("growing", "hashed") if IDS in arrays else ("hashed", "growing")
            what = f"table {table.name} is {kinds[0]} in the checkpoint and {kinds[1]} in the job"
            raise self._error(what, f'set tables.{table.name}.kind to "{kinds[0]}"')
        known = (WEIGHTS, *DIRECTORY_ARRAYS)
        saved = {name: shape for name, shape in arrays.items() if name not in known}
        if state and saved != needed:
            raise self._error(
                f"table {table.name} was saved with {', '.join(saved) or 'no optimizer state'}, but "
                f"{table.optimizer} needs {', '.join(needed) or 'none'}",
                "use the embedding.optimizer that it was trained with",
            )

    def _read(self, name: str, array: str, start: int, stop: int) -> NDArray[Any]:
        values = self._reader.read_rows(tensor_name(name, array), start, stop)
        dtype = DIRECTORY_ARRAYS.get(array, np.dtype(np.float32))
        if values.dtype != dtype:
            raise self._error(f"{tensor_name(name, array)} is {values.dtype}, not {dtype}", _REMEDY)
        for changes in self._changes.values():
            changes.lay_over(name, array, start, values)
        return values

    def _shape(self, name: str) -> tuple[int, int]:
        if name not in self._arrays:
            raise self._error(
                f"the checkpoint has no table {name}",
                f"use one of its tables: {', '.join(self.names) or 'none'}",
            )
        rows, dim = self._arrays[name][WEIGHTS]
        return rows, dim

    def _error(self, what: str, remedy: str) -> CheckpointError:
        return CheckpointError(what, where=self._where, remedy=remedy)


def _parts_of(files: Iterable[FileEntry]) -> dict[tuple[int, int], list[FileEntry]]:
    """Return embedding nodes' files by node and number of changes, 0 for all rows."""
    by_part: dict[tuple[int, int], list[FileEntry]] = {}
    for entry in files:
        if (part := parse_role(entry.role)) is not None:
            by_part.setdefault(part, []).append(entry)
    return by_part
