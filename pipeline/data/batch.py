"""A batch of examples and its identity (contract 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
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


def no_weights() -> Float32Array:
    """float32 [0]: the weights of examples that have none."""
    return np.zeros(0, np.float32)


def no_bag_rows() -> Int32Array:
    """int32 [0]: the rows of no bags."""
    return np.zeros(0, np.int32)


def no_bag_lengths() -> Int32Array:
    """int32 [0, 0]: the lengths of no bags."""
    return np.zeros((0, 0), np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples as they travel from a reader to a trainer.

    Attributes:
        id: the batch's identity.
        labels: float32 [B], each 0.0 or 1.0.
        dense: float32 [B, D], transformed.
        rows: int32 [T1, B], C-contiguous: for each one-hot table, the row (0 <= row < its rows) of each
            example.
        weights: float32 [B], finite and at least 0; [0] when the job has no sample weights.
        bag_rows: int32 [N], the rows of the first multi-hot table of example 0, of example 1, ..., then those
            of the second, ...
        bag_lengths: int32 [M, B], how many of them each example has of each multi-hot table; 0 is an empty
            bag.
    """

    id: BatchId
    labels: Float32Array
    dense: Float32Array
    rows: Int32Array
    weights: Float32Array = field(default_factory=no_weights)
    bag_rows: Int32Array = field(default_factory=no_bag_rows)
    bag_lengths: Int32Array = field(default_factory=no_bag_lengths)

    def __len__(self) -> int:
        return len(self.labels)
