"""A shard's part of a checkpoint: all rows, or changes since an earlier part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.store.contract import PartTarget
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.bf16_rows import WidenedRows
from ...pipeline.embedding.storage.saved_changes import CHANGED_ROWS, part_role
from ...pipeline.embedding.storage.saved_tables import PLACEMENT_KEY, applied_name, tensor_name
from ...pipeline.embedding.storage.store import ChangedRows, ShardStore


@dataclass(frozen=True)
class ShardPart:
    """A shard at one moment: rows, optimizer state and applied batches.

    Attributes:
        node: index of the embedding node that holds them.
        placement_digest: digest of the placement of rows on nodes.
        tensors: tensors by name, see `saved_tables`.
        first_rows: number of the first row, for tensors that are pieces of a table.
        changes: 0 for all rows; otherwise the number of these changes, counted from 1.
    """

    node: int
    placement_digest: str
    tensors: Mapping[str, Any]
    first_rows: Mapping[str, int]
    changes: int = 0

    @classmethod
    def of(cls, store: ShardStore, applied: AppliedBatches) -> ShardPart:
        """Make the part of a checkpoint from the store's own memory, without a copy.

        Only the thread that owns the store may write or copy it, before it applies anything more.
        """
        tensors: dict[str, NDArray[Any] | WidenedRows] = {}
        first_rows: dict[str, int] = {}
        for piece, arrays in store.pieces():
            for array, values in arrays.items():
                name = tensor_name(store.plan.tables[piece.table].name, array)
                tensors[name], first_rows[name] = values, piece.start
        tensors[applied_name(store.node)] = applied.to_array()
        return cls(store.node, store.plan.placement_digest, tensors, first_rows)

    @classmethod
    def of_changes(
        cls, store: ShardStore, applied: AppliedBatches, changed: Iterable[ChangedRows], number: int
    ) -> ShardPart:
        """Copy changed rows of the store, and the applied batches.

        Only the thread that owns the store may call; any thread may write the result.
        """
        tensors: dict[str, NDArray[Any] | WidenedRows] = {applied_name(store.node): applied.to_array()}
        for part in changed:
            table = store.plan.tables[part.piece.table].name
            tensors[tensor_name(table, CHANGED_ROWS)] = part.rows + part.piece.start
            tensors |= {tensor_name(table, array): values[part.rows] for array, values in part.arrays.items()}
        return cls(store.node, store.plan.placement_digest, tensors, {}, number)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors as written, in float32."""
        return sum(values.nbytes for values in self.tensors.values())

    @property
    def copy_bytes(self) -> int:
        """Bytes of a copy; bfloat16 rows take half of what is written."""
        return sum(_held(values).nbytes for values in self.tensors.values())

    def copied(self) -> ShardPart:
        """Return a copy that any thread may write to files."""
        tensors = {name: values.copy() for name, values in self.tensors.items()}
        return ShardPart(self.node, self.placement_digest, tensors, self.first_rows)

    def write(self, directory: Path | PartTarget) -> list[FileEntry]:
        """Write its files into a checkpoint's folder or prefix.

        Raises ResourceError, StorageError, and JobFileError for non-finite rows.
        """
        role = part_role(self.node, self.changes)
        metadata = {"role": role, PLACEMENT_KEY: self.placement_digest}
        return write_tensors(directory, role, self.tensors, metadata, first_rows=self.first_rows, finite=True)


def changed_bytes(changed: Iterable[ChangedRows]) -> int:
    """Return the bytes that a copy of changed rows takes."""
    total = 0
    for part in changed:
        row_bytes = sum(_held(values).nbytes // len(values) for values in part.arrays.values())
        total += len(part.rows) * (row_bytes + part.rows.itemsize)
    return total


def _held(values: Any) -> NDArray[Any]:
    """Return the array in memory; for bfloat16 its bits."""
    held: NDArray[Any] = values.bits if isinstance(values, WidenedRows) else values
    return held
