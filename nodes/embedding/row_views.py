"""Views of a shard's rows for the files of a checkpoint.

Rows are copied only as they are read, a few MB at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.embedding.storage.bf16_rows import WidenedRows
from ...pipeline.embedding.storage.changed_rows import Fetch
from ...pipeline.embedding.storage.row_storage import RowArray


class PickedRows:
    """Some rows of an array, by their numbers; see `TensorView`.

    Only the thread that owns the array may read or copy them.

    Args:
        values: the array, [rows, ...], with at least one row.
        rows: int64 [N], in range.
    """

    def __init__(self, values: RowArray, rows: NDArray[np.int64]) -> None:
        self._values, self._rows = values, rows
        self.dtype: np.dtype[Any] = values.dtype
        self.itemsize: int = values.itemsize
        self.ndim: int = values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return (len(self), *self._values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return len(self) * (int(self._values.nbytes) // len(self._values))

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for the rows: more than their size where whole records are read."""
        return len(self) * (read_bytes(self._values) // len(self._values))

    @property
    def held_bytes(self) -> int:
        """Size of a copy."""
        return len(self) * (held_bytes(self._values) // len(self._values))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice) -> PickedRows:
        return PickedRows(self._values, self._rows[rows])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("rows from all over an array cannot be read without a copy")
        return np.asarray(self.copy(), dtype)

    def copy(self) -> RowArray:
        """Return the rows, of the type of the array."""
        # In a quarter of the time of `values[rows]`.
        return self._values.take(self._rows, axis=0, mode="clip")


class ServedRows:
    """Rows of another thread, which copies them as they are read; see `TensorView`."""

    def __init__(self, values: Any, fetch: Fetch) -> None:
        self._values = values
        self._fetch = fetch
        self.dtype: np.dtype[Any] = values.dtype
        self.itemsize: int = values.itemsize
        self.ndim: int = values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        shape: tuple[int, ...] = self._values.shape
        return shape

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return int(self._values.nbytes)

    @property
    def read_bytes(self) -> int:
        """Bytes that are read for the rows: more than their size where whole records are read."""
        return read_bytes(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> ServedRows:
        return ServedRows(self._values[rows], self._fetch)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("rows of another thread cannot be read without a copy")
        return self._fetch(lambda: np.array(self._values, dtype))


def read_bytes(values: Any) -> int:
    """Return the bytes that are read for an array or a view, see `TensorView`."""
    return int(getattr(values, "read_bytes", values.nbytes))


def held_bytes(values: RowArray | PickedRows) -> int:
    """Return the bytes that a copy takes; of bfloat16 half of those written."""
    if isinstance(values, PickedRows):
        return values.held_bytes
    held: NDArray[Any] = values.bits if isinstance(values, WidenedRows) else values
    return held.nbytes
