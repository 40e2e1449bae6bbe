"""Ranges of rows on nodes.

Ranges say which rows of which table go to which embedding node; a plan then lays them out there. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ...config.tables import TableSettings
from ...errors import JobFileError

WEIGHTS: Final = "weights"
"""The name of the rows themselves, beside the names of their state."""


class Range(NamedTuple):
    """Rows [start, stop) of `table`, which `node` owns."""

    table: int
    start: int
    stop: int
    node: int


def check_enough_rows(tables: Sequence[TableSettings], nodes: int) -> None:
    """Raise JobFileError if there are fewer rows than nodes.

    Raises ValueError if there are no tables or no nodes, and for a table without rows or width.
    """
    rows = [table.rows for table in tables]
    if not rows or min(rows) < 1 or min(table.dim for table in tables) < 1 or nodes < 1:
        raise ValueError(f"no plan for tables of {tuple(rows)} rows over {nodes} nodes")
    if sum(rows) < nodes:
        raise JobFileError(
            f"{nodes} nodes are too many: all tables have {sum(rows)} rows together",
            where="embedding.nodes",
            remedy=f"set embedding.nodes to at most {sum(rows)}",
        )


def find_split_fault(tables: Sequence[TableSettings], nodes: int, ranges: Iterable[Range]) -> str:
    """Describe the fault of a split; "" if it is valid.

    In a valid split every row of every table is on one node, and no node has two ranges of one table.
    """
    expected = [0] * len(tables)
    seen: set[tuple[int, int]] = set()
    for number, start, stop, node in sorted(ranges):
        if not 0 <= number < len(tables):
            return f"it has a table {number}, but there are {len(tables)}"
        name, rows = tables[number].name, tables[number].rows
        if not (0 <= node < nodes and 0 <= start < stop <= rows):
            return (
                f"rows {start:,} to {stop - 1:,} of table {name}, which has {rows:,}, are on node {node} of "
                f"{nodes}"
            )
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
