"""Columns of a log, parsed examples, and an observer for their hashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..types import Float32Array, Int32Array, Mask, Uint64Array
from .batch import Bags, no_groups, no_keys, no_other_labels, no_weights

LABEL = "label"


@dataclass(frozen=True)
class FeatureShape:
    """A log's columns: a label, `dense` numbers, `categorical` ids.

    `table_rows` has the rows of each categorical column's table, and `growing` the numbers of the columns
    whose tables grow. Raises ValueError unless there is one entry for each such column, from 1 to 2**31 - 1.
    """

    dense: int
    categorical: int
    table_rows: tuple[int, ...]
    growing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.table_rows) != self.categorical:
            raise ValueError(f"{len(self.table_rows)} tables for {self.categorical} categorical columns")
        if not all(0 < rows < 2**31 for rows in self.table_rows):
            raise ValueError("a table has at least 1 row and fewer than 2**31")

    @property
    def columns(self) -> int:
        """Return the number of columns of a line of text: label, dense, categorical."""
        return 1 + self.dense + self.categorical

    @property
    def dense_names(self) -> list[str]:
        """Return the names of the dense columns, in order: I1, I2, ..."""
        return [f"I{index + 1}" for index in range(self.dense)]

    @property
    def categorical_names(self) -> list[str]:
        """Return the names of the categorical columns, in order: C1, C2, ..."""
        return [f"C{index + 1}" for index in range(self.categorical)]


@dataclass(frozen=True, slots=True)
class Examples:
    """Good rows in the order of their file, or permuted.

    Attributes:
        labels: float32 [n], each 0.0 or 1.0; the first label of a job that has several.
        dense: float32 [n, D], transformed.
        rows: int32 [C1, n], rows of the columns of one id.
        weights: float32 [n], or [0] without sample weights.
        bags: bags of the multi-hot columns.
        other_labels: float32 [T - 1, n], the job's further labels; [0, 0] for one label.
        keys: uint64 [G, n], see `Batch.keys`; [0, 0] without growing tables.
        groups: uint64 [S, n], see `Batch.groups`; [0, 0] without columns of groups.
    """

    labels: Float32Array
    dense: Float32Array
    rows: Int32Array
    weights: Float32Array = field(default_factory=no_weights)
    bags: Bags = field(default_factory=Bags)
    other_labels: Float32Array = field(default_factory=no_other_labels)
    keys: Uint64Array = field(default_factory=no_keys)
    groups: Uint64Array = field(default_factory=no_groups)

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Examples:
        """Return examples start to stop - 1, as views where possible."""
        return Examples(
            self.labels[start:stop],
            self.dense[start:stop],
            self.rows[:, start:stop],
            self.weights[start:stop],
            self.bags.slice(start, stop),
            other_labels=self.other_labels[:, start:stop],
            keys=self.keys[:, start:stop],
            groups=self.groups[:, start:stop],
        )

    def take(self, indices: NDArray[np.intp]) -> Examples:
        """Return the examples `indices`, in that order, as contiguous copies."""
        return Examples(
            self.labels.take(indices),
            self.dense.take(indices, axis=0),
            self.rows.take(indices, axis=1),
            self.weights.take(indices) if len(self.weights) else self.weights,
            self.bags.take(indices) if len(self.bags.lengths) else self.bags,
            other_labels=self.other_labels.take(indices, axis=1)
            if len(self.other_labels)
            else self.other_labels,
            keys=self.keys.take(indices, axis=1) if len(self.keys) else self.keys,
            groups=self.groups.take(indices, axis=1) if len(self.groups) else self.groups,
        )

    @staticmethod
    def join(parts: Sequence[Examples]) -> Examples:
        """Return all parts one after the other, as C-contiguous copies.

        `parts` must not be empty.
        """
        if len(parts) == 1:
            return parts[0]._copy()
        return Examples(
            np.concatenate([part.labels for part in parts]),
            np.concatenate([part.dense for part in parts]),
            np.concatenate([part.rows for part in parts], axis=1),
            np.concatenate([part.weights for part in parts]),
            Bags.join([part.bags for part in parts]),
            other_labels=np.concatenate([part.other_labels for part in parts], axis=1),
            keys=np.concatenate([part.keys for part in parts], axis=1),
            groups=np.concatenate([part.groups for part in parts], axis=1),
        )

    def _copy(self) -> Examples:
        return Examples(
            self.labels.copy(),
            self.dense.copy(),
            self.rows.copy(),
            self.weights.copy() if len(self.weights) else self.weights,
            Bags.join([self.bags]) if len(self.bags.lengths) else self.bags,
            other_labels=self.other_labels.copy(),
            keys=self.keys.copy() if len(self.keys) else self.keys,
            groups=self.groups.copy() if len(self.groups) else self.groups,
        )


def log_transform(values: NDArray[np.float64]) -> Float32Array:
    """Return sign(x) * log1p(|x|), computed in float64, as float32 of any shape.

    A missing value is 0 before and after, and -0.0 becomes 0.0. All input formats use this function. The last
    bit may differ between processors, because log1p does.
    """
    signed = np.abs(values)
    np.log1p(signed, out=signed)
    np.copysign(signed, values, out=signed)
    signed += 0.0
    return signed.astype(np.float32)


@dataclass
class ColumnObserver:
    """Id hashes and missing masks of the good rows in a reader's last chunk.

    The chunk's examples do not have these. Used by one thread at a time.

    Attributes:
        hashes: hashes of each column with a table, uint64 [n]; for a multi-hot column those of all its bags,
            concatenated.
        missing: which values of each dense column are missing, bool [n].
    """

    hashes: Mapping[str, Uint64Array] = field(default_factory=dict)
    missing: Mapping[str, Mask] = field(default_factory=dict)

    def show(self, hashes: Mapping[str, Uint64Array], missing: Mapping[str, Mask]) -> None:
        """Store a chunk's hashes and masks.

        The reader calls this once for each chunk, right before it yields the chunk.
        """
        self.hashes, self.missing = hashes, missing
