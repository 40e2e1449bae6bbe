"""What it costs a node to look a row up and to update it: timed with numpy, or counted. Knows no torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config.tables import TableSettings
from .ranges import row_bytes, state_floats
from .table_access import TableAccess

TABLE_BYTES: Final = (1 << 18, 1 << 25)
"""Of the small table that is timed, which a processor keeps close by, and of the large one."""
WIDTHS_BYTES: Final = (16, 1024)
ROWS_AT_ONCE: Final = 4096
WIRE_NS_PER_BYTE: Final = 0.15
"""Through a socket of this machine, one way, for one end: some 6 GB/s."""
ENTRY_NS: Final = 15.0
"""Of one row of a push: sorting it, and finding where it begins."""


class RowCostModel(Protocol):
    """What moving a row costs, in nanoseconds."""

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """To read or write a row of so many bytes, at random, in a table of so many."""
        ...


@dataclass(frozen=True)
class CountedRowCosts:
    """By bytes alone: the same on every machine and every day."""

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """See `RowCostModel.move`; the table's size does not matter."""
        del table_bytes
        return 10.0 + 0.1 * width_bytes


@dataclass(frozen=True)
class TimedRowCosts:
    """As this machine does it.

    Attributes:
        grid: nanoseconds a row, by the table's size (TABLE_BYTES) and the row's (WIDTHS_BYTES).
    """

    grid: tuple[tuple[float, float], tuple[float, float]]

    @classmethod
    def measure(cls, seconds: float, clock: Callable[[], float] = time.perf_counter) -> TimedRowCosts:
        """Times random rows of two tables for about `seconds`, with 32 MiB of memory."""
        each = seconds / (len(TABLE_BYTES) * len(WIDTHS_BYTES))
        memory = np.zeros(TABLE_BYTES[1] // 4, np.float32)
        small, large = (
            tuple(_time(memory[: size // 4], width // 4, each, clock) for width in WIDTHS_BYTES)
            for size in TABLE_BYTES
        )
        return cls(((small[0], small[1]), (large[0], large[1])))

    def move(self, width_bytes: int, table_bytes: int) -> float:
        """See `RowCostModel.move`: straight lines between, and beyond, what was timed."""
        narrow, wide = WIDTHS_BYTES
        part = (width_bytes - narrow) / (wide - narrow)
        small, large = (max(1.0, low + (high - low) * part) for low, high in self.grid)
        lowest, highest = np.log2(TABLE_BYTES)
        place = (np.log2(max(table_bytes, 1)) - lowest) / (highest - lowest)
        return float(small + (large - small) * min(1.0, max(0.0, place)))


@dataclass(frozen=True)
class TableCost:
    """What a table costs its nodes, in nanoseconds an example: to answer lookups, to apply pushes, and to get
    both through a socket."""

    lookup_ns: float
    update_ns: float
    wire_ns: float

    @property
    def total_ns(self) -> float:
        """All of it."""
        return self.lookup_ns + self.update_ns + self.wire_ns


@dataclass(frozen=True)
class LookupTraffic:
    """What trainers ask for and send.

    Attributes:
        distinct: each row of a batch once, in tables without bags.
        float_bytes: of an element of a vector or gradient on the wire, the mean of both ways.
    """

    distinct: bool = False
    float_bytes: float = 4.0


def table_cost(
    table: TableSettings, access: TableAccess, prices: RowCostModel, traffic: LookupTraffic | None = None
) -> TableCost:
    """From how a table is used, what moving a row costs, and what trainers ask for (all of it as float32, if
    that is not given).

    A lookup reads each row of an example; a bag is summed, and goes over the wire as one vector. A push adds
    up the gradients of each row and reads and writes every distinct row of the batch once, with its state.
    """
    traffic = traffic or LookupTraffic()
    whole = row_bytes(table.optimizer, table.dim, table.storage)
    row = whole - 4 * state_floats(table.optimizer, table.dim)
    once = traffic.distinct and not table.pooling
    rows = access.distinct_per_example if once else access.rows_per_example
    vector = 4 * table.dim
    size = table.rows * whole

    def move(width_bytes: int) -> float:
        near = prices.move(width_bytes, TABLE_BYTES[0])
        return near + (prices.move(width_bytes, size) - near) * (1 - access.head_share)

    summed = rows * (ENTRY_NS + prices.move(vector, TABLE_BYTES[0]))
    vectors = 1.0 if table.pooling else rows
    return TableCost(
        lookup_ns=rows * move(row),
        update_ns=summed + access.distinct_per_example * 2 * move(whole),
        wire_ns=2 * WIRE_NS_PER_BYTE * (4 * rows + traffic.float_bytes * table.dim * vectors),
    )


def _time(memory: NDArray[np.float32], width: int, seconds: float, clock: Callable[[], float]) -> float:
    """Nanoseconds to read or write a row of `width` floats of a table in `memory`: the least of several."""
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
