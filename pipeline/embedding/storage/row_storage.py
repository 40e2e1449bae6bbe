"""Memory of a node's rows, or of what is kept beside each, that is read and written by row numbers.

How rows lie in a node's memory: as float32, or as bfloat16 that is rounded at random.
"""

from __future__ import annotations

import math
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...types import Float32Array, Int32Array
from .bf16_rows import WidenedRows, round_at_random, rounding_bits

Number = TypeVar("Number", bound=np.generic)

CACHE_LINE_BYTES = 64
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
        space = np.zeros(size_bytes + CACHE_LINE_BYTES, np.uint8)
        start = -space.ctypes.data % CACHE_LINE_BYTES
        self.values: NDArray[Number] = space[start : start + size_bytes].view(dtype).reshape(shape)
        self._whole = _as_row_values(self.values)

    def take(self, rows: NDArray[Any], out: NDArray[Number] | None = None) -> NDArray[Number]:
        """Copies of rows int32 or int64 [N], all in range, repeats allowed: [N, ...], in `out` if it is
        given, which is C-contiguous."""
        # The rows are in range: "clip" only spares numpy a buffered copy and its own check.
        return np.take(self.values, rows, axis=0, out=out, mode="clip")

    def put(self, rows: NDArray[np.int64], values: NDArray[Number]) -> None:
        """Writes `values`, [M, ...], C-contiguous, to rows int64 [M], all in range, distinct."""
        np.put(self._whole, rows, _as_row_values(values), mode="clip")


def _as_row_values(values: NDArray[Any]) -> NDArray[Any]:
    """A row as one value of so many bytes, [rows]: numpy then copies it at once."""
    if values.ndim == 1:
        return values
    return values.view(np.dtype((np.void, values.itemsize * values.shape[1])))[:, 0]


BFLOAT16_MAX: Final = torch.finfo(torch.bfloat16).max

BLOCK_BYTES: Final = 1 << 17
"""Of rows that are read, added to and written before the next are: these are then still in the second cache,
and numpy writes a row at once. On 64 MB of rows it takes a quarter less time than `scatter_add_`."""

LARGE_BYTES: Final = 1 << 30
"""Of rows, beyond which `scatter_add_` adds: the time then goes into finding the page of a row, which it does
once, where reading and writing do it twice. Measured on 64 MB, 166 MB and 6.4 GB."""

RowArray: TypeAlias = Any
"""float32 [rows, ...], to be read and written by slices of rows: NDArray[np.float32], or for the weights of a
table of bfloat16 `WidenedRows`. Who knows which it is may use it as such."""


class RowStorage(Protocol):
    """Rows by their number. A row is used by one thread at a time; different rows may be by several."""

    @property
    def values(self) -> RowArray:
        """float32 [rows, dim]: the memory itself, zeros at first."""
        ...

    def take(self, rows: Int32Array, out: Float32Array) -> None:
        """Copies rows int32 [N], all in range, into `out`, float32 [N, dim], C-contiguous."""
        ...

    def add(self, rows: torch.Tensor, steps: torch.Tensor, key: int) -> None:
        """Adds steps, float32 [M, dim], contiguous, which it may overwrite, to rows int64 [M], distinct.

        `key` is 64 bits that decide with the row how it is rounded, where it is.
        """
        ...


class Float32Rows:
    """Nothing is rounded."""

    def __init__(self, rows: int, dim: int) -> None:
        self._memory = RowMemory((rows, dim), np.float32)
        self.values = self._memory.values
        self._tensor = torch.from_numpy(self.values)
        self._block_rows = max(1, BLOCK_BYTES // (4 * dim))

    def take(self, rows: Int32Array, out: Float32Array) -> None:
        """See `RowStorage.take`."""
        self._memory.take(rows, out)

    def add(self, rows: torch.Tensor, steps: torch.Tensor, key: int) -> None:  # noqa: ARG002 - the protocol's
        """See `RowStorage.add`."""
        if self.values.nbytes > LARGE_BYTES:
            self._tensor.scatter_add_(0, rows[:, None].expand_as(steps), steps)
            return
        places, block = rows.numpy(), self._block_rows
        for start in range(0, len(places), block):
            some, after = places[start : start + block], steps[start : start + block]
            after += torch.from_numpy(self._memory.take(some))
            self._memory.put(some, after.numpy())


class BFloat16Rows:
    """Two bytes a float. A sum is made in float32 and rounded at random, see `rounding`."""

    def __init__(self, rows: int, dim: int) -> None:
        self._memory = RowMemory((rows, dim), np.uint16)
        self.values = WidenedRows(self._memory.values)

    def take(self, rows: Int32Array, out: Float32Array) -> None:
        """See `RowStorage.take`."""
        torch.from_numpy(out).copy_(self._taken(rows))

    def add(self, rows: torch.Tensor, steps: torch.Tensor, key: int) -> None:
        """See `RowStorage.add`."""
        places = rows.numpy()
        steps += self._taken(places).float()
        # Of what is still larger, and finite, the rounding could make infinity.
        steps.clamp_(-BFLOAT16_MAX, BFLOAT16_MAX)
        rounded = round_at_random(steps, rounding_bits(key, places, steps.shape[1]))
        self._memory.put(places, rounded.numpy().view(np.uint16))

    def _taken(self, rows: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(self._memory.take(rows).view(np.int16)).view(torch.bfloat16)


STORAGES: Final[dict[str, Any]] = {"float32": Float32Rows, "bfloat16": BFloat16Rows}


def make_row_storage(name: str, rows: int, dim: int) -> RowStorage:
    """Storage for `rows` of `dim` floats, zeros at first. Raises KeyError for an unknown name."""
    storage: RowStorage = STORAGES[name](rows, dim)
    return storage
