"""What one embedding node puts into a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.saved_tables import PLACEMENT_KEY, ROLE, applied_name, tensor_name
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.embedding.storage.widened import WidenedRows


@dataclass(frozen=True)
class ShardPart:
    """Rows, optimizer state and the batches that were applied to them, all of one moment.

    Attributes:
        node: whose they are.
        placement_digest: which rows the nodes have.
        tensors: by name, see `saved_tables`.
        first_rows: of those that are pieces of a table, the number of their first row.
    """

    node: int
    placement_digest: str
    tensors: Mapping[str, NDArray[Any] | WidenedRows]
    first_rows: Mapping[str, int]

    @classmethod
    def of(cls, store: ShardStore, applied: AppliedBatches) -> ShardPart:
        """On the store's own memory: only the thread that owns it may write or copy the part, before it
        applies anything more."""
        tensors: dict[str, NDArray[Any] | WidenedRows] = {}
        first_rows: dict[str, int] = {}
        for piece, arrays in store.pieces():
            for array, values in arrays.items():
                name = tensor_name(store.plan.tables[piece.table].name, array)
                tensors[name], first_rows[name] = values, piece.start
        tensors[applied_name(store.node)] = applied.to_array()
        return cls(store.node, store.plan.placement_digest, tensors, first_rows)

    @property
    def bytes(self) -> int:
        """Of all tensors, as they are written: float32."""
        return sum(values.nbytes for values in self.tensors.values())

    @property
    def copy_bytes(self) -> int:
        """What a copy takes, of rows of bfloat16 half of what is written."""
        held = (v.bits if isinstance(v, WidenedRows) else v for v in self.tensors.values())
        return sum(values.nbytes for values in held)

    def copied(self) -> ShardPart:
        """The same in memory of its own, which any thread may write."""
        tensors = {name: values.copy() for name, values in self.tensors.items()}
        return ShardPart(self.node, self.placement_digest, tensors, self.first_rows)

    def write(self, directory: Path) -> list[FileEntry]:
        """Writes its files into a checkpoint's folder. Raises ResourceError."""
        role = f"{ROLE}-{self.node}"
        metadata = {"role": role, PLACEMENT_KEY: self.placement_digest}
        return write_tensors(directory, role, self.tensors, metadata, first_rows=self.first_rows)
