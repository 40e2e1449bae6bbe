"""Which rows of which table go to which embedding node, before they are laid out there. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...config.tables import TableSettings
from ...errors import JobFileError


class Range(NamedTuple):
    """Rows [start, stop) of `table`, of which `node` is the keeper."""

    table: int
    start: int
    stop: int
    node: int


def require_enough(tables: Sequence[TableSettings], nodes: int) -> None:
    """Raises JobFileError if there are fewer rows than nodes, ValueError for tables that are none."""
    rows = [table.rows for table in tables]
    if not rows or min(rows) < 1 or min(table.dim for table in tables) < 1 or nodes < 1:
        raise ValueError(f"no plan for tables of {tuple(rows)} rows over {nodes} nodes")
    if sum(rows) < nodes:
        raise JobFileError(
            f"{nodes} nodes for {sum(rows)} rows in all tables",
            where="embedding.nodes",
            remedy=f"give at most {sum(rows)}",
        )


def fault_of(tables: Sequence[TableSettings], nodes: int, ranges: Iterable[Range]) -> str:
    """What is wrong with a split, in words; "" if every row of every table has one node, and no node has two
    ranges of one table."""
    expected = [0] * len(tables)
    seen: set[tuple[int, int]] = set()
    for number, start, stop, node in sorted(ranges):
        if not 0 <= number < len(tables):
            return f"it has a table {number}, and there are {len(tables)}"
        name, rows = tables[number].name, tables[number].rows
        if not (0 <= node < nodes and 0 <= start < stop <= rows):
            return f"rows {start:,} to {stop - 1:,} of table {name}, of {rows:,}, on node {node} of {nodes}"
        if start != expected[number]:
            first, last = sorted((start, expected[number]))
            how = "on no node" if start > expected[number] else "on two nodes"
            return f"rows {first:,} to {last - 1:,} of table {name} are {how}"
        if (number, node) in seen:
            return f"node {node} has two ranges of table {name}"
        seen.add((number, node))
        expected[number] = stop
    for table, end in zip(tables, expected, strict=True):
        if end < table.rows:
            return f"rows {end:,} to {table.rows - 1:,} of table {table.name} are on no node"
    return ""
