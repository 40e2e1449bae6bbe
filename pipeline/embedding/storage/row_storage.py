"""A node's rows in memory, as float32 or bfloat16.

Both, and optimizer state, are stored in a `RowMemory`, an array that is read and written by row numbers.
"""

from __future__ import annotations

import math
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...types import Float32Array, IndexArray, Int32Array
from .bf16_rows import RowNumbers, WidenedRows, add_at_random, nearest_bits

Number = TypeVar("Number", bound=np.generic)

CACHE_LINE_BYTES = 64
"""Bytes of a cache line; a power of 2."""

BLOCK_BYTES: Final = 1 << 17
"""Bytes of rows that are read, added to and written together: they stay in the second-level cache, and numpy
writes a row at once. On 64 MB of rows it takes a quarter less time than `scatter_add_`."""

LARGE_BYTES: Final = 1 << 30
"""Bytes of rows above which `scatter_add_` is used: most time then goes into finding the page of a row, which
it does once, and reading and writing twice. Measured on 64 MB, 166 MB and 6.4 GB."""

RowArray: TypeAlias = Any
"""float32 [rows, ...], to be read and written by slices of rows: NDArray[np.float32], or for the weights of a
table of bfloat16 `WidenedRows`."""


class RowMemory(Generic[Number]):
    """One array, zero at first, aligned to a cache line.

    A row of 16 floats is as long as a cache line, and is then in one line, not in two. Uses no torch. Each
    row is used by one thread at a time; several threads may use different rows.

    Args:
        shape: [rows], or [rows, dim].
        dtype: type of its numbers.

    Attributes:
        values: the memory itself, C-contiguous.
    """

    def __init__(self, shape: tuple[int, ...], dtype: type[Number]) -> None:
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        # NumPy asks the kernel for huge pages, torch does not. Zeros that are never written take no memory.
        space = np.zeros(size_bytes + CACHE_LINE_BYTES, np.uint8)
        start = -space.ctypes.data % CACHE_LINE_BYTES
        self.values: NDArray[Number] = space[start : start + size_bytes].view(dtype).reshape(shape)
        self._whole = _as_row_values(self.values)

    def take(self, rows: NDArray[Any], out: NDArray[Number] | None = None) -> NDArray[Number]:
        """Return copies of rows int32 or int64 [N], as [N, ...].

        All rows must be in range; repeats are allowed. The copies are written to `out`, C-contiguous, if
        given.
        """
        # The rows are in range; "clip" saves a buffered copy and NumPy's own check.
        return np.take(self.values, rows, axis=0, out=out, mode="clip")

    def put(self, rows: NDArray[np.int64], values: NDArray[Number]) -> None:
        """Write `values`, [M, ...], to rows int64 [M].

        `values` must be C-contiguous, and the rows in range and distinct.
        """
        np.put(self._whole, rows, _as_row_values(values), mode="clip")


class RowStorage(Protocol):
    """Rows of embeddings, read and changed by their numbers.

    Each row is used by one thread at a time; several threads may use different rows.
    """

    @property
    def values(self) -> RowArray:
        """Return the memory itself, float32 [rows, dim], zeros at first."""
        ...

    @property
    def stored(self) -> NDArray[Any]:
        """Return the memory itself, [rows, dim], in the type that it is stored in."""
        ...

    def take(self, rows: Int32Array | IndexArray, out: Float32Array) -> None:
        """Copy rows int32 or int64 [N], all in range, into `out`, float32 [N, dim], C-contiguous."""
        ...

    def put(self, rows: IndexArray, values: Float32Array) -> None:
        """Write values, float32 [M, dim], C-contiguous, to rows int64 [M], distinct and in range.

        A row of bfloat16 is rounded to the nearest.
        """
        ...

    def add(
        self, rows: torch.Tensor, steps: torch.Tensor, key: int, numbers: RowNumbers | None = None
    ) -> None:
        """Add steps, float32 [M, dim], to rows int64 [M], distinct.

        `steps` is contiguous, and may be overwritten. `key` is a number of 64 bits; it and the number of each
        row, int64 or uint64 [M], by default the row, decide how a row of bfloat16 is rounded.
        """
        ...


class Float32Rows:
    """Rows as float32, without rounding."""

    def __init__(self, rows: int, dim: int) -> None:
        self._memory = RowMemory((rows, dim), np.float32)
        self.values = self._memory.values
        self._tensor = torch.from_numpy(self.values)
        self._block_rows = max(1, BLOCK_BYTES // (4 * dim))

    @property
    def stored(self) -> NDArray[Any]:
        return self._memory.values

    def take(self, rows: Int32Array | IndexArray, out: Float32Array) -> None:
        self._memory.take(rows, out)

    def put(self, rows: IndexArray, values: Float32Array) -> None:
        self._memory.put(rows, values)

    def add(
        self,
        rows: torch.Tensor,
        steps: torch.Tensor,
        key: int,  # noqa: ARG002 - the protocol's
        numbers: RowNumbers | None = None,  # noqa: ARG002
    ) -> None:
        if self.values.nbytes > LARGE_BYTES:
            self._tensor.scatter_add_(0, rows[:, None].expand_as(steps), steps)
            return
        positions, block = rows.numpy(), self._block_rows
        for start in range(0, len(positions), block):
            some, after = positions[start : start + block], steps[start : start + block]
            after += torch.from_numpy(self._memory.take(some))
            self._memory.put(some, after.numpy())


class BFloat16Rows:
    """Rows as bfloat16, two bytes a float.

    Sums are computed in float32 and rounded stochastically, see `round_at_random`.
    """

    def __init__(self, rows: int, dim: int) -> None:
        self._memory = RowMemory((rows, dim), np.uint16)
        self.values = WidenedRows(self._memory.values)

    @property
    def stored(self) -> NDArray[Any]:
        return self._memory.values

    def take(self, rows: Int32Array | IndexArray, out: Float32Array) -> None:
        torch.from_numpy(out).copy_(self._take_bf16(rows))

    def put(self, rows: IndexArray, values: Float32Array) -> None:
        self._memory.put(rows, nearest_bits(values))

    def add(
        self, rows: torch.Tensor, steps: torch.Tensor, key: int, numbers: RowNumbers | None = None
    ) -> None:
        positions = rows.numpy()
        numbers = positions if numbers is None else numbers
        rounded = add_at_random(self._take_bf16(positions), steps, numbers, key)
        self._memory.put(positions, rounded.numpy().view(np.uint16))

    def _take_bf16(self, rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(self._memory.take(rows).view(np.int16)).view(torch.bfloat16)


STORAGES: Final[dict[str, Any]] = {"float32": Float32Rows, "bfloat16": BFloat16Rows}


def make_row_storage(name: str, rows: int, dim: int) -> RowStorage:
    """Return storage for `rows` of `dim` floats, zeros at first.

    Raises KeyError for an unknown name.
    """
    storage: RowStorage = STORAGES[name](rows, dim)
    return storage


def _as_row_values(values: NDArray[Any]) -> NDArray[Any]:
    """Return rows as single values of all their bytes, which NumPy copies fast."""
    if values.ndim == 1:
        return values
    return values.view(np.dtype((np.void, values.itemsize * values.shape[1])))[:, 0]
