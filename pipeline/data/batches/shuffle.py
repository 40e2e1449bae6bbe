"""Permutations and windows for shuffling, and rows sorted by time.

Permutations are the same on every machine and in every version. Windows are shuffled in reused memory,
because getting fresh pages costs more than writing to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...text.format import counted, data_size
from ...types import Int32Array
from ..batch import Bags
from ..formats.records import RecordChunk
from ..schema import Examples

# First numbers of keys: permutations of spans and of rows must not be related.
SPANS, ROWS = 1, 2

CHUNK_ROWS = 16_384


def permutation(count: int, *key: int) -> NDArray[np.intp]:
    """Return a permutation of 0 to count - 1, intp [count].

    The result depends on `count` and `key` only. It comes from sorting random numbers that Philox makes from
    a SeedSequence: NumPy promises that these two streams stay the same, but not that `Generator.permutation`
    does. Each number ends in its index, so all differ, and any sorting algorithm gives the same order. Raises
    ValueError for a negative integer in `key`.
    """
    index_bits = max(count - 1, 1).bit_length()
    mask = np.uint64((1 << index_bits) - 1)
    keys = np.random.Philox(np.random.SeedSequence(key)).random_raw(count)
    keys &= ~mask
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= mask
    return keys.view(np.int64).astype(np.intp, copy=False)


def row_order(count: int, *, seed: int, epoch: int, span: int, window: int) -> NDArray[np.intp]:
    """Return the order, intp [count], of the rows of a span's window."""
    return permutation(count, ROWS, seed, epoch, span, window)


def windows(chunks: Iterable[Examples], size: int) -> Iterator[list[Examples]]:
    """Yield the same examples in order, in pieces of `size`, at least 1.

    Only the last piece may be shorter. A piece is a list of views of the chunks, in order, none of them
    empty. The limits of the chunks make no other difference. Memory holds at most one piece and one chunk.
    """
    parts: list[Examples] = []
    count = 0
    for chunk in chunks:
        start = 0
        while count + len(chunk) - start >= size:
            stop = start + size - count
            parts.append(chunk.slice(start, stop))
            yield parts
            parts, count, start = [], 0, stop
        if start < len(chunk):
            parts.append(chunk.slice(start, len(chunk)))
            count += len(chunk) - start
    if parts:
        yield parts


class WindowMemory:
    """Shuffle window after window in the same arrays, which grow to the largest window.

    The arrays are scratch memory of one thread and are never returned. They have the window's rows of tables,
    two more columns, and, if the window has several parts, its labels and numbers.
    """

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[Any]] = {}

    def shuffled(
        self, parts: Sequence[Examples], order: NDArray[np.intp], *, lead: int, batch: int
    ) -> Iterator[Examples]:
        """Yield all examples in the given order, batch by batch.

        `order` has each index of an example once (not checked). The first piece has `lead` examples (there is
        none for 0), each further one `batch`; the last may have fewer. Each piece is C-contiguous, with
        arrays of its own. `parts` must not be empty. This memory is in use until the iterator has ended.
        """
        lead = min(lead, len(order))
        labels = self._joined("labels", [part.labels for part in parts])
        dense = self._joined("dense", [part.dense for part in parts])
        weights = np.concatenate([part.weights for part in parts])
        bags = Bags.join([part.bags for part in parts]) if len(parts[0].bags.lengths) else parts[0].bags
        others = np.concatenate([part.other_labels for part in parts], axis=1)
        keys = np.concatenate([part.keys for part in parts], axis=1)
        groups = np.concatenate([part.groups for part in parts], axis=1)
        start = 0
        for rows in self._rows(parts, order, lead, batch):
            here = order[start : start + rows.shape[1]]
            start += len(here)
            yield Examples(
                labels.take(here),
                dense.take(here, axis=0),
                rows.copy(),
                weights.take(here) if len(weights) else weights,
                bags.take(here) if len(bags.lengths) else bags,
                other_labels=others.take(here, axis=1) if len(others) else others,
                keys=keys.take(here, axis=1) if len(keys) else keys,
                groups=groups.take(here, axis=1) if len(groups) else groups,
            )

    def _rows(
        self, parts: Sequence[Examples], order: NDArray[np.intp], lead: int, batch: int
    ) -> list[Int32Array]:
        """Return int32 [T, n] of each piece, in this memory."""
        tables, count = len(parts[0].rows), len(order)
        whole = (count - lead) // batch
        stop = lead + whole * batch
        blocks, column, picked = (
            self._array(name, np.dtype(np.int32), size)
            for name, size in (("blocks", tables * count), ("column", count), ("picked", count))
        )
        first = blocks[: tables * lead].reshape(tables, lead)
        middle = blocks[tables * lead : tables * stop].reshape(whole, tables, batch)
        last = blocks[tables * stop :].reshape(tables, count - stop)
        for table in range(tables):
            # Table by table, so that a column stays in the cache from the parts to the batches.
            np.concatenate([part.rows[table] for part in parts], out=column)
            # With any other mode NumPy would first write to a buffer of its own.
            column.take(order, out=picked, mode="clip")
            first[table] = picked[:lead]
            middle[:, table] = picked[lead:stop].reshape(whole, batch)
            last[table] = picked[stop:]
        return [piece for piece in (first, *middle, last) if piece.shape[1]]

    def _joined(self, name: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if len(parts) == 1:
            return parts[0]
        shape = (sum(len(part) for part in parts), *parts[0].shape[1:])
        into = self._array(name, parts[0].dtype, int(np.prod(shape))).reshape(shape)
        np.concatenate(parts, out=into)
        return into

    def _array(self, name: str, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
        flat = self._flat.get(name)
        if flat is None or len(flat) < size:
            flat = self._flat[name] = np.empty(size, dtype)
        return flat[:size]


class SortedRows:
    """All rows of `chunks`, sorted by time.

    Rows of equal times stay in the order of the files. Memory holds the examples once, and twice while they
    are joined. Raises DataError, which names `paths`, when they have more than `limit_bytes`.
    """

    def __init__(self, chunks: Iterator[RecordChunk], limit_bytes: int, paths: Sequence[str]) -> None:
        examples, times = [], []
        held_bytes = rows = 0
        for chunk in chunks:
            held_bytes += chunk_bytes(chunk)
            rows += len(chunk.examples)
            if held_bytes > limit_bytes:
                raise too_large_to_sort(held_bytes, rows, limit_bytes, paths)
            examples.append(chunk.examples)
            times.append(chunk.times)
        self._examples = Examples.join(examples)
        self._order = np.argsort(np.concatenate(times), kind="stable")

    def chunks(self, start: int, stop: int) -> Iterator[RecordChunk]:
        """Yield rows start to stop - 1 by time, without their times."""
        for first in range(start, stop, CHUNK_ROWS):
            rows = self._order[first : min(first + CHUNK_ROWS, stop)]
            yield RecordChunk(self._examples.take(rows), np.zeros(0))


def chunk_bytes(chunk: RecordChunk) -> int:
    """Return a chunk's bytes in memory, including 16 bytes a row for sorting it."""
    rows = chunk.examples
    bags = rows.bags
    arrays = (rows.labels, rows.dense, rows.rows, rows.weights, rows.other_labels, rows.keys, rows.groups)
    of_bags = (bags.rows, bags.lengths, bags.weights, bags.keys)
    return sum(array.nbytes for array in (*arrays, *of_bags)) + 16 * len(rows)


def too_large_to_sort(held_bytes: int, rows: int, limit_bytes: int, paths: Sequence[str]) -> DataError:
    """Return the error for input too large to sort in memory."""
    return DataError(
        f"is not sorted by time and is too large to sort in memory: {counted(rows, 'row')} of about "
        f"{data_size(held_bytes // max(rows, 1))} are {data_size(held_bytes)}, above data.sort_limit_bytes = "
        f"{limit_bytes}",
        where=", ".join(paths),
        remedy="sort the files by timestamp first, or raise the limit (sorting takes twice as much memory)",
    )
