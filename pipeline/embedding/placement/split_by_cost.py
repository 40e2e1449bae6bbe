"""Split of tables by cost: equal work for nodes, within memory limits.

1. Whole tables are placed, the largest first, on the node with the least load, as long as the node stays near
   the mean (LPT: Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969).
2. The other tables are laid end to end and cut into one stretch for each node, at the lowest load that holds
   them all (McNaughton, Scheduling with deadlines and loss functions, Management Science 6, 1959). First come
   the tables with a larger share of the work than of the memory; the others then fill up the memory.

Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ...config.tables import TableSettings
from .ranges import Range, check_enough_rows

BYTES_SLACK = 0.25
"""The fraction by which a node's rows may exceed the mean bytes of all nodes."""
LEVEL_SLACK = 0.05
"""The fraction by which whole tables may exceed the mean load of all nodes."""


@dataclass(frozen=True)
class TableLoad:
    """The cost of a table as a function of its rows.

    Costs are integers, so that a plan does not depend on rounding.

    Attributes:
        rows: ascending row numbers, the first 0 and the last the number of rows.
        costs: for each of `rows` the cost of all rows below it, in picoseconds an example. All rows between
            two of `rows` cost the same.
    """

    rows: tuple[int, ...]
    costs: tuple[int, ...]

    @classmethod
    def even(cls, rows: int, cost: int) -> TableLoad:
        """Return the load of a table whose rows cost the same."""
        return cls((0, rows), (0, cost))

    @classmethod
    def of_counts(cls, rows: int, edges: Sequence[int], counts: Sequence[int], cost: int) -> TableLoad:
        """Spread a table's cost by how often its rows were seen.

        Args:
            rows: number of rows of the table.
            edges: n + 1 rows, ascending, the first 0 and the last `rows`.
            counts: n numbers: how often rows of [edges[i], edges[i + 1]) were seen. If all are 0, the load
                is even.
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
        """Return the cost of the whole table."""
        return self.costs[-1]

    def between(self, start: int, stop: int) -> int:
        """Return the cost of rows [start, stop)."""
        return self._below(stop) - self._below(start)

    def reach(self, start: int, room: int) -> int:
        """Return the largest `stop`, at least `start`, whose rows [start, stop) fit `room`."""
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
        step_number = bisect_right(self.rows, row) - 1
        if step_number == len(self.rows) - 1:
            return self.costs[-1]
        step, span = (
            self.costs[step_number + 1] - self.costs[step_number],
            self.rows[step_number + 1] - self.rows[step_number],
        )
        return self.costs[step_number] + step * (row - self.rows[step_number]) // span


def bytes_limit(tables: Sequence[TableSettings], nodes: int) -> int:
    """Return how many bytes of rows and state one node may hold.

    The limit is the mean of the nodes plus BYTES_SLACK of it, or plus one row, whichever is more.
    """
    widths = [table.row_bytes for table in tables]
    mean = -(-sum(w * table.rows for w, table in zip(widths, tables, strict=True)) // nodes)
    return max(int(mean * (1 + BYTES_SLACK)), mean + max(widths))


def split_by_cost(tables: Sequence[TableSettings], loads: Sequence[TableLoad], nodes: int) -> list[Range]:
    """Balance the nodes' loads, each within `bytes_limit`.

    If no node reaches the limit on bytes, the largest load is at most 1 + LEVEL_SLACK times the mean, or the
    mean plus the heaviest row. There are at most `2 * (nodes - 1)` more ranges than tables. All arithmetic is
    in integers, so that the same loads give the same split on every machine.

    Args:
        tables: the tables.
        loads: the load of each table.
        nodes: number of nodes.

    Raises:
        JobFileError: fewer rows than nodes.
    """
    check_enough_rows(tables, nodes)
    node_loads = [_NodeLoad(0, bytes_limit(tables, nodes)) for _ in range(nodes)]
    mean = -(-sum(load.total for load in loads) // nodes)
    left, ranges = _place_whole(tables, loads, node_loads, mean)
    queue = [
        _UnplacedTable(table, tables[table].rows, tables[table].row_bytes, loads[table]) for table in left
    ]
    work, memory = sum(i.load.total for i in queue), sum(i.rows * i.width_bytes for i in queue)
    busy = [
        table_item
        for table_item in queue
        if table_item.load.total * memory > table_item.rows * table_item.width_bytes * work
    ]
    ranges += _cut_over_nodes(busy, node_loads)
    return ranges + _cut_over_nodes(
        [table_item for table_item in queue if table_item not in busy], node_loads
    )


@dataclass
class _NodeLoad:
    """A node's load, in picoseconds an example, and its free bytes."""

    load: int
    room_bytes: int


@dataclass(frozen=True)
class _UnplacedTable:
    """A table that is still to be cut over nodes."""

    table: int
    rows: int
    width_bytes: int
    load: TableLoad


def _place_whole(
    tables: Sequence[TableSettings], loads: Sequence[TableLoad], node_loads: list[_NodeLoad], mean: int
) -> tuple[list[int], list[Range]]:
    """Place whole tables; return the tables that fit nowhere, and the others' ranges."""
    limit = node_loads[0].room_bytes
    sizes = [table.rows * table.row_bytes for table in tables]
    highest = int(mean * (1 + LEVEL_SLACK))

    def weight(table: int) -> tuple[int, int]:
        # The larger of the table's shares of a node's load and of a node's bytes, times their denominators.
        return -max(loads[table].total * limit, sizes[table] * mean), table

    left, ranges = [], []
    for table in sorted(range(len(tables)), key=weight):
        load, size = loads[table].total, sizes[table]
        free = [n for n, s in enumerate(node_loads) if s.room_bytes >= size and s.load + load <= highest]
        if not free:
            left.append(table)
            continue
        node = min(free, key=lambda n: (node_loads[n].load, -node_loads[n].room_bytes, n))
        node_loads[node].load += load
        node_loads[node].room_bytes -= size
        ranges.append(Range(table, 0, tables[table].rows, node))
    return sorted(left), ranges


def _cut_over_nodes(queue: list[_UnplacedTable], node_loads: list[_NodeLoad]) -> list[Range]:
    """Cut the queued tables over nodes at the lowest load that holds all."""
    if not queue:
        return []
    work = sum(table_item.load.total for table_item in queue)
    low, high = (
        (sum(share.load for share in node_loads) + work) // len(node_loads),
        max(share.load for share in node_loads) + work,
    )
    while low < high:
        level = (low + high) // 2
        if _fill(queue, node_loads, level) is None:
            low = level + 1
        else:
            high = level
    ranges = _fill(queue, node_loads, low)
    # The highest level bounds no load, and the bytes of all nodes together hold every row.
    assert ranges is not None
    items = {table_item.table: table_item for table_item in queue}
    for table, start, stop, node in ranges:
        node_loads[node].load += items[table].load.between(start, stop)
        node_loads[node].room_bytes -= (stop - start) * items[table].width_bytes
    return ranges


def _fill(queue: list[_UnplacedTable], node_loads: list[_NodeLoad], level: int) -> list[Range] | None:
    """Give each node rows up to the load `level`; None if rows are left."""
    ranges: list[Range] = []
    item, start = 0, 0
    for node in sorted(range(len(node_loads)), key=lambda n: (node_loads[n].load, n)):
        room, room_bytes = level - node_loads[node].load, node_loads[node].room_bytes
        while item < len(queue) and room >= 0:
            table_item = queue[item]
            stop = min(table_item.load.reach(start, room), start + room_bytes // table_item.width_bytes)
            if stop > start:
                ranges.append(Range(table_item.table, start, stop, node))
                room -= table_item.load.between(start, stop)
                room_bytes -= (stop - start) * table_item.width_bytes
            start = stop
            if stop < table_item.rows:
                break
            item, start = item + 1, 0
    return ranges if item == len(queue) else None
