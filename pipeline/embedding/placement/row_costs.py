"""The cost of looking up and updating a row, measured or counted.

Imports no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config.row_bytes import row_bytes, state_floats
from ...config.tables import TableSettings
from .table_access import TableAccess

TABLE_BYTES: Final = (1 << 18, 1 << 25)
"""Sizes of the two tables that are timed: one that fits a processor's cache, and a large one."""
WIDTHS_BYTES: Final = (16, 1024)
ROWS_AT_ONCE: Final = 4096
WIRE_NS_PER_BYTE: Final = 0.15
"""Through a local socket, one way, for one end: some 6 GB/s."""
ENTRY_NS: Final = 15.0
"""Cost of one row of a push: sorting it, and finding where its gradients begin."""


class RowCostModel(Protocol):
    """Costs of reading or writing a row, in nanoseconds."""

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """Return the cost of reading or writing a random row of a table.

        The row has `width_bytes`, the table `table_bytes`.
        """
        ...


@dataclass(frozen=True)
class CountedRowCosts:
    """Costs by bytes only, so that they are equal on every machine."""

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """Return the cost by the row's width, whatever the table's size."""
        del table_bytes
        return 10.0 + 0.1 * width_bytes


@dataclass(frozen=True)
class TimedRowCosts:
    """Costs as measured on this machine.

    Attributes:
        grid: nanoseconds a row, by the size of the table (TABLE_BYTES) and of the row (WIDTHS_BYTES).
    """

    grid: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def measure(cls, seconds: float, clock: Callable[[], float] = time.perf_counter) -> TimedRowCosts:
        """Time random rows of two tables for about `seconds`; takes 32 MiB of memory."""
        each = seconds / (len(TABLE_BYTES) * len(WIDTHS_BYTES))
        memory = np.zeros(TABLE_BYTES[1] // 4, np.float32)
        small, large = (
            tuple(_time(memory[: size // 4], width // 4, each, clock) for width in WIDTHS_BYTES)
            for size in TABLE_BYTES
        )
        return cls(((small[0], small[1]), (large[0], large[1])))

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """Return the cost, interpolated between measured points.

        The cost is linear in the row's width, also beyond the points, and linear in the logarithm of the
        table's size, constant beyond the points.
        """
        narrow, wide = WIDTHS_BYTES
        part = (width_bytes - narrow) / (wide - narrow)
        small, large = (max(1.0, low + (high - low) * part) for low, high in self.grid)
        lowest, highest = np.log2(TABLE_BYTES)
        place = (np.log2(max(table_bytes, 1)) - lowest) / (highest - lowest)
        return float(small + (large - small) * min(1.0, max(0.0, place)))


@dataclass(frozen=True)
class TableCost:
    """A table's cost to its nodes, in nanoseconds an example.

    Attributes:
        lookup_ns: cost of answering lookups.
        update_ns: cost of applying pushes.
        wire_ns: cost of sending both through a socket.
    """

    lookup_ns: float
    update_ns: float
    wire_ns: float

    @property
    def total_ns(self) -> float:
        """Return the sum of all three costs."""
        return self.lookup_ns + self.update_ns + self.wire_ns


@dataclass(frozen=True)
class LookupTraffic:
    """What trainers request and send.

    Attributes:
        distinct: whether each row of a batch is requested once, but for those in bags that nodes sum.
        float_bytes: bytes of an element of a vector or gradient on the wire, the mean of both directions.
    """

    distinct: bool = False
    float_bytes: float = 4.0


def table_cost(
    table: TableSettings, access: TableAccess, costs: RowCostModel, traffic: LookupTraffic | None = None
) -> TableCost:
    """Return a table's cost from its access and the rows' costs.

    Without `traffic` all values are sent as float32, and repeated rows are sent again. A lookup reads each
    row of an example; a bag is summed and sent as one vector. A push adds up the gradients of each row, then
    reads and writes every distinct row of the batch once, with its state.
    """
    traffic = traffic or LookupTraffic()
    whole = row_bytes(table.optimizer, table.dim, table.storage)
    row = whole - 4 * state_floats(table.optimizer, table.dim)
    single = access.rows_per_example - access.summed_per_example
    if traffic.distinct:
        # Of a mixed table some of the distinct rows may be in bags alone.
        single = min(single, access.distinct_per_example)
    rows = single + access.summed_per_example
    vector = 4 * table.dim
    size = table.rows * whole

    def move(width_bytes: int) -> float:
        near = costs.move(width_bytes, TABLE_BYTES[0])
        return near + (costs.move(width_bytes, size) - near) * (1 - access.head_share)

    summed = rows * (ENTRY_NS + costs.move(vector, TABLE_BYTES[0]))
    vectors = single + table.summed_columns
    return TableCost(
        lookup_ns=rows * move(row),
        update_ns=summed + access.distinct_per_example * 2 * move(whole),
        wire_ns=2 * WIRE_NS_PER_BYTE * (4 * rows + traffic.float_bytes * table.dim * vectors),
    )


def _time(memory: NDArray[np.float32], width: int, seconds: float, clock: Callable[[], float]) -> float:
    """Return the nanoseconds to read or write a row, the least of several runs.

    The row has `width` floats and is in `memory`. The runs take about `seconds`.
    """
    table = memory[: len(memory) // width * width].reshape(-1, width)
    draw = np.random.default_rng(0)
    out = np.zeros((ROWS_AT_ONCE, width), np.float32)
    best, end, done = np.inf, clock() + seconds, 0
    while done < 3 or clock() < end:
        rows = draw.integers(0, len(table), ROWS_AT_ONCE)
        began = clock()
        np.take(table, rows, axis=0, out=out, mode="clip")
        table[rows] = out
        best, done = min(best, clock() - began), done + 1
    return float(best / (2 * ROWS_AT_ONCE) * 1e9)
