"""Memory of a node's rows, or of what is kept beside each, that is read and written by row numbers."""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)

LINE_BYTES = 64
"""Of a line of the cache; a power of 2."""


class RowMemory(Generic[Number]):
    """One array, zero at first, that begins where a line of the cache does: a row as long as a line, as 16
    floats are, is then in one of them and not in two. Knows no torch.

    A row is used by one thread at a time; different rows may be by several.

    Args:
        shape: [rows], or [rows, dim].
        dtype: of its numbers.

    Attributes:
        values: the memory itself, C-contiguous.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type[Number]) -> None:
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        # numpy's memory, since it asks the kernel for huge pages and torch's does not; zeros that are not
        # written take none of it.
        space = np.zeros(size_bytes + LINE_BYTES, np.uint8)
        start = -space.ctypes.data % LINE_BYTES
        self.values: NDArray[Number] = space[start : start + size_bytes].view(dtype).reshape(shape)
        self._whole = _as_whole(self.values)

    def take(self, rows: NDArray[Any], out: NDArray[Number] | None = None) -> NDArray[Number]:
        """Copies of rows int32 or int64 [N], all in range, repeats allowed: [N, ...], in `out` if it is
        given, which is C-contiguous."""
        # The rows are in range: "clip" only spares numpy a buffered copy and its own check.
        return np.take(self.values, rows, axis=0, out=out, mode="clip")

    def put(self, rows: NDArray[np.int64], values: NDArray[Number]) -> None:
        """Writes `values`, [M, ...], C-contiguous, to rows int64 [M], all in range, distinct."""
        np.put(self._whole, rows, _as_whole(values), mode="clip")


def _as_whole(values: NDArray[Any]) -> NDArray[Any]:
    """A row as one value of so many bytes, [rows]: numpy then copies it at once."""
    if values.ndim == 1:
        return values
    return values.view(np.dtype((np.void, values.itemsize * values.shape[1])))[:, 0]
