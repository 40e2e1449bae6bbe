"""A batch of examples, and bags of rows.

A bag has the rows of one example in a multi-hot table; it may be empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..types import BatchId, Float32Array, Int32Array, Uint64Array

Number = TypeVar("Number", bound=np.generic)


def no_weights() -> Float32Array:
    """Return float32 [0]: the sample weights of a job that has none."""
    return np.zeros(0, np.float32)


def no_bag_rows() -> Int32Array:
    """Return int32 [0]: the bag rows of a job without bags."""
    return np.zeros(0, np.int32)


def no_bag_lengths() -> Int32Array:
    """Return int32 [0, 0]: the bag lengths of a job without bags."""
    return np.zeros((0, 0), np.int32)


def no_other_labels() -> Float32Array:
    """Return float32 [0, 0]: the further labels of a job with one label."""
    return np.zeros((0, 0), np.float32)


def no_item_weights() -> Float32Array:
    """Return float32 [0]: the item weights of a job without any."""
    return np.zeros(0, np.float32)


def no_keys() -> Uint64Array:
    """Return uint64 [0, 0]: the keys of a job without growing tables."""
    return np.zeros((0, 0), np.uint64)


def no_bag_keys() -> Uint64Array:
    """Return uint64 [0]: the bag keys of a job without growing tables of lists."""
    return np.zeros(0, np.uint64)


def no_groups() -> Uint64Array:
    """Return uint64 [0, 0]: the groups of a job without columns of groups."""
    return np.zeros((0, 0), np.uint64)


def label_columns(labels: Float32Array, others: Float32Array) -> Float32Array:
    """Return all labels of examples as a model's logits have them.

    From the first label, float32 [B], and the others, [T - 1, B], they are [B, T]; without others `labels`
    itself, [B].
    """
    return np.stack([labels, *others], axis=1) if len(others) else labels


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples as a reader sends them to a trainer.

    Attributes:
        id: the batch's identity.
        labels: float32 [B], each 0.0 or 1.0; the first label of a job that has several.
        dense: float32 [B, D], transformed.
        rows: int32 [C1, B], C-contiguous: for each column of one id, the row (0 <= row < its table's rows) of
            each example.
        weights: float32 [B], finite and at least 0; [0] when the job has no sample weights.
        bag_rows: int32 [N], rows of the first multi-hot column: those of example 0, of example 1, ...; then
            those of the second column, ...
        bag_lengths: int32 [M, B], number of these rows by multi-hot column and example; 0 is an empty bag.
        replay: whether the batch was trained before, but a replaced embedding node lacks its updates.
        other_labels: float32 [T - 1, B], each 0.0 or 1.0: the job's further labels; [0, 0] for one label.
        item_weights: float32 [N], weights of `bag_rows`, finite and at least 0; 1 in columns without weights;
            [0] when no column has weights.
        keys: uint64 [G, B], the hash of each example's id in each column of one id whose table grows; [0, 0]
            without such columns. `rows` has their rows as those of a hashed table, which say what node has an
            id.
        bag_keys: uint64 [N], the hashes of the ids of `bag_rows`, 0 where the table does not grow; [0] when
            no multi-hot column has a growing table.
        groups: uint64 [S, B], the hash of each example's value in each column of kind "group", 0 where it is
            missing; [0, 0] without such columns.
        proof: that its reader was given its span; empty for a batch that is not trained.
    """

    id: BatchId
    labels: Float32Array
    dense: Float32Array
    rows: Int32Array
    weights: Float32Array = field(default_factory=no_weights)
    bag_rows: Int32Array = field(default_factory=no_bag_rows)
    bag_lengths: Int32Array = field(default_factory=no_bag_lengths)
    replay: bool = False
    other_labels: Float32Array = field(default_factory=no_other_labels)
    item_weights: Float32Array = field(default_factory=no_item_weights)
    keys: Uint64Array = field(default_factory=no_keys)
    bag_keys: Uint64Array = field(default_factory=no_bag_keys)
    groups: Uint64Array = field(default_factory=no_groups)
    proof: bytes = b""

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Bags:
    """The bags of some examples.

    Attributes:
        rows: int32 [N], rows of column 0: those of example 0, of example 1, ...; then those of column 1, ...
        lengths: int32 [M, n], number of these rows by column and example.
        weights: float32 [N], weights of the rows; [0] when no column has weights.
        keys: uint64 [N], see `Batch.bag_keys`.
    """

    rows: Int32Array = field(default_factory=no_bag_rows)
    lengths: Int32Array = field(default_factory=no_bag_lengths)
    weights: Float32Array = field(default_factory=no_item_weights)
    keys: Uint64Array = field(default_factory=no_bag_keys)

    def slice(self, start: int, stop: int) -> Bags:
        """Return the bags of examples start to stop - 1, of those that there are."""
        if not self.lengths.shape[1]:
            return self
        stop = min(stop, self.lengths.shape[1])
        if not len(self.lengths):
            return Bags(self.rows, self.lengths[:, start:stop])
        ends = _ends(self.lengths)
        begins = ends - self.lengths
        bounds: list[tuple[int, int]] = []
        if start < stop:
            bounds = list(zip(begins[:, start].tolist(), ends[:, stop - 1].tolist(), strict=True))
        parts = [self.rows[first:last] for first, last in bounds]
        weights = [self.weights[first:last] for first, last in bounds]
        keys = [self.keys[first:last] for first, last in bounds]
        return Bags(
            _joined(parts, no_bag_rows()),
            np.ascontiguousarray(self.lengths[:, start:stop]),
            _joined(weights, no_item_weights()),
            _joined(keys, no_bag_keys()),
        )

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
        places = shift + np.arange(total)
        weights = self.weights[places] if len(self.weights) else self.weights
        keys = self.keys[places] if len(self.keys) else self.keys
        return Bags(self.rows[places], lengths, weights, keys)

    @staticmethod
    def join(parts: Sequence[Bags]) -> Bags:
        """Return all parts one after the other, as C-contiguous copies.

        `parts` must not be empty.
        """
        lengths = np.concatenate([part.lengths for part in parts], axis=1)
        if not len(lengths):
            return Bags(no_bag_rows(), lengths)
        bounds = [np.concatenate([[0], np.cumsum(part.lengths.sum(axis=1))]) for part in parts]
        pieces = [
            (part, bound[table], bound[table + 1])
            for table in range(len(lengths))
            for part, bound in zip(parts, bounds, strict=True)
        ]
        rows = [part.rows[first:last] for part, first, last in pieces]
        weights = [part.weights[first:last] for part, first, last in pieces if len(part.weights)]
        keys = [part.keys[first:last] for part, first, last in pieces if len(part.keys)]
        return Bags(
            _joined(rows, no_bag_rows()),
            lengths,
            _joined(weights, no_item_weights()),
            _joined(keys, no_bag_keys()),
        )

    @staticmethod
    def of_tables(
        rows: Sequence[Int32Array],
        lengths: Sequence[Int32Array],
        weights: Sequence[Float32Array | None],
        keys: Sequence[Uint64Array | None],
    ) -> Bags:
        """Return the bags of some tables, given those of each.

        Where any table has weights, those of the others are 1; where any has keys, those of the others are 0.
        """
        if not rows:
            return Bags()
        counts = [len(of_table) for of_table in rows]
        return Bags(
            np.concatenate(rows),
            np.stack(lengths),
            _filled(weights, counts, np.float32(1), no_item_weights()),
            _filled(keys, counts, np.uint64(0), no_bag_keys()),
        )


def _ends(lengths: Int32Array) -> NDArray[np.int64]:
    """Return int64 [M, n]: one past the last row of each bag."""
    ends: NDArray[np.int64] = np.cumsum(lengths, dtype=np.int64).reshape(lengths.shape)
    return ends


def _filled(
    arrays: Sequence[NDArray[Number] | None], counts: Sequence[int], other: Number, none: NDArray[Number]
) -> NDArray[Number]:
    """Return the values of all tables.

    A table without has `other`; if no table has any, they are `none`.
    """
    if all(array is None for array in arrays):
        return none
    filled = [
        np.full(count, other) if array is None else array for array, count in zip(arrays, counts, strict=True)
    ]
    return np.concatenate(filled)


def _joined(parts: Sequence[NDArray[Number]], none: NDArray[Number]) -> NDArray[Number]:
    return np.concatenate(parts) if parts else none
