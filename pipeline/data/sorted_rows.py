"""Rows of unsorted files in the order of their time, held in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import DataError
from .records import Chunk
from .schema import Examples

CHUNK_ROWS = 16_384


class SortedRows:
    """All rows of `chunks`, sorted by time; rows of one time stay in the order of the files.

    In memory are the examples once, and twice while they are joined. Raises DataError when they have more
    than `limit_bytes`.
    """

    def __init__(self, chunks: Iterator[Chunk], limit_bytes: int, paths: Sequence[str]) -> None:
        examples, times = [], []
        held = rows = 0
        for chunk in chunks:
            held += size_of_chunk(chunk)
            rows += len(chunk.examples)
            if held > limit_bytes:
                raise too_large(held, rows, limit_bytes, paths)
            examples.append(chunk.examples)
            times.append(chunk.times)
        self._examples = Examples.join(examples)
        self._order = np.argsort(np.concatenate(times), kind="stable")

    def chunks(self, start: int, stop: int) -> Iterator[Chunk]:
        """Rows start to stop - 1 in the order of time; their times are left out."""
        for first in range(start, stop, CHUNK_ROWS):
            rows = self._order[first : min(first + CHUNK_ROWS, stop)]
            yield Chunk(self._examples.take(rows), np.zeros(0))


def size_of_chunk(chunk: Chunk) -> int:
    """Bytes that a chunk has in memory, its times and its place in the order with it."""
    rows = chunk.examples
    arrays = (rows.labels, rows.dense, rows.rows, rows.weights, rows.bags.rows, rows.bags.lengths)
    return sum(array.nbytes for array in arrays) + 16 * len(rows)


def too_large(held_bytes: int, rows: int, limit_bytes: int, paths: Sequence[str]) -> DataError:
    """The error for input that is too large to be sorted in memory."""
    return DataError(
        f"is not sorted by time, and {rows} rows of about {held_bytes // max(rows, 1)} bytes each are "
        f"{held_bytes} bytes, above data.sort_limit_bytes = {limit_bytes}",
        where=", ".join(paths),
        remedy="sort the files by their timestamp beforehand, or raise the limit where memory is twice that",
    )
