"""The share of examples with an id in a row of several ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

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
        rows: rows of each hashed table.
        lists: the columns with several ids an example.
        columns: columns of each table; of one that is not here the column of its name.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        lists: frozenset[str] = frozenset(),
        columns: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        most = TRACKED_ROWS // max(1, len(rows))
        self._columns: dict[str, _ColumnRows] = {}
        self._of_tables: dict[str, list[_ColumnRows]] = {}
        for name, count in rows.items():
            table = _TableRows(count, min(count, most))
            column_rows = {column: _ColumnRows(table) for column in columns.get(name, (name,))}
            self._columns |= column_rows
            self._of_tables[name] = list(column_rows.values())
        self._lists = lists
        self.counting = True
        self._counted, self._counted_seen = dict[str, float](), 0

    def show(self, hashes: Mapping[str, Uint64Array], missing: Mapping[str, Mask]) -> None:
        """Count the ids of a chunk; see `ColumnObserver`."""
        del missing
        if self.counting:
            for name, column in self._columns.items():
                column.add(hashes[name])

    def counts(self) -> dict[str, float]:
        """Return shares for a node's status.

        `shared_rows/NAME` is that of a table's ids, `sharing_examples` that of the examples, which count by
        their columns of one id; `sharing_seen` is the number of examples behind it. Before the first example
        there are none.
        """
        seen = min((column.seen for column in self._columns.values()), default=0)
        # Nodes tell their counts twice a second.
        if seen > _NEWS * self._counted_seen:
            self._counted, self._counted_seen = self._count(), seen
        return dict(self._counted)

    def _count(self) -> dict[str, float]:
        counts = {f"shared_rows/{name}": _share(columns) for name, columns in self._of_tables.items()}
        single = [column for name, column in self._columns.items() if name not in self._lists]
        sharing = [column.sharing()[0] for column in single]
        length = min(map(len, sharing), default=0)
        none = np.ones(length, np.bool_)
        for shared in sharing:
            none &= ~shared[:length]
        # Rows that are not watched: as often as the watched ones, apart from those of other columns.
        apart = np.prod([1 - _share([column]) for column in single if column.table.is_part])
        if single:
            counts["sharing_examples"] = 1.0 - float(none.mean() * apart)
            counts["sharing_seen"] = float(single[0].seen)
        return counts


def _share(columns: Sequence[_ColumnRows]) -> float:
    """Return the share of the ids of a table's columns whose row has other ids, too."""
    shares, weights = [], []
    for column in columns:
        shared, tracked = column.sharing()
        shares.append(float(shared[tracked].mean()) if tracked.any() else 0.0)
        weights.append(column.seen)
    return float(np.average(shares, weights=weights)) if sum(weights) else 0.0


class _TableRows:
    """The watched rows of one table."""

    def __init__(self, rows: int, watched: int) -> None:
        self.is_part = watched < rows
        self.rows, self.watched = rows, watched
        # 32 bits of the id that had the row last; 0 where none had it.
        self._owners = np.zeros(watched, np.uint32)
        self.shared = np.zeros(watched, np.bool_)

    def add(self, hashes: Uint64Array, rows: Int32Array) -> None:
        """Note the rows that the ids of a chunk have."""
        # Zero stands for a row without an id.
        owners = hashes.astype(np.uint32) | np.uint32(1)
        if self.is_part:
            inside: IndexArray = np.flatnonzero(rows < self.watched)
            rows, owners = rows[inside], owners[inside]
        before = self._owners.take(rows)
        other = np.flatnonzero(before != owners)
        if len(other):
            rows, owners, before = rows[other], owners[other], before[other]
            self._owners[rows] = owners
            # Of several ids of this chunk the last one is there now.
            self.shared[rows[(before != 0) | (self._owners.take(rows) != owners)]] = True


class _ColumnRows:
    """The kept values of one column, and the rows of its table."""

    def __init__(self, table: _TableRows) -> None:
        self.table = table
        self.seen = 0
        self._kept: list[Int32Array] = []
        self._kept_values = 0
        self._step, self._next = 1, 0

    def add(self, hashes: Uint64Array) -> None:
        """Count the values of a chunk."""
        rows = table_rows_of(hashes[None], (self.table.rows,))[0]
        self._keep(rows)
        self.table.add(hashes, rows)

    def sharing(self) -> tuple[Mask, Mask]:
        """Return which kept values share their row, and whose row is watched."""
        rows: Int32Array = np.concatenate([np.zeros(0, np.int32), *self._kept])
        known = rows < self.table.watched
        return self.table.shared.take(rows, mode="clip") & known, known

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
