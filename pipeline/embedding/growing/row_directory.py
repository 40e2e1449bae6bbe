"""The rows of growing tables' ids on a node, without I/O: admission, eviction.

Lookups only `find` rows; pushes `use` them, so that only training changes the tables. Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ...config.tables import Growth
from ...types import IndexArray, Int32Array, Int64Array, Uint64Array
from .count_sketch import CountSketch
from .id_index import ABSENT, IdIndex

if TYPE_CHECKING:
    from .compiled_index import CompiledIdIndex

COMPILED_FROM_ROWS: Final = 100_000
"""Rows of a directory from which its index is compiled, if Numba is installed. Loading that takes 0.5 s and
120 MB; below, keys and index are in the processor's cache anyway."""

IDS: Final = "ids"
"""Name of the array with the key of each row, int64 [rows], in checkpoints."""

USED_AT: Final = "used_at"
"""Name of the array with the batch of each row's last use, int32 [rows]; 0 is a free row."""

USED_SECONDS: Final = "used_seconds"
"""Name of the array with the time of each row's last use, int32 [rows], where rows are freed by time."""

DIRECTORY_ARRAYS: Final[dict[str, np.dtype[np.signedinteger]]] = {
    IDS: np.dtype(np.int64),
    USED_AT: np.dtype(np.int32),
    USED_SECONDS: np.dtype(np.int32),
}

LAST_BATCH: Final = 2**31 - 1
"""The largest number that `used_at` can hold; a node that trains for months gets there."""

# When a table's rows run out, this fraction of them is freed at once: each eviction reads all of them.
_EVICTED_AT_ONCE: Final = 1 / 16
# How often in the time after which rows are freed they are looked through for old ones.
_CHECKS: Final = 16
_NO_ROWS: Final[Int32Array] = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class RowUse:
    """What a batch's update did.

    Attributes:
        rows: int32 [N], the row of each key; ABSENT for a key without one.
        new: int32 [M], the rows that got a new key.
        evicted: int32 [E], the rows that lost theirs; some of them may be in `new`.
        renumbered: whether the times of use of all rows changed.
    """

    rows: Int32Array
    new: Int32Array
    evicted: Int32Array
    renumbered: bool = False


class _TableRows:
    """The rows [start, stop) of one table: which are free, and counts."""

    def __init__(self, start: int, rows: int, growth: Growth) -> None:
        self.start, self.stop, self.growth = start, start + rows, growth
        self.sketch = CountSketch(rows) if growth.admit_after > 1 else None
        self.freed = _NO_ROWS
        # Rows from here on were never used.
        self.fresh_from = start
        self.age_checked_at = 0
        self.time_checked_at = 0
        self.admitted = self.evicted = self.refused = 0

    @property
    def free_rows(self) -> int:
        return len(self.freed) + self.stop - self.fresh_from

    def take(self, count: int) -> Int32Array:
        """Return so many free rows, which are no longer free."""
        kept = max(0, len(self.freed) - count)
        reused, self.freed = self.freed[kept:][::-1], self.freed[:kept]
        stop = self.fresh_from + count - len(reused)
        rows = np.arange(self.fresh_from, stop, dtype=np.int32)
        if len(reused):
            rows = np.concatenate([reused, rows])
        self.fresh_from = stop
        self.admitted += count
        return rows


class RowDirectory:
    """The rows of some growing tables on one node; used by one thread.

    The tables share one index, so a batch is one search, however many there are: ids of different tables have
    different keys, since the table is part of the hash. A batch is one call of `use`. A row that this batch
    used is never evicted in it.

    Args:
        tables: most rows of each table, and when its ids get and lose a row. Their rows follow one another.
        clock: the time in seconds, of any start.
        vectors: memory [rows, ...], C-contiguous: what is read of rows that `find` found.

    Attributes:
        ids: int64 [rows], the bits of each row's key; 0 where the row is free.
        used_at: int32 [rows], the batch of the last use, from 1; 0 where the row is free.
        used_seconds: int32 [rows], the time of the last use, in whole seconds since the directory was made;
            below 0 for a use before it. None if no table frees rows by time.
        batches: number of batches; past LAST_BATCH only the last half of them.
    """

    def __init__(
        self,
        tables: Sequence[tuple[int, Growth]],
        clock: Callable[[], float] = time.monotonic,
        vectors: NDArray[Any] | None = None,
    ) -> None:
        self._tables: list[_TableRows] = []
        total = 0
        for rows, growth in tables:
            self._tables.append(_TableRows(total, rows, growth))
            total += rows
        self.ids: Int64Array = np.zeros(total, np.int64)
        self.used_at: Int32Array = np.zeros(total, np.int32)
        self.used_seconds: Int32Array | None = None
        if any(growth.evict_after_seconds for _, growth in tables):
            self.used_seconds = np.zeros(total, np.int32)
        self._clock, self._began = clock, clock()
        self._vectors = vectors
        self._index = _index_of(self._keys)
        self.batches = 0

    @property
    def _keys(self) -> Uint64Array:
        return self.ids.view(np.uint64)

    @property
    def bytes(self) -> int:
        """Return the bytes of keys, last uses, index and counts, at the current size."""
        times = 0 if self.used_seconds is None else self.used_seconds.nbytes
        sketches = sum(table.sketch.bytes for table in self._tables if table.sketch is not None)
        return self.ids.nbytes + self.used_at.nbytes + times + self._index.bytes + sketches

    def counts(self, table: int) -> dict[str, int]:
        """Return counts of a table for a node's status; any thread may call.

        They are the rows with an id, how many ids got and lost one, and how often an id was due for a row
        when none was free.
        """
        of_table = self._tables[table]
        return {
            "rows": of_table.stop - of_table.start - of_table.free_rows,
            "admitted": of_table.admitted,
            "evicted": of_table.evicted,
            "refused": of_table.refused,
        }

    def find(self, keys: Uint64Array) -> Int32Array:
        """Return the row of each key, int32 [N]; ABSENT where there is none."""
        return self._index.find(keys, self._vectors)

    def use(self, keys: Uint64Array, counts: Sequence[int]) -> RowUse:
        """Note that a batch updates these keys, uint64 [N]; repeats are allowed.

        `counts` says how many of them are of each table, in order. Keys without a row get one if they are due
        and a row of their table is free or can be freed.
        """
        renumbered = self.batches == LAST_BATCH
        if renumbered:
            self._forget_half()
        self.batches += 1
        now = self._seconds()
        evicted = [self._evict_old(table) for table in self._tables]
        evicted += [self._evict_by_time(table, now) for table in self._tables]
        rows = self._index.find(keys)
        absent: IndexArray = np.flatnonzero(rows == ABSENT)
        new_rows = _NO_ROWS
        if not len(absent):
            self._note_use(rows, now)
        else:
            self._note_use(rows[rows != ABSENT], now)
            owners = np.searchsorted(np.cumsum(counts), absent, side="right")
            rows[absent], new_rows, freed = self._admit(keys[absent], owners)
            self._note_use(new_rows, now)
            evicted += freed
        return RowUse(rows, new_rows, np.concatenate([_NO_ROWS, *evicted]), renumbered)

    def restore(
        self,
        table: int,
        keys: Uint64Array,
        used_at: Int32Array,
        preferred: Int32Array,
        ages: Int32Array | None = None,
    ) -> Int32Array:
        """Give saved keys a row in a table without any.

        Returns the rows, int32 [N], numbered within the table.

        Args:
            table: number of the table.
            keys: uint64 [N], distinct.
            used_at: int32 [N], the batch of each key's last use.
            preferred: int32 [N]: the row that a key should have, or ABSENT; distinct otherwise.
            ages: int32 [N], seconds since each key's last use; None for 0.

        Of more keys than rows those used last are kept; the others have ABSENT.
        """
        of_table = self._tables[table]
        most = of_table.stop - of_table.start
        rows = np.full(len(keys), ABSENT, np.int32)
        kept = np.arange(len(keys))
        if len(keys) > most:
            kept = np.sort(np.argsort(-used_at, kind="stable")[:most])
        has_place = preferred[kept] != ABSENT
        rows[kept[has_place]] = preferred[kept[has_place]]
        is_free = np.ones(most, np.bool_)
        is_free[preferred[kept[has_place]]] = False
        free = np.flatnonzero(is_free).astype(np.int32)
        others = kept[~has_place]
        rows[others] = free[: len(others)]
        of_table.fresh_from = of_table.stop
        # Taken from the end, so lower rows come first.
        of_table.freed = free[len(others) :][::-1] + np.int32(of_table.start)
        placed = rows[kept] + np.int32(of_table.start)
        self._keys[placed] = keys[kept]
        self.used_at[placed] = used_at[kept]
        if self.used_seconds is not None:
            self.used_seconds[placed] = self._seconds() - (0 if ages is None else ages[kept])
        self._index.add(placed)
        self.batches = max(self.batches, int(used_at.max(initial=0)))
        return rows

    def _forget_half(self) -> None:
        """Number the batches anew, from the middle on; uses before it become equally old."""
        earlier = self.batches // 2
        self.used_at[:] = np.where(self.used_at > 0, np.maximum(self.used_at - np.int32(earlier), 1), 0)
        self.batches -= earlier
        for table in self._tables:
            table.age_checked_at = max(0, table.age_checked_at - earlier)

    def _admit(
        self, keys: Uint64Array, owners: IndexArray
    ) -> tuple[Int32Array, Int32Array, list[Int32Array]]:
        """Give keys a row, if they are due; `owners` has the table of each.

        Returns the row of each key, the rows that are new, and those evicted for them.
        """
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        # Table by table, so that NumPy is called once for all tables of a batch.
        by_table = np.argsort(owners[first], kind="stable")
        ends = np.cumsum(np.bincount(owners[first], minlength=len(self._tables))).tolist()
        rows = np.full(len(distinct), ABSENT, np.int32)
        taken, taken_rows, evicted = [], [_NO_ROWS], []
        for table, start, stop in zip(self._tables, [0, *ends], ends, strict=False):
            if start == stop:
                continue
            due = by_table[start:stop]
            if table.sketch is not None:
                due = due[table.sketch.add(distinct[due]) >= table.growth.admit_after]
            if len(due) > table.free_rows:
                if table.growth.evict == "least_recent":
                    evicted.append(self._evict_least_recent(table, len(due)))
                table.refused += max(0, len(due) - table.free_rows)
                due = due[: table.free_rows]
            taken.append(due)
            taken_rows.append(table.take(len(due)))
        new = np.concatenate(taken_rows)
        if len(new):
            places = np.concatenate(taken)
            rows[places] = new
            self._keys[new] = distinct[places]
            self._index.add(new)
        return rows[which], new, evicted

    def _evict_old(self, table: _TableRows) -> Int32Array:
        """Evict the rows that no batch has used for `evict_after_batches`."""
        limit = table.growth.evict_after_batches
        if not limit or self.batches - table.age_checked_at < max(1, limit // _CHECKS):
            return _NO_ROWS
        table.age_checked_at = self.batches
        used_at = self.used_at[table.start : table.stop]
        return self._evict(table, np.flatnonzero((used_at > 0) & (used_at < self.batches - limit)))

    def _evict_by_time(self, table: _TableRows, now: int) -> Int32Array:
        """Evict the rows that no batch has used for `evict_after_seconds`."""
        limit = table.growth.evict_after_seconds
        if not limit or now - table.time_checked_at < limit / _CHECKS:
            return _NO_ROWS
        assert self.used_seconds is not None
        table.time_checked_at = now
        places = slice(table.start, table.stop)
        is_old = (self.used_at[places] > 0) & (self.used_seconds[places] < now - limit)
        return self._evict(table, np.flatnonzero(is_old))

    def _seconds(self) -> int:
        """Return the seconds since the directory was made; 0 if no table asks for them."""
        return 0 if self.used_seconds is None else int(self._clock() - self._began)

    def _note_use(self, rows: Int32Array, now: int) -> None:
        # The rows are in range, and "put" takes two thirds of the time of an assignment.
        np.put(self.used_at, rows, self.batches, mode="clip")
        if self.used_seconds is not None:
            self.used_seconds[rows] = now

    def _evict_least_recent(self, table: _TableRows, needed: int) -> Int32Array:
        """Evict the least recently used rows, `needed` or more.

        None of them is of this batch.
        """
        used_at = self.used_at[table.start : table.stop]
        is_older = (used_at > 0) & (used_at < self.batches)
        count = max(needed - table.free_rows, int(len(used_at) * _EVICTED_AT_ONCE))
        # Times take a third of the memory of positions, and there may be many rows.
        times = used_at[is_older]
        if count >= len(times):
            return self._evict(table, np.flatnonzero(is_older))
        times.partition(count)
        oldest_kept = times[count]
        np.less(used_at, oldest_kept, out=is_older)
        older = np.flatnonzero(np.logical_and(is_older, used_at > 0, out=is_older))
        as_old = np.flatnonzero(used_at == oldest_kept)[: count - len(older)]
        return self._evict(table, np.sort(np.concatenate([older, as_old])))

    def _evict(self, table: _TableRows, positions: IndexArray) -> Int32Array:
        rows: Int32Array = (positions + table.start).astype(np.int32)
        if len(rows):
            self._index.remove(rows)
            table.evicted += len(rows)
            self.ids[rows] = 0
            self.used_at[rows] = 0
            # Taken from the end, so lower rows come first.
            table.freed = np.concatenate([table.freed, rows[::-1]])
        return rows


def _index_of(keys: Uint64Array) -> IdIndex | CompiledIdIndex:
    """Return an index of these rows' keys: the compiled one where it is worth its start."""
    if len(keys) < COMPILED_FROM_ROWS or find_spec("numba") is None:
        return IdIndex(keys)
    from .compiled_index import CompiledIdIndex

    return CompiledIdIndex(keys)
