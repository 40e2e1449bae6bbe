"""One embedding table in this process's memory."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..config.columns import TIME_PARTS, TimePart
from ..data.hashing import column_number, hash_bytes, hash_combinations, hash_integers, table_rows_of
from ..embedding.growing.id_index import ABSENT
from ..embedding.storage.grown_rows import GrownRows
from ..types import Float32Array

RawId = str | bytes | int | float | None
Values = RawId | Sequence[RawId]
"""A raw id, or of a cross the raw ids of its columns."""


class Table:
    """One table's rows, and the mapping from raw ids of a column to rows.

    Any thread may call.

    Attributes:
        name: name of the column.
        table: name of the table, which is that of the column unless columns share it.
        pooling: "" if an example has one row, otherwise how its rows are combined: "sum" or "mean",
            "weighted_sum" or "weighted_mean", or "none" for a sequence.
        column: number of the column in the hash (see `pipeline.data.hashing`).
        integers_as_text: whether an integer is hashed as its decimal digits, because training read texts;
            otherwise it is hashed as 8 bytes, like the integers of Parquet.
        part: part of a time that the rows stand for, without a hash; None for other tables.
        boundaries: boundaries of the buckets that the rows stand for, without a hash; empty for other tables.
        parts: tables of the columns that a cross combines; empty for other tables.
        grown: which id has which row of a growing table; None for other tables.
    """

    def __init__(
        self,
        name: str,
        weights: Float32Array | GrownRows,
        pooling: str,
        *,
        table: str = "",
        integers_as_text: bool,
        part: TimePart | None = None,
        boundaries: Sequence[float] = (),
        parts: Sequence[Table] = (),
    ) -> None:
        self.name = name
        self.grown = weights if isinstance(weights, GrownRows) else None
        self._weights = None if isinstance(weights, GrownRows) else weights.view()
        if self._weights is not None:
            self._weights.flags.writeable = False
        self.pooling = pooling
        self.table = table or name
        self.column = column_number(self.table)
        self.integers_as_text = integers_as_text
        self.part: TimePart | None = part
        self.boundaries = tuple(boundaries)
        self.parts = tuple(parts)

    @property
    def weights(self) -> Float32Array:
        """All rows, float32 [rows, dim], read-only.

        Of a growing table a copy of those of the ids that had a row, by their hashes.
        """
        if self._weights is not None:
            return self._weights
        assert self.grown is not None
        weights = self.grown.vectors
        weights.flags.writeable = False
        return weights

    @property
    def rows(self) -> int:
        return len(self.weights if self.grown is None else self.grown)

    @property
    def dim(self) -> int:
        """Number of floats in a row."""
        return int(self.weights.shape[1]) if self.grown is None else self.grown.dim

    @property
    def is_fixed(self) -> bool:
        """Whether each value has a row of its own, without a hash."""
        return self.part is not None or bool(self.boundaries)

    def hash(self, value: Values) -> int:
        """Map a raw id to its row, as a reader does.

        Text is hashed as its UTF-8 bytes, None (missing) as no bytes. For a table of parts of times give the
        number of the part, such as the hour; for a table of buckets the number in the column; for a cross the
        list of its columns' values. Raises TypeError for another type, ValueError for an integer that does
        not fit 64 bits or is not a number of the part, and for a list of another length than the cross, and
        KeyError for an id that has no row in a growing table.
        """
        key = self._key(value)
        if self.grown is not None:
            row = int(self.grown.find(np.array([key], np.uint64))[0])
            if row == ABSENT:
                raise KeyError(f"table {self.name}: {value!r} has no row")
            return row
        return key if self.is_fixed else int(table_rows_of(np.array([[key]], np.uint64), (self.rows,))[0, 0])

    def _key(self, value: Values) -> int:
        """Return the hash of a value, or its row in a table without one."""
        if self.parts:
            return self._key_of_cross(value)
        if isinstance(value, Sequence) and not isinstance(value, str | bytes):
            raise TypeError(f"table {self.name}: {value!r} is not an id; give a list only for a cross")
        if self.part is not None:
            return self._row_of_part(value, self.part)
        if self.boundaries:
            return self._row_of_bucket(value)
        return self._hash_of_id(value)

    def _key_of_cross(self, values: Values) -> int:
        names = [part.name for part in self.parts]
        if not isinstance(values, Sequence) or isinstance(values, str | bytes):
            raise TypeError(f"table {self.name}: {values!r} is not a list; give the values of {names}")
        if len(values) != len(names):
            raise ValueError(f"table {self.name}: {len(values)} values given; give those of {names}")
        keys = [part._key(value) for part, value in zip(self.parts, values, strict=True)]
        hashed = hash_combinations(self.column, [np.array([key], np.uint64) for key in keys])
        return int(hashed[0])

    def _hash_of_id(self, value: RawId) -> int:
        if value is None:
            value = b""
        elif isinstance(value, bool) or not isinstance(value, str | bytes | int | np.integer):
            raise TypeError(
                f"table {self.name}: {value!r} is not an id; give text, bytes, an integer or None"
            )
        if isinstance(value, int | np.integer):
            if not -(2**63) <= int(value) < 2**64:
                raise ValueError(f"table {self.name}: the id {value} does not fit into 64 bits")
            if self.integers_as_text:
                value = str(int(value))
            else:
                number = np.array([int(value) & (2**64 - 1)], np.uint64)
                return int(hash_integers(self.column, number)[0])
        return hash_bytes(self.column, value.encode() if isinstance(value, str) else value)

    def lookup(self, rows: int | Sequence[int] | NDArray[np.integer] | torch.Tensor) -> torch.Tensor:
        """Return copies of the vectors of rows.

        The rows are integers [...], the vectors float32 [..., dim]. Raises IndexError for a row that does not
        exist, TypeError for rows that are not integers.
        """
        index = np.asarray(rows)
        if index.size == 0:
            index = index.astype(np.int64)
        if index.dtype.kind not in "iu":
            raise TypeError(f"table {self.name}: rows must be integers, not {index.dtype}")
        if index.size and not (int(index.min()) >= 0 and int(index.max()) < self.rows):
            raise IndexError(f"table {self.name}: a row is outside of 0 to {self.rows - 1}")
        vectors = self.weights[index] if self.grown is None else self.grown.vectors_at(index)
        return torch.from_numpy(vectors)

    def lookup_ids(self, values: Iterable[Values]) -> torch.Tensor:
        """Return the vectors of raw ids, float32 [N, dim].

        An id without a row in a growing table has its first values. Raises as `hash` does, but no KeyError.
        """
        if self.grown is not None:
            keys = np.array([self._key(value) for value in values], np.uint64)
            return torch.from_numpy(self.grown.lookup(keys))
        return self.lookup([self.hash(value) for value in values])

    def _row_of_part(self, value: RawId, part: TimePart) -> int:
        numbers = TIME_PARTS[part]
        if value is None:
            return len(numbers)
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"table {self.name}: {value!r} is not a {part}; give an integer or None")
        if int(value) not in numbers:
            raise ValueError(
                f"table {self.name}: {value} is not a {part}; give {numbers.start} to {numbers.stop - 1}"
            )
        return numbers.index(int(value))

    def _row_of_bucket(self, value: RawId) -> int:
        if value is None:
            return len(self.boundaries) + 1
        if isinstance(value, bool | str | bytes) or not math.isfinite(value):
            raise TypeError(f"table {self.name}: {value!r} is not a number; give a number or None")
        return bisect_right(self.boundaries, value)
