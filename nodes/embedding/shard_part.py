"""A shard's part of a checkpoint: all rows, or changes since an earlier part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.store.contract import PartTarget
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.changed_rows import ChangedRows, Fetch
from ...pipeline.embedding.storage.saved_changes import CHANGED_ROWS, part_role
from ...pipeline.embedding.storage.saved_tables import PLACEMENT_KEY, applied_name, tensor_name
from ...pipeline.embedding.storage.store import ShardStore
from .row_views import PickedRows, ServedRows, held_bytes


@dataclass(frozen=True)
class ShardPart:
    """Rows of a shard with their optimizer state, and the batches applied to them.

    It is made from the store's own memory, without a copy. Only the thread that owns the store may write or
    copy it, before it applies anything more.

    Attributes:
        node: index of the embedding node that holds them.
        placement_digest: digest of the placement of rows on nodes.
        rows: rows and optimizer state by the names of tensors, see `saved_tables`.
        applied: the applied batches as an array; None if the rows are not of one moment.
        first_rows: number of the first row, for tensors that are pieces of a table.
        changed_rows: the numbers of changed rows, int64, by the names of tensors.
        changes: 0 for all rows; otherwise the number of these changes, counted from 1.
    """

    node: int
    placement_digest: str
    rows: Mapping[str, Any]
    applied: NDArray[Any] | None
    first_rows: Mapping[str, int] = field(default_factory=dict)
    changed_rows: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    changes: int = 0

    @classmethod
    def of(cls, store: ShardStore, applied: AppliedBatches) -> ShardPart:
        rows: dict[str, Any] = {}
        first_rows: dict[str, int] = {}
        for piece, arrays in store.pieces():
            for array, values in arrays.items():
                name = tensor_name(store.plan.tables[piece.table].name, array)
                rows[name], first_rows[name] = values, piece.start
        return cls(store.node, store.plan.placement_digest, rows, applied.to_array(), first_rows)

    @classmethod
    def of_changes(
        cls, store: ShardStore, applied: AppliedBatches | None, changed: Iterable[ChangedRows], number: int
    ) -> ShardPart:
        """Make a part with changed rows.

        Without `applied` any thread may call, but not write the part.
        """
        rows: dict[str, Any] = {}
        numbers: dict[str, NDArray[np.int64]] = {}
        for part in changed:
            table = store.plan.tables[part.piece.table].name
            numbers[tensor_name(table, CHANGED_ROWS)] = part.rows + part.piece.start
            for array, values in part.arrays.items():
                rows[tensor_name(table, array)] = PickedRows(values, part.rows)
        batches = None if applied is None else applied.to_array()
        return cls(store.node, store.plan.placement_digest, rows, batches, {}, numbers, number)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors as written, in float32."""
        return sum(values.nbytes for values in self._tensors.values())

    @property
    def copy_bytes(self) -> int:
        """Bytes of a copy of the rows; of bfloat16 half of those written."""
        return sum(held_bytes(values) for values in self.rows.values())

    def copied(self) -> ShardPart:
        """Return a copy that any thread may write to files."""
        return replace(self, rows={name: values.copy() for name, values in self.rows.items()})

    def served(self, fetch: Fetch) -> ShardPart:
        """Return a part that another thread may write while rows change.

        The rows are then of no one moment. `fetch` runs a copy of a few MB on the thread that owns
        the store, and returns it.
        """
        rows = {name: ServedRows(values, fetch) for name, values in self.rows.items()}
        return replace(self, rows=rows, applied=None)

    def write(self, directory: Path | PartTarget) -> list[FileEntry]:
        """Write its files into a checkpoint's folder or prefix.

        Raises ResourceError, StorageError, and JobFileError for non-finite rows.
        """
        role = part_role(self.node, self.changes)
        metadata = {"role": role, PLACEMENT_KEY: self.placement_digest}
        return write_tensors(
            directory, role, self._tensors, metadata, first_rows=self.first_rows, finite=True
        )

    @property
    def _tensors(self) -> dict[str, Any]:
        applied = {} if self.applied is None else {applied_name(self.node): self.applied}
        return {**self.changed_rows, **self.rows, **applied}
