"""A batch of examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..types import BatchId, Float32Array, Int32Array


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
