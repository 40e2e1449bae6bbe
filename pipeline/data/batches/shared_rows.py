"""The share of examples with an id in a row of several ids."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...types import IndexArray, Int32Array, Mask, Uint64Array
from ..hashing import table_rows_of
from ..schema import ColumnObserver

TRACKED_ROWS = 1 << 23
"""Rows of all tables that are watched, 5 bytes each; of larger tables the first ones."""
KEPT_VALUES = 8192
"""Values of a column, at most twice as many, whose rows are looked at in the end."""
# Shares are counted anew after so many times the values.
_NEWS = 1.02


class SharedRowsMeter(ColumnObserver):
    """Count which rows several ids have, and how many examples.

    Rows are known from all ids seen, the examples with such a row from a sample of them. Ids of one row are
    told apart by 32 further bits of their hash. The sample is every n-th value, so that it has early examples
    too, whose row was shared only later. Used by one thread; any may call `counts`.

    Args:
        rows: rows of each hashed table, by its column.
        lists: the columns with several ids an example.
    """

    def __init__(self, rows: Mapping[str, int], lists: frozenset[str] = frozenset()) -> None:
        super().__init__()
        most = TRACKED_ROWS // max(1, len(rows))
        self._tables = {name: _TableRows(count, min(count, most)) for name, count in rows.items()}
        self._lists = lists
        self.counting = True
        self._counted, self._counted_seen = dict[str, float](), 0

    def show(self, hashes: Mapping[str, Uint64Array], missing: Mapping[str, Mask]) -> None:
        """Count the ids of a chunk; see `ColumnObserver`."""
        del missing
        if self.counting:
            for name, table in self._tables.items():
                table.add(hashes[name])

    def counts(self) -> dict[str, float]:
        """Return shares for a node's status.

        `shared_rows/NAME` is that of a table's ids, `sharing_examples` that of the examples, which count by
        their columns of one id; `sharing_seen` is the number of examples behind it. Before the first example
        there are none.
        """
        seen = min((table.seen for table in self._tables.values()), default=0)
        # Nodes tell their counts twice a second.
        if seen > _NEWS * self._counted_seen:
            self._counted, self._counted_seen = self._count(), seen
        return dict(self._counted)

    def _count(self) -> dict[str, float]:
        sharing = {name: table.sharing() for name, table in self._tables.items()}
        shares = {
            name: float(shared[tracked].mean()) if tracked.any() else 0.0
            for name, (shared, tracked) in sharing.items()
        }
        single = [name for name in self._tables if name not in self._lists]
        length = min((len(sharing[name][0]) for name in single), default=0)
        none = np.ones(length, np.bool_)
        for name in single:
            none &= ~sharing[name][0][:length]
        # Rows that are not watched: as often as the watched ones, apart from those of other tables.
        apart = np.prod([1 - shares[name] for name in single if self._tables[name].is_part])
        counts = {f"shared_rows/{name}": share for name, share in shares.items()}
        if single:
            counts["sharing_examples"] = 1.0 - float(none.mean() * apart)
            counts["sharing_seen"] = float(self._tables[single[0]].seen)
        return counts


class _TableRows:
    """The watched rows of one table."""

    def __init__(self, rows: int, watched: int) -> None:
        self.is_part = watched < rows
        self.seen = 0
        self._rows, self._watched = rows, watched
        # 32 bits of the id that had the row last; 0 where none had it.
        self._owners = np.zeros(watched, np.uint32)
        self._shared = np.zeros(watched, np.bool_)
        self._kept: list[Int32Array] = []
        self._kept_values = 0
        self._step, self._next = 1, 0

    def add(self, hashes: Uint64Array) -> None:
        """Count the values of a chunk."""
        rows = table_rows_of(hashes[None], (self._rows,))[0]
        self._keep(rows)
        # Zero stands for a row without an id.
        owners = hashes.astype(np.uint32) | np.uint32(1)
        if self.is_part:
            inside: IndexArray = np.flatnonzero(rows < self._watched)
            rows, owners = rows[inside], owners[inside]
        before = self._owners.take(rows)
        other = np.flatnonzero(before != owners)
        if len(other):
            rows, owners, before = rows[other], owners[other], before[other]
            self._owners[rows] = owners
            # Of several ids of this chunk the last one is there now.
            self._shared[rows[(before != 0) | (self._owners.take(rows) != owners)]] = True

    def sharing(self) -> tuple[Mask, Mask]:
        """Return which kept values share their row, and whose row is watched."""
        rows = np.concatenate(self._kept)
        known = rows < self._watched
        return self._shared.take(rows, mode="clip") & known, known

    def _keep(self, rows: Int32Array) -> None:
        first = self._next
        self._next = (first - len(rows)) % self._step if first < len(rows) else first - len(rows)
        kept = rows[first :: self._step].copy()
        self._kept.append(kept)
        self._kept_values += len(kept)
        # Last: another thread that sees examples takes them to be kept.
        self.seen += len(rows)
        while self._kept_values > 2 * KEPT_VALUES:
            every = np.concatenate(self._kept)
            # The value after the last kept one is a step away from it; the new step counts from the first.
            self._next += 0 if len(every) % 2 == 0 else self._step
            self._step *= 2
            self._kept = [every[::2]]
            self._kept_values = len(self._kept[0])
