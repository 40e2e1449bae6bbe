"""A batch of examples, and bags of rows.

A bag has the rows of one example in a multi-hot table; it may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..types import BatchId, Float32Array, Int32Array, Uint64Array


def no_weights() -> Float32Array:
    """Return float32 [0]: the sample weights of a job that has none."""
    return np.zeros(0, np.float32)


def no_bag_rows() -> Int32Array:
    """Return int32 [0]: the bag rows of a job without bags."""
    return np.zeros(0, np.int32)


def no_bag_lengths() -> Int32Array:
    """Return int32 [0, 0]: the bag lengths of a job without bags."""
    return np.zeros((0, 0), np.int32)


def no_keys() -> Uint64Array:
    """Return uint64 [0, 0]: the keys of a job without growing tables."""
    return np.zeros((0, 0), np.uint64)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples as a reader sends them to a trainer.

    Attributes:
        id: the batch's identity.
        labels: float32 [B], each 0.0 or 1.0.
        dense: float32 [B, D], transformed.
        rows: int32 [T1, B], C-contiguous: for each one-hot table, the row (0 <= row < its rows) of each
            example.
        weights: float32 [B], finite and at least 0; [0] when the job has no sample weights.
        bag_rows: int32 [N], rows of the first multi-hot table: those of example 0, of example 1, ...; then
            those of the second table, ...
        bag_lengths: int32 [M, B], number of these rows by multi-hot table and example; 0 is an empty bag.
        replay: whether the batch was trained before, but a replaced embedding node lacks its updates.
        keys: uint64 [G, B], the hash of each example's id in each growing table; [0, 0] without such tables.
            `rows` has their rows as those of a hashed table, which say what node has an id.
    """

    id: BatchId
    labels: Float32Array
    dense: Float32Array
    rows: Int32Array
    weights: Float32Array = field(default_factory=no_weights)
    bag_rows: Int32Array = field(default_factory=no_bag_rows)
    bag_lengths: Int32Array = field(default_factory=no_bag_lengths)
    replay: bool = False
    keys: Uint64Array = field(default_factory=no_keys)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Bags:
    """The bags of some examples.

    Attributes:
        rows: int32 [N], rows of table 0: those of example 0, of example 1, ...; then those of table 1, ...
        lengths: int32 [M, n], number of these rows by table and example.
    """

    rows: Int32Array = field(default_factory=no_bag_rows)
    lengths: Int32Array = field(default_factory=no_bag_lengths)

    def slice(self, start: int, stop: int) -> Bags:
        """Return the bags of examples start to stop - 1."""
        if not self.lengths.shape[1]:
            return self
        if not len(self.lengths):
            return Bags(self.rows, self.lengths[:, start:stop])
        ends = _ends(self.lengths)
        begins = ends - self.lengths
        parts = []
        if start < stop:
            parts = [
                self.rows[first:last]
                for first, last in zip(begins[:, start].tolist(), ends[:, stop - 1].tolist(), strict=True)
            ]
        return Bags(_joined(parts), np.ascontiguousarray(self.lengths[:, start:stop]))

    def take(self, indices: NDArray[np.intp]) -> Bags:
        """Return C-contiguous copies of the bags of the examples `indices`, in that order."""
        lengths = self.lengths.take(indices, axis=1)
        if not len(lengths):
            return Bags(self.rows, lengths)
        begins = (_ends(self.lengths) - self.lengths).take(indices, axis=1).ravel()
        counts = lengths.ravel().astype(np.int64)
        total = int(counts.sum())
        # For each row: the bag's begin here, minus its begin in the result.
        shift = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        return Bags(self.rows[shift + np.arange(total)], lengths)

    @staticmethod
    def join(parts: Sequence[Bags]) -> Bags:
        """Return all parts one after the other, as C-contiguous copies.

        `parts` must not be empty.
        """
        lengths = np.concatenate([part.lengths for part in parts], axis=1)
        if not len(lengths):
            return Bags(no_bag_rows(), lengths)
        bounds = [np.concatenate([[0], np.cumsum(part.lengths.sum(axis=1))]) for part in parts]
        rows = [
            part.rows[bound[table] : bound[table + 1]]
            for table in range(len(lengths))
            for part, bound in zip(parts, bounds, strict=True)
        ]
        return Bags(_joined(rows), lengths)


def _ends(lengths: Int32Array) -> NDArray[np.int64]:
    """Return int64 [M, n]: one past the last row of each bag."""
    ends: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64).reshape(lengths.shape)
    return ends


def _joined(parts: Sequence[Int32Array]) -> Int32Array:
    return np.concatenate(parts) if parts else no_bag_rows()
