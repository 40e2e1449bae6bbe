"""Accesses to the tables, counted in a sample of batches. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...config.tables import TableSettings, columns_of
from ...data.batch import Batch
from ...types import Int32Array

HEAD_ROWS = 1024
"""How many most frequent rows of a table stay in a processor's cache, about."""
EDGES = 256
"""Parts of the histogram of a table's rows, about."""


@dataclass(frozen=True)
class TableAccess:
    """The accesses to one table.

    Attributes:
        rows_per_example: rows looked up, repeats counted; 1 for a table of one column with one row an
            example.
        distinct_per_example: distinct rows of a batch, of all columns, divided by the batch's examples.
        summed_per_example: of `rows_per_example`, those in bags that nodes sum.
        head_share: fraction of all lookups that go to the HEAD_ROWS most frequent rows.
        edges, counts: histogram of the lookups: counts[i] is for rows in [edges[i], edges[i + 1]). The first
            edge is 0, the last the table's rows. Parts have about equal numbers of lookups, unless a part is
            a single row.
    """

    rows_per_example: float
    distinct_per_example: float
    head_share: float
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    summed_per_example: float = 0.0


class AccessCounter:
    """Count the lookups of batches, and store their rows; used by one thread.

    Attributes:
        examples: number of added examples.
        bytes: bytes of the stored rows.
    """

    def __init__(self, tables: Sequence[TableSettings]) -> None:
        self._tables = tables
        self._rows_seen: list[list[Int32Array]] = [[] for _ in tables]
        self._columns = columns_of(tables)
        self._distinct = [0] * len(tables)
        self._summed = [0] * len(tables)
        self.examples = 0
        self.bytes = 0

    def add(self, batch: Batch) -> None:
        """Count a batch, in the form in which a trainer gets it."""
        single, bagged = iter(batch.rows), iter(batch.bag_lengths)
        start = 0
        rows_of_tables: list[list[Int32Array]] = [[] for _ in self._tables]
        for column in self._columns:
            if not column.pooling:
                rows_of_tables[column.number].append(next(single))
                continue
            stop = start + int(next(bagged).sum())
            rows_of_tables[column.number].append(batch.bag_rows[start:stop])
            self._summed[column.number] += (stop - start) * column.of_table.pooled_by_nodes
            start = stop
        for number, of_columns in enumerate(rows_of_tables):
            table_rows: Int32Array = np.concatenate([np.zeros(0, np.int32), *of_columns])
            self._rows_seen[number].append(table_rows)
            self._distinct[number] += len(np.unique(table_rows))
            self.bytes += table_rows.nbytes
        self.examples += len(batch)

    def result(self) -> list[TableAccess]:
        """Return one entry for each table.

        A table without a lookup counts as accessed evenly. It counts with one row an example if there was no
        example, and with none if all bags were empty.
        """
        every = zip(self._tables, self._rows_seen, self._distinct, self._summed, strict=True)
        return [
            replace(
                _access(table.rows, rows_seen, distinct, self.examples),
                summed_per_example=summed / max(1, self.examples),
            )
            for table, rows_seen, distinct, summed in every
        ]


def _access(rows: int, rows_seen: list[Int32Array], distinct: int, examples: int) -> TableAccess:
    all_rows: Int32Array = np.concatenate(rows_seen) if rows_seen else np.zeros(0, np.int32)
    if not len(all_rows):
        return TableAccess(
            float(not examples), float(not examples), min(1.0, HEAD_ROWS / rows), (0, rows), (0,)
        )
    values, counts = np.unique(all_rows, return_counts=True)
    head = np.sort(counts)[-HEAD_ROWS:].sum()
    edges = _edges(rows, values, counts)
    parts = np.add.reduceat(counts, np.searchsorted(values, edges[:-1]).clip(max=len(values) - 1))
    # For a part without a seen row, reduceat gives the next row's count.
    empty = np.searchsorted(values, edges[:-1]) == np.searchsorted(values, edges[1:])
    parts[empty] = 0
    return TableAccess(
        len(all_rows) / examples,
        distinct / examples,
        float(head / len(all_rows)),
        tuple(edges.tolist()),
        tuple(parts.tolist()),
    )


def _edges(rows: int, values: Int32Array, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the edges of the histogram's parts.

    A row with at least the lookups of a part has edges on both sides. Other rows are cut where they fill a
    part.
    """
    share = max(1, int(counts.sum()) // EDGES)
    below = np.cumsum(counts)
    cuts = values[np.searchsorted(below, np.arange(share, below[-1], share))].astype(np.int64)
    heavy = values[counts >= share].astype(np.int64)
    return np.unique(np.concatenate([[0, rows], cuts, heavy, heavy + 1]))
