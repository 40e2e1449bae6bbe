"""How a sample of batches touches the tables: rows an example, repeats within a batch, the head. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...config.tables import TableSettings
from ...data.batch import Batch
from ...types import Int32Array

HEAD_ROWS = 1024
"""The most looked-up rows of a table: about what a processor keeps close by."""
EDGES = 256
"""Of the histogram of a table's rows."""


@dataclass(frozen=True)
class TableAccess:
    """What was seen of one table.

    Attributes:
        rows_per_example: looked-up rows, repeats counted; 1 where an example has one.
        distinct_per_example: those that differ within a batch, over the batch's examples.
        head_share: how much of the looked-up rows are the HEAD_ROWS most frequent ones, 0 to 1.
        edges, counts: how often rows of [edges[i], edges[i + 1]) were looked up; the first edge is 0, the
            last the table's rows, and each part of the histogram has about as many as the others, or is one
            row.
    """

    rows_per_example: float
    distinct_per_example: float
    head_share: float
    edges: tuple[int, ...]
    counts: tuple[int, ...]


class AccessCounter:
    """Counts batches as they are added, and keeps their rows. Owned by one thread.

    Attributes:
        examples: how many there were.
        bytes: that are kept.
    """

    def __init__(self, tables: Sequence[TableSettings]) -> None:
        self._tables = tables
        self._seen: list[list[Int32Array]] = [[] for _ in tables]
        self._distinct = [0] * len(tables)
        self.examples = 0
        self.bytes = 0

    def add(self, batch: Batch) -> None:
        """Counts a batch, as it would be sent to a trainer."""
        single, bagged = iter(batch.rows), iter(batch.bag_lengths)
        at = 0
        for number, table in enumerate(self._tables):
            own = next(single) if not table.pooling else batch.bag_rows[at : at + int(next(bagged).sum())]
            at += len(own) if table.pooling else 0
            self._seen[number].append(own)
            self._distinct[number] += len(np.unique(own))
            self.bytes += own.nbytes
        self.examples += len(batch)

    def result(self) -> list[TableAccess]:
        """One entry a table. A table of which no row was seen is used evenly: by one row an example if there
        was no example, by none if there were some, whose bags were all empty."""
        return [
            _access(table.rows, seen, distinct, self.examples)
            for table, seen, distinct in zip(self._tables, self._seen, self._distinct, strict=True)
        ]


def _access(rows: int, seen: list[Int32Array], distinct: int, examples: int) -> TableAccess:
    every: Int32Array = np.concatenate(seen) if seen else np.zeros(0, np.int32)
    if not len(every):
        return TableAccess(
            float(not examples), float(not examples), min(1.0, HEAD_ROWS / rows), (0, rows), (0,)
        )
    values, counts = np.unique(every, return_counts=True)
    head = np.sort(counts)[-HEAD_ROWS:].sum()
    edges = _edges(rows, values, counts)
    parts = np.add.reduceat(counts, np.searchsorted(values, edges[:-1]).clip(max=len(values) - 1))
    # Between two edges without a row in between, reduceat gives the next row's count.
    empty = np.searchsorted(values, edges[:-1]) == np.searchsorted(values, edges[1:])
    parts[empty] = 0
    return TableAccess(
        len(every) / examples,
        distinct / examples,
        float(head / len(every)),
        tuple(edges.tolist()),
        tuple(parts.tolist()),
    )


def _edges(rows: int, values: Int32Array, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Around every row that has more than a part's worth, and where the others make a part."""
    wanted = max(1, int(counts.sum()) // EDGES)
    below = np.cumsum(counts)
    cuts = values[np.searchsorted(below, np.arange(wanted, below[-1], wanted))].astype(np.int64)
    heavy = values[counts >= wanted].astype(np.int64)
    return np.unique(np.concatenate([[0, rows], cuts, heavy, heavy + 1]))
