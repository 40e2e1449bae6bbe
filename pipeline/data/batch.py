"""A batch of examples and its identity (contract 7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Float32Array = NDArray[np.float32]
Int32Array = NDArray[np.int32]


class BatchId(NamedTuple):
    """Names one batch for ever: its contents are a pure function of these four numbers and the files.

    `number` counts the batches of one span, from 0 (the index of contract 7; tuples own the name `index`).
    """

    epoch: int
    span: int
    number: int
    seed: int

    @classmethod
    def from_wire(cls, value: Any) -> BatchId:
        """From four integers as msgpack gives them; raises ValueError for anything else."""
        if not isinstance(value, list | tuple) or len(value) != 4:
            raise ValueError(f"a batch id is four integers, not {value!r:.80}")
        # Files and arrays keep them as signed integers of 64 bits.
        if not all(type(part) is int and 0 <= part < 2**63 for part in value):
            raise ValueError(f"a batch id is four integers from 0 to 2**63 - 1, not {value!r:.80}")
        return cls(*value)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples as they travel from a reader to a trainer.

    Attributes:
        id: the batch's identity.
        labels: float32 [B], each 0.0 or 1.0.
        dense: float32 [B, D], transformed.
        rows: int32 [T, B], C-contiguous: for table t, the row (0 <= row < table_rows[t]) of each example.
    """

    id: BatchId
    labels: Float32Array
    dense: Float32Array
    rows: Int32Array

    def __len__(self) -> int:
        return len(self.labels)
