"""Split of tables by size, counting one lookup for each table.

The split depends only on the tables. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from ...config.tables import TableSettings
from .ranges import Range, check_enough_rows


def split_by_rows(tables: Sequence[TableSettings], nodes: int) -> list[Range]:
    """Split tables above a node's fair share; place the others whole.

    A table's size is its rows times the bytes of a row, optimizer state included. Whole tables are placed
    first, the largest first. A node has two loads: its share of all bytes, and its share of all lookups
    (each table costs one lookup an example, however small it is). Each table goes to the node whose larger
    load stays least. The large tables then fill the nodes up to one level, with as few cuts as possible: at
    most `nodes - 1` more ranges than tables. Each lookup of a split table still goes to one node.

    All banks are balanced together, so that a table of another dim costs no node more than its share. If
    there are fewer rows than nodes times tables, and tables are very unequal, a node may get no rows.

    Raises JobFileError for fewer rows than nodes.
    """
    check_enough_rows(tables, nodes)
    rows = tuple(table.rows for table in tables)
    widths = _row_costs(tables)
    sizes = tuple(count * width for count, width in zip(rows, widths, strict=True))
    nodes_of_tables, held = _place_whole(sizes, nodes)
    large = [table for table, node_of_table in enumerate(nodes_of_tables) if node_of_table is None]
    shares = _shares(held, sum(sizes[table] for table in large))
    whole = [
        Range(table, 0, rows[table], node_of_table)
        for table, node_of_table in enumerate(nodes_of_tables)
        if node_of_table is not None
    ]
    return whole + _cut(rows, widths, large, shares)


def _row_costs(tables: Sequence[TableSettings]) -> list[int]:
    """Return the bytes of a row by table, over their greatest common divisor."""
    sizes = [table.row_bytes for table in tables]
    unit = gcd(*sizes)
    return [size // unit for size in sizes]


def _place_whole(sizes: tuple[int, ...], nodes: int) -> tuple[list[int | None], list[int]]:
    """Return each whole table's node, and each node's size.

    The node is None for tables to be split.
    """
    total = sum(sizes)
    nodes_of_tables: list[int | None] = [None] * len(sizes)
    held, lookups = [0] * nodes, [0] * nodes
    for table in sorted(range(len(sizes)), key=lambda table: (-sizes[table], table)):
        size = sizes[table]
        if size * nodes > total:
            continue
        loads = [
            # Both shares times their denominators, in integers, so that the plan does not depend on rounding.
            sorted(((held[n] + size) * len(sizes), (lookups[n] + 1) * total), reverse=True)
            for n in range(nodes)
        ]
        node_of_table = min(range(nodes), key=lambda n: (loads[n], n))
        nodes_of_tables[table] = node_of_table
        held[node_of_table] += size
        lookups[node_of_table] += 1
    return nodes_of_tables, held


def _shares(held: list[int], size: int) -> list[int]:
    """Return each node's part of `size`, so that loads end at one level.

    The loads of the nodes that get a part differ by at most 1.
    """
    shares = [0] * len(held)
    order = sorted(range(len(held)), key=lambda node: (held[node], node))
    filled = 0
    for count, node in enumerate(order, start=1):
        filled += held[node]
        level, rest = divmod(size + filled, count)
        if count == len(order) or level < held[order[count]]:
            for place, receiver in enumerate(order[:count]):
                shares[receiver] = level - held[receiver] + (1 if place < rest else 0)
            break
    return shares


def _cut(rows: tuple[int, ...], widths: list[int], large: list[int], shares: list[int]) -> list[Range]:
    """Cut the large tables along the nodes' shares.

    Tables and shares are both laid end to end. A row goes to the share that its middle lies in.
    """
    ranges: list[Range] = []
    table_begins = 0
    for table in large:
        width, share_ends, start = widths[table], 0, 0
        for node, share in enumerate(shares):
            share_ends += share
            # One past the last row whose middle is below the end of the share, in integers.
            stop = -((width - 2 * (share_ends - table_begins)) // (2 * width))
            stop = min(rows[table], max(start, stop))
            if stop > start:
                ranges.append(Range(table, start, stop, node))
            start = stop
        table_begins += rows[table] * width
    return ranges
