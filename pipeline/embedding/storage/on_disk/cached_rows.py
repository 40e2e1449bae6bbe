"""Rows with their optimizer state, of which those in use are in memory and the others in a file.

A row that was never trained is in neither: it has its first values, which are computed when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ....errors import ResourceError
from ....types import Float32Array, IndexArray, Int32Array
from ...placement.ranges import WEIGHTS
from ..bf16_rows import WidenedRows, nearest_bits
from ..row_storage import RowMemory
from .cached_changes import CachedChanges
from .row_cache import ABSENT, CacheTooSmallError, RowCache
from .row_file import RowFile

READ_BYTES: Final = 4 << 20
"""Bytes of records that are read at once for a checkpoint."""

FirstValuesOf = Callable[[Int32Array], Float32Array]
"""Returns the first values of rows int32 [N], float32 [N, dim]."""


def record_type(memories: Mapping[str, RowMemory[Any]]) -> np.dtype[Any]:
    """Return the structured type of a row's record: its weights and state, as they are in memory."""
    fields = [(name, memory.values.dtype, memory.values.shape[1:]) for name, memory in memories.items()]
    return np.dtype(fields)


class CachedRows:
    """Rows that have a place in memory from the request that needs them until others need it.

    Only the thread that owns the store may call, but for `mark_changed`. Work on places may run on other
    threads after `take`, until `finish` says that it has ended; a row whose work has not ended keeps its
    place.

    Args:
        memories: weights and state by name, with a row for each place.
        file: has a record for each row.
        first_values: of rows without a record.
        setting: the node, and the key of the job file that says how much memory, for errors.

    Attributes:
        requested: rows of all lookups and pushes.
        missed: distinct rows of a request that were not in memory, summed over all.
        changes: of all rows.
        wait_idle: called before a place is taken from a row whose work may not have ended; returns once it
            has. By default work ends before the next `take`.
    """

    def __init__(
        self,
        memories: Mapping[str, RowMemory[Any]],
        file: RowFile,
        first_values: FirstValuesOf,
        setting: str,
    ) -> None:
        self._memories, self.file, self._first_values, self._setting = memories, file, first_values, setting
        places = len(memories[WEIGHTS].values)
        self._cache = RowCache(places)
        self.changes = CachedChanges(file.rows, self._cache.row_of)
        self._record = record_type(memories)
        self._finished = 0
        self.requested = self.missed = 0
        self.wait_idle: Callable[[], None] = lambda: None

    @property
    def rows_in_memory(self) -> int:
        """Return how many rows have a place."""
        return self._cache.count

    @property
    def request(self) -> int:
        """Return the number of the latest `take`."""
        return self._cache.requests

    def rows_at(self, places: NDArray[Any]) -> Int32Array:
        """Return the rows at places that have one, int32 [N]."""
        rows: Int32Array = self._cache.row_of[places]
        return rows

    def find(self, rows: Int32Array) -> Int32Array:
        """Return the places of rows int32 [N]; ABSENT for one that is not in memory."""
        return self._cache.find(rows)

    def take(self, rows: Int32Array) -> Int32Array:
        """Return the places of rows int32 [N], repeats allowed, and bring those into memory that are not.

        Raises ResourceError if memory has too few places for one request.
        """
        self.requested += len(rows)
        latest = self.request
        try:
            placement = self._cache.take(rows)
        except CacheTooSmallError as error:
            raise ResourceError(
                f"{len(rows):,} rows of one request do not fit into memory, which has"
                f" {len(self._cache):,} places",
                where=self._setting,
                remedy="raise it, or lower trainer.batch",
            ) from error
        if self.request < latest:
            # The cache numbers requests anew: what has ended is no longer known.
            self._finished = 0
        if len(placement.loaded):
            self.missed += len(placement.loaded)
            if placement.last_use > self._finished:
                self.wait_idle()
                self._finished = self._cache.requests - 1
            self._spill(placement.replaced, placement.replaced_places)
            self._load(placement.loaded, placement.loaded_places)
        return placement.places

    def finish(self, request: int) -> None:
        """Note that the work of this request, and of those before it, has ended."""
        if request <= self.request:
            self._finished = max(self._finished, request)

    def mark_changed(self, places: NDArray[Any], change_epoch: int) -> None:
        """Note that memory has newer values than the file; called by the thread of these rows."""
        self.changes.changed_at[places] = change_epoch

    def forget(self, rows: Int32Array) -> None:
        """Have no record of rows int32 [N], distinct, any more: nobody will ask for their values."""
        self.file.forget(rows)

    def array(self, name: str) -> CachedArray:
        """Return the weights or an array of state, of all rows."""
        return CachedArray(self, name, 0, self.file.rows)

    def read(self, name: str, rows: Int32Array) -> NDArray[Any]:
        """Return values of rows int32 [N], wherever they are, as memory has them."""
        memory = self._memories[name]
        out = np.zeros((len(rows), *memory.values.shape[1:]), memory.values.dtype)
        places = self._cache.find(rows)
        here: IndexArray = np.flatnonzero(places != ABSENT)
        out[here] = memory.take(places[here])
        elsewhere: IndexArray = np.flatnonzero(places == ABSENT)
        # A record may have a hundred times the bytes of what is asked for.
        step = max(1, READ_BYTES // self.file.record_bytes)
        for start in range(0, len(elsewhere), step):
            some = elsewhere[start : start + step]
            out[some] = self._records_of(rows[some], with_weights=name == WEIGHTS)[name]
        return out

    def write(self, name: str, rows: Int32Array, values: NDArray[Any]) -> None:
        """Write values of distinct rows int32 [N], as memory has them; those of a checkpoint."""
        self.file.write_field(name, rows, values)
        places = self._cache.find(rows)
        here = np.flatnonzero(places != ABSENT)
        self._memories[name].put(places[here].astype(np.int64), np.ascontiguousarray(values[here]))

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the type of an array in memory."""
        dtype: np.dtype[Any] = self._memories[name].values.dtype
        return dtype

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a row's values."""
        shape: tuple[int, ...] = self._memories[name].values.shape[1:]
        return shape

    def _spill(self, rows: Int32Array, places: Int32Array) -> None:
        epochs = self.changes.changed_at[places]
        changed = epochs > 0
        rows, places = rows[changed], places[changed]
        if not len(rows):
            return
        self.changes.replaced.add(rows, epochs[changed])
        records = np.empty(len(rows), self._record)
        for name, memory in self._memories.items():
            records[name] = memory.take(places)
        self.file.write(rows, records)

    def _load(self, rows: Int32Array, places: Int32Array) -> None:
        records, targets = self._records_of(rows), places.astype(np.int64)
        for name, memory in self._memories.items():
            memory.put(targets, np.ascontiguousarray(records[name]))
        self.changes.changed_at[places] = 0

    def _records_of(self, rows: Int32Array, *, with_weights: bool = True) -> NDArray[Any]:
        """Return the records of rows that are not in memory; of those not in the file the first values.

        The latter take time: without weights, their place in such a record is zero.
        """
        stored = self.file.has(rows)
        if stored.all():
            return self.file.read(rows)
        records = np.zeros(len(rows), self._record)
        records[stored] = self.file.read(rows[stored])
        if with_weights:
            values = self._first_values(rows[~stored])
            is_rounded = self.dtype_of(WEIGHTS) == np.uint16
            records[WEIGHTS][~stored] = nearest_bits(values) if is_rounded else values
        return records


class CachedArray:
    """One array of cached rows, float32 [rows, ...], read and written by slices of rows; see `RowArray`."""

    dtype: np.dtype[Any] = np.dtype(np.float32)
    itemsize = 4

    def __init__(self, rows: CachedRows, name: str, start: int, stop: int) -> None:
        self._rows, self._name, self._start, self._stop = rows, name, start, stop
        self.shape: tuple[int, ...] = (stop - start, *rows.shape_of(name))
        self.ndim = len(self.shape)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the float32 values, as in a file."""
        return int(np.prod(self.shape)) * self.itemsize

    @property
    def read_bytes(self) -> int:
        """Return the bytes of the records, which are read whole; see `TensorView`."""
        return max(self.nbytes, len(self) * self._rows.file.record_bytes)

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, rows: slice) -> CachedArray:
        start, stop, _ = rows.indices(len(self))
        return CachedArray(self._rows, self._name, self._start + start, self._start + max(start, stop))

    def __setitem__(self, rows: slice | IndexArray, values: NDArray[np.float32]) -> None:
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        numbers = (rows + self._start).astype(np.int32)
        is_rounded = self._rows.dtype_of(self._name) == np.uint16
        self._rows.write(self._name, numbers, nearest_bits(values) if is_rounded else values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("rows of a file cannot be read without a copy")
        return np.asarray(self.copy(), dtype)

    def take(self, rows: NDArray[np.int64], axis: int = 0, mode: str = "clip") -> NDArray[Any] | WidenedRows:  # noqa: ARG002 - as NumPy's
        """Return copies of rows int64 [N], of the type in memory."""
        values = self._rows.read(self._name, (rows + self._start).astype(np.int32))
        return WidenedRows(values) if values.dtype == np.uint16 else values

    def copy(self) -> NDArray[Any] | WidenedRows:
        """Return a copy, of the type in memory."""
        return self.take(np.arange(len(self)))
