"""Which rows of which table go to which embedding node, before they are laid out there. Knows no torch.

What the optimizers of rows keep of each row, by name. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...config.tables import TableSettings
from ...errors import JobFileError


class Range(NamedTuple):
    """Rows [start, stop) of `table`, of which `node` is the keeper."""

    table: int
    start: int
    stop: int
    node: int


def check_enough_rows(tables: Sequence[TableSettings], nodes: int) -> None:
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


def find_split_fault(tables: Sequence[TableSettings], nodes: int, ranges: Iterable[Range]) -> str:
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


WEIGHTS: Final = "weights"
"""The name of the rows themselves, beside which the state is kept."""


@dataclass(frozen=True, slots=True)
class RowState:
    """One array of an optimizer's state, float32: [rows], or [rows, dim] if `by_float`."""

    name: str
    by_float: bool

    def shape(self, rows: int, dim: int) -> tuple[int, ...]:
        """Of the state of so many rows."""
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
STORAGE_BYTES: Final[dict[str, int]] = {"float32": 4, "bfloat16": 2}
"""Of a float of a row in a node's memory, by the name of the storage. State is float32 always."""


def row_states(optimizer: str) -> tuple[RowState, ...]:
    """The state of an optimizer. Raises JobFileError for an unknown name."""
    if optimizer not in ROW_STATES:
        raise JobFileError(
            f'no optimizer "{optimizer}"',
            where="embedding.optimizer",
            remedy=f"give one of {', '.join(ROW_STATES)}",
        )
    return ROW_STATES[optimizer]


def state_floats(optimizer: str, dim: int) -> int:
    """Floats of state that an optimizer keeps for a row of `dim`. Raises JobFileError for an unknown name."""
    return sum(dim if state.by_float else 1 for state in row_states(optimizer))


def row_bytes(optimizer: str, dim: int, storage: str) -> int:
    """What a row of `dim` takes on its node with its state. Raises JobFileError for an unknown optimizer,
    KeyError for an unknown storage."""
    return STORAGE_BYTES[storage] * dim + 4 * state_floats(optimizer, dim)
