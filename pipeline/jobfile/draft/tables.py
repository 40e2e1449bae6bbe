"""Kind and size of a drafted table, so that ids do not share rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from ...data.columns.fields import hash_ids
from ...data.hashing import column_number, hash_bytes, table_rows_of
from ...types import Uint64Array
from .entry import DraftColumn, DraftTable
from .sample import InputSample

LARGEST_TABLE: Final = 1 << 22
LARGEST_TOTAL: Final = 1 << 23
"""Rows of all drafted tables: a GB, in a job of default settings."""

# The rows of so many values can be drawn until no two values share one.
_FEW_VALUES: Final = 512
_ROWS_A_VALUE: Final = 32


def draft_table(name: str, ids: pl.Series, sample: InputSample) -> DraftTable:
    """Return kind and size of a column's table.

    `ids` are the column's values in the sample, those of lists one after the other.
    A few values get a hashed table in which none shares a row with another, which costs nothing in training.
    The table of more values grows, with room for twice as many as are expected in all rows.
    """
    counts = ids.drop_nulls().value_counts()["count"]
    values = len(counts)
    expected = values
    if not sample.whole and values:
        # Heaps' law: the number of values grows as this power of the rows. The share of values that came
        # once estimates it (Karlin, Central limit theorems for certain infinite urn schemes, 1967).
        power = int((counts == 1).sum()) / values
        expected = round(values * max(1.0, sample.rows / len(sample.frame)) ** power)
    if expected <= _FEW_VALUES and (rows := _rows_of_their_own(_hashes(name, ids))):
        return DraftTable(rows, growing=False, ids=expected)
    rows = min(LARGEST_TABLE, max(16, 1 << (2 * expected - 1).bit_length()))
    return DraftTable(rows, growing=True, ids=expected)


def within_memory(columns: Sequence[DraftColumn]) -> list[DraftColumn]:
    """Halve growing tables, the largest first, until all have LARGEST_TOTAL rows."""
    kept = list(columns)
    while sum(table.rows for table in _growing(kept)) > LARGEST_TOTAL:
        kept = with_largest_halved(kept)
    return kept


def with_largest_halved(columns: Sequence[DraftColumn]) -> list[DraftColumn]:
    """Return the columns with half of the rows in the largest growing table; unchanged if none has two."""
    largest = max(_growing(columns), key=lambda table: table.rows, default=None)
    if largest is None or largest.rows < 2:
        return list(columns)
    smaller = replace(largest, rows=largest.rows // 2)
    return [replace(column, table=smaller) if column.table is largest else column for column in columns]


def _growing(columns: Sequence[DraftColumn]) -> list[DraftTable]:
    return [column.table for column in columns if column.table is not None and column.table.growing]


def table_lines(table: DraftTable) -> list[str]:
    """Return the settings of the table's section."""
    if not table.growing:
        return [f"rows = {table.rows}  # none of the {table.ids:,} values shares its row with another"]
    most = f"rows = {table.rows}  # at most"
    if table.rows < table.ids:
        most += f"; about {table.ids:,} ids are expected: those not trained longest lose their row"
    return ['kind = "growing"  # each id has a row of its own', most]


def _hashes(name: str, ids: pl.Series) -> Uint64Array:
    """Return the hashes of the distinct values and of a missing one."""
    number = column_number(name)
    hashes = hash_ids(ids.drop_nulls().unique().to_arrow(), number)
    return np.unique(np.append(hashes, np.uint64(hash_bytes(number, b""))))


def _rows_of_their_own(hashes: Uint64Array) -> int:
    """Return a number of rows by which no two hashes have one row.

    Returns 0 if none was found.
    """
    least = _ROWS_A_VALUE * len(hashes)
    for rows in range(least, 2 * least):
        if len(np.unique(table_rows_of(hashes[None], (rows,)))) == len(hashes):
            return rows
    return 0
