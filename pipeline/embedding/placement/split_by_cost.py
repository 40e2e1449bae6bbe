"""What a table's lookups and updates cost, and where among its rows. Knows no torch.

The split that levels what lookups and updates cost the nodes, within bounds on their memory.

Whole tables go first, the largest first, to the node with the least to do (LPT: Graham, Bounds on
multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969), as long as that leaves the node near the
mean. What is left is laid end to end and cut into a stretch for each node, at the lowest level that holds all
of it (McNaughton, Scheduling with deadlines and loss functions, Management Science 6, 1959): first the tables
that are more of the work than of the memory, then the others, which fill up the memory. Knows no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ...config.tables import TableSettings
from .ranges import Range, check_enough_rows, row_bytes


@dataclass(frozen=True)
class TableLoad:
    """Integers, so that a plan does not hang on rounding.

    Attributes:
        rows: ascending, the first 0 and the last the number of rows.
        costs: of all rows below each of `rows`, in picoseconds an example, ascending from 0; between two of
            them the rows cost alike.
    """

    rows: tuple[int, ...]
    costs: tuple[int, ...]

    @classmethod
    def even(cls, rows: int, cost: int) -> TableLoad:
        """All rows cost alike."""
        return cls((0, rows), (0, cost))

    @classmethod
    def of_counts(cls, rows: int, edges: Sequence[int], counts: Sequence[int], cost: int) -> TableLoad:
        """The cost of a table spread by how often rows were seen.

        Args:
            rows: of the table.
            edges: n + 1 rows, ascending, the first 0 and the last `rows`.
            counts: n: how often rows of [edges[i], edges[i + 1]) were seen; none at all: evenly.
            cost: picoseconds an example.
        """
        if not sum(counts):
            return cls.even(rows, cost)
        below, total = [0], sum(counts)
        for count in counts:
            below.append(below[-1] + count)
        return cls(tuple(edges), tuple(cost * count // total for count in below))

    @property
    def total(self) -> int:
        """Of the whole table."""
        return self.costs[-1]

    def between(self, start: int, stop: int) -> int:
        """Of rows [start, stop)."""
        return self._below(stop) - self._below(start)

    def reach(self, start: int, room: int) -> int:
        """The last `stop` for which rows [start, stop) cost at most `room`; at least `start`."""
        limit = self._below(start) + room
        if limit >= self.total:
            return self.rows[-1]
        low, high = start, self.rows[-1]
        while low < high:
            middle = (low + high + 1) // 2
            if self._below(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _below(self, row: int) -> int:
        at = bisect_right(self.rows, row) - 1
        if at == len(self.rows) - 1:
            return self.costs[-1]
        step, span = self.costs[at + 1] - self.costs[at], self.rows[at + 1] - self.rows[at]
        return self.costs[at] + step * (row - self.rows[at]) // span


BYTES_SLACK = 0.25
"""A node's rows may take so much more than the mean of all nodes."""
LEVEL_SLACK = 0.05
"""Whole tables may cost a node so much more than the mean of all nodes."""


def bytes_limit(tables: Sequence[TableSettings], nodes: int) -> int:
    """How many bytes the rows and the optimizer state of one node may take: the mean and BYTES_SLACK of it,
    or one row more than the mean."""
    widths = [_width_bytes(table) for table in tables]
    mean = -(-sum(w * table.rows for w, table in zip(widths, tables, strict=True)) // nodes)
    return max(int(mean * (1 + BYTES_SLACK)), mean + max(widths))


def split_by_cost(tables: Sequence[TableSettings], loads: Sequence[TableLoad], nodes: int) -> list[Range]:
    """Levels the loads of the nodes, and gives none more bytes than `bytes_limit`.

    Where the limit on bytes stops no node, the most that a node has to do is at most 1 + LEVEL_SLACK times
    the mean, or the mean and the heaviest row. There are at most `2 * (nodes - 1)` more ranges than tables.
    A pure function, in integers: the same loads give the same split on every machine.

    Args:
        loads: of each table.

    Raises:
        JobFileError: fewer rows than nodes.
    """
    check_enough_rows(tables, nodes)
    shares = [_NodeLoad(0, bytes_limit(tables, nodes)) for _ in range(nodes)]
    mean = -(-sum(load.total for load in loads) // nodes)
    left, ranges = _place_whole(tables, loads, shares, mean)
    line = [
        _UnplacedTable(table, tables[table].rows, _width_bytes(tables[table]), loads[table]) for table in left
    ]
    work, memory = sum(i.load.total for i in line), sum(i.rows * i.width_bytes for i in line)
    busy = [item for item in line if item.load.total * memory > item.rows * item.width_bytes * work]
    ranges += _cut_over_nodes(busy, shares)
    return ranges + _cut_over_nodes([item for item in line if item not in busy], shares)


@dataclass
class _NodeLoad:
    """What a node has to do, in picoseconds an example, and what it has room for, in bytes."""

    load: int
    room_bytes: int


@dataclass(frozen=True)
class _UnplacedTable:
    """A table on the line."""

    table: int
    rows: int
    width_bytes: int
    load: TableLoad


def _place_whole(
    tables: Sequence[TableSettings], loads: Sequence[TableLoad], shares: list[_NodeLoad], mean: int
) -> tuple[list[int], list[Range]]:
    """Gives whole tables to nodes; the tables that fit nowhere, and the ranges of the others."""
    limit = shares[0].room_bytes
    sizes = [table.rows * _width_bytes(table) for table in tables]
    highest = int(mean * (1 + LEVEL_SLACK))

    def weight(table: int) -> tuple[int, int]:
        # The larger of the table's parts of a node's load and of its bytes, over one denominator.
        return -max(loads[table].total * limit, sizes[table] * mean), table

    left, ranges = [], []
    for table in sorted(range(len(tables)), key=weight):
        load, size = loads[table].total, sizes[table]
        free = [n for n, s in enumerate(shares) if s.room_bytes >= size and s.load + load <= highest]
        if not free:
            left.append(table)
            continue
        home = min(free, key=lambda n: (shares[n].load, -shares[n].room_bytes, n))
        shares[home].load += load
        shares[home].room_bytes -= size
        ranges.append(Range(table, 0, tables[table].rows, home))
    return sorted(left), ranges


def _cut_over_nodes(line: list[_UnplacedTable], shares: list[_NodeLoad]) -> list[Range]:
    """A stretch of the line for each node, at the lowest level that holds all of it."""
    if not line:
        return []
    work = sum(item.load.total for item in line)
    low, high = (
        (sum(share.load for share in shares) + work) // len(shares),
        max(share.load for share in shares) + work,
    )
    while low < high:
        level = (low + high) // 2
        if _fill(line, shares, level) is None:
            low = level + 1
        else:
            high = level
    ranges = _fill(line, shares, low)
    # Without a bound on loads, the bytes of all nodes together hold every row.
    assert ranges is not None
    items = {item.table: item for item in line}
    for table, start, stop, node in ranges:
        shares[node].load += items[table].load.between(start, stop)
        shares[node].room_bytes -= (stop - start) * items[table].width_bytes
    return ranges


def _fill(line: list[_UnplacedTable], shares: list[_NodeLoad], level: int) -> list[Range] | None:
    """Each node in turn takes as much as it has room for below `level`; None if something is left."""
    ranges: list[Range] = []
    at, start = 0, 0
    for node in sorted(range(len(shares)), key=lambda n: (shares[n].load, n)):
        room, room_bytes = level - shares[node].load, shares[node].room_bytes
        while at < len(line) and room >= 0:
            item = line[at]
            stop = min(item.load.reach(start, room), start + room_bytes // item.width_bytes)
            if stop > start:
                ranges.append(Range(item.table, start, stop, node))
                room -= item.load.between(start, stop)
                room_bytes -= (stop - start) * item.width_bytes
            start = stop
            if stop < item.rows:
                break
            at, start = at + 1, 0
    return ranges if at == len(line) else None


def _width_bytes(table: TableSettings) -> int:
    return row_bytes(table.optimizer, table.dim, table.storage)
