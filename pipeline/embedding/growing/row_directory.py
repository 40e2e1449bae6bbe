"""The rows of a growing table's ids on a node, without I/O: admission, eviction.

Lookups only `find` rows; pushes `use` them, so that only training changes the table. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...config.tables import Growth
from ...types import IndexArray, Int32Array, Int64Array, Uint64Array
from .count_sketch import CountSketch
from .id_index import ABSENT, EVERY_KEY, IdIndex, KeyRange

IDS: Final = "ids"
"""Name of the array with the key of each row, int64 [rows], in checkpoints."""

USED_AT: Final = "used_at"
"""Name of the array with the batch of each row's last use, int32 [rows]; 0 is a free row."""

DIRECTORY_ARRAYS: Final[dict[str, np.dtype[np.signedinteger]]] = {
    IDS: np.dtype(np.int64),
    USED_AT: np.dtype(np.int32),
}

# When the rows run out, this fraction of them is freed at once: each eviction reads the whole table.
_EVICTED_AT_ONCE: Final = 1 / 16
# How often in the time of `evict_after_batches` rows are looked through for old ones.
_CHECKS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class RowUse:
    """What a batch's update did.

    Attributes:
        rows: int32 [N], the row of each key; ABSENT for a key without one.
        new: int32 [M], the rows that got a new key.
        evicted: int32 [E], the rows that lost theirs; some of them may be in `new`.
    """

    rows: Int32Array
    new: Int32Array
    evicted: Int32Array


class RowDirectory:
    """The rows of one growing table on one node; used by one thread.

    A batch is one call of `use`. A row that this batch used is never evicted in it.

    Args:
        rows: most rows.
        growth: when an id gets a row, and when it loses it.
        key_range: where keys come from, see `IdIndex`.

    Attributes:
        ids: int64 [rows], the bits of each row's key; 0 where the row is free.
        used_at: int32 [rows], the batch of the last use, from 1; 0 where the row is free.
        batches: number of batches.
        admitted: number of ids that got a row.
        evicted: number of ids that lost their row.
        refused: how often an id was due for a row, but none was free.
    """

    def __init__(self, rows: int, growth: Growth, key_range: KeyRange = EVERY_KEY) -> None:
        self._growth = growth
        self.ids: Int64Array = np.zeros(rows, np.int64)
        self.used_at: Int32Array = np.zeros(rows, np.int32)
        self._index = IdIndex(self._keys, key_range)
        self._sketch = CountSketch(rows) if growth.admit_after > 1 else None
        self._freed: Int32Array = np.zeros(0, np.int32)
        # Rows from here on were never used.
        self._fresh_from = 0
        self._age_checked_at = 0
        self.batches = 0
        self.admitted = self.evicted = self.refused = 0

    @property
    def _keys(self) -> Uint64Array:
        return self.ids.view(np.uint64)

    @property
    def used_rows(self) -> int:
        """Return how many rows have a key."""
        return len(self._index)

    @property
    def free_rows(self) -> int:
        """Return how many rows have no key."""
        return len(self.ids) - len(self._index)

    @property
    def bytes(self) -> int:
        """Return the bytes of keys, last uses, index and counts, at the current size."""
        sketch = 0 if self._sketch is None else self._sketch.bytes
        return self.ids.nbytes + self.used_at.nbytes + self._index.bytes + sketch

    def counts(self) -> dict[str, int]:
        """Return counts for a node's status; any thread may call."""
        return {
            "rows": self.used_rows,
            "admitted": self.admitted,
            "evicted": self.evicted,
            "refused": self.refused,
        }

    def find(self, keys: Uint64Array) -> Int32Array:
        """Return the row of each key, int32 [N]; ABSENT where there is none."""
        return self._index.find(keys)

    def use(self, keys: Uint64Array) -> RowUse:
        """Note that a batch updates these keys, uint64 [N]; repeats are allowed.

        Keys without a row get one if they are due and a row is free or can be freed.
        """
        self.batches += 1
        evicted = self._evict_old()
        rows = self._index.find(keys)
        self.used_at[rows[rows != ABSENT]] = self.batches
        absent: IndexArray = np.flatnonzero(rows == ABSENT)
        if not len(absent):
            return RowUse(rows, np.zeros(0, np.int32), evicted)
        new_keys, which = np.unique(keys[absent], return_inverse=True)
        due = np.arange(len(new_keys))
        if self._sketch is not None:
            due = np.flatnonzero(self._sketch.add(new_keys) >= self._growth.admit_after)
        if len(due) > self.free_rows and self._growth.evict == "least_recent":
            evicted = np.concatenate([evicted, self._evict_least_recent(len(due))])
        taken = due[: self.free_rows]
        self.refused += len(due) - len(taken)
        new = self._assign(new_keys[taken])
        rows_of_new = np.full(len(new_keys), ABSENT, np.int32)
        rows_of_new[taken] = new
        rows[absent] = rows_of_new[which]
        return RowUse(rows, new, evicted)

    def restore(self, keys: Uint64Array, used_at: Int32Array, wanted: Int32Array) -> Int32Array:
        """Give saved keys a row, in a directory without any.

        Returns the rows, int32 [N].

        Args:
            keys: uint64 [N], distinct.
            used_at: int32 [N], the batch of each key's last use.
            wanted: int32 [N]: the row that a key should have, or ABSENT; distinct otherwise.

        Of more keys than rows those used last are kept; the others have ABSENT.
        """
        rows = np.full(len(keys), ABSENT, np.int32)
        kept = np.arange(len(keys))
        if len(keys) > len(self.ids):
            kept = np.sort(np.argsort(-used_at, kind="stable")[: len(self.ids)])
        has_place = wanted[kept] != ABSENT
        rows[kept[has_place]] = wanted[kept[has_place]]
        is_free = np.ones(len(self.ids), np.bool_)
        is_free[wanted[kept[has_place]]] = False
        free = np.flatnonzero(is_free).astype(np.int32)
        others = kept[~has_place]
        rows[others] = free[: len(others)]
        self._fresh_from = len(self.ids)
        # Taken from the end, so lower rows come first.
        self._freed = free[len(others) :][::-1].copy()
        self._keys[rows[kept]] = keys[kept]
        self.used_at[rows[kept]] = used_at[kept]
        self._index.rebuild(rows[kept])
        self.batches = int(used_at.max(initial=0))
        return rows

    def _assign(self, keys: Uint64Array) -> Int32Array:
        from_freed = min(len(self._freed), len(keys))
        reused = self._freed[len(self._freed) - from_freed :][::-1]
        self._freed = self._freed[: len(self._freed) - from_freed]
        stop = self._fresh_from + len(keys) - from_freed
        rows = np.concatenate([reused, np.arange(self._fresh_from, stop, dtype=np.int32)])
        self._fresh_from = stop
        self._keys[rows] = keys
        self.used_at[rows] = self.batches
        self._index.add(rows)
        self.admitted += len(rows)
        return rows

    def _evict_old(self) -> Int32Array:
        """Evict the rows that no batch has used for `evict_after_batches`."""
        limit = self._growth.evict_after_batches
        if not limit or self.batches - self._age_checked_at < max(1, limit // _CHECKS):
            return np.zeros(0, np.int32)
        self._age_checked_at = self.batches
        old = (self.used_at > 0) & (self.used_at < self.batches - limit)
        return self._evict(np.flatnonzero(old).astype(np.int32))

    def _evict_least_recent(self, needed: int) -> Int32Array:
        """Evict the least recently used rows, `needed` or more.

        None of them is of this batch.
        """
        in_use = np.flatnonzero((self.used_at > 0) & (self.used_at < self.batches)).astype(np.int32)
        count = max(needed - self.free_rows, int(len(self.ids) * _EVICTED_AT_ONCE))
        if count < len(in_use):
            in_use = in_use[np.argpartition(self.used_at[in_use], count)[:count]]
        return self._evict(in_use)

    def _evict(self, rows: Int32Array) -> Int32Array:
        if len(rows):
            self.evicted += len(rows)
            self.ids[rows] = 0
            self.used_at[rows] = 0
            self._freed = np.concatenate([self._freed, rows])
            self._index.rebuild(np.flatnonzero(self.used_at > 0).astype(np.int32))
        return rows
