"""Ranges of rows on nodes, and an optimizer's state of a row.

Ranges say which rows of which table go to which embedding node; a plan then lays them out there. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...config.tables import TableSettings
from ...errors import JobFileError

WEIGHTS: Final = "weights"
"""The name of the rows themselves, beside the names of their state."""

STORAGE_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}
"""Bytes of a float of a row in a node's memory, by name of the storage. State is always float32."""


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


@dataclass(frozen=True, slots=True)
class RowState:
    """One array of an optimizer's state, float32 [rows], or [rows, dim] if `by_float`."""

    name: str
    by_float: bool

    def shape(self, rows: int, dim: int) -> tuple[int, ...]:
        """Return the shape of the state of `rows` rows."""
        return (rows, dim) if self.by_float else (rows,)


ROW_STATES: Final[dict[str, tuple[RowState, ...]]] = {
    "sgd": (),
    "rowwise_adagrad": (RowState("adagrad_sums", by_float=False),),
    "adagrad": (RowState("adagrad_squares", by_float=True),),
    "adam": (
        RowState("adam_means", by_float=True),
        RowState("adam_squares", by_float=True),
        RowState("adam_steps", by_float=False),
    ),
}


def row_states(optimizer: str) -> tuple[RowState, ...]:
    """Return the state arrays of an optimizer.

    Raises JobFileError for an unknown name.
    """
    if optimizer not in ROW_STATES:
        raise JobFileError(
            f'"{optimizer}" is not an optimizer',
            where="embedding.optimizer",
            remedy=f"use one of {', '.join(ROW_STATES)}",
        )
    return ROW_STATES[optimizer]


def state_floats(optimizer: str, dim: int) -> int:
    """Return how many floats of state an optimizer keeps for one row.

    Raises JobFileError for an unknown name.
    """
    return sum(dim if state.by_float else 1 for state in row_states(optimizer))


def row_bytes(optimizer: str, dim: int, storage: str) -> int:
    """Return a row's bytes in its node's memory, state included.

    Raises JobFileError for an unknown optimizer, KeyError for an unknown storage.
    """
    return STORAGE_BYTES[storage] * dim + 4 * state_floats(optimizer, dim)
