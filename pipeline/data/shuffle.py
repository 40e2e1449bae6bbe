"""Permutations that are the same on every machine and in every version, and the windows that they permute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from .schema import Examples

# What a permutation is of, so that spans and rows with equal numbers do not get related ones.
SPANS, ROWS = 1, 2


def permutation(count: int, *key: int) -> NDArray[np.intp]:
    """A permutation of 0 to count - 1, intp [count], that depends on `count` and the integers of `key` only.

    Sorts random keys made by Philox from a SeedSequence: numpy holds those two streams stable, which it does
    not promise of `Generator.permutation`. Each sort key ends in its index, so keys differ, and any sorting
    algorithm gives the same order. Raises ValueError for a negative integer in `key`.
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
    """The order, intp [count], of the rows of window number `window` of a span."""
    return permutation(count, ROWS, seed, epoch, span, window)


def windows(chunks: Iterable[Examples], size: int) -> Iterator[list[Examples]]:
    """The same examples in the same order, in pieces of `size` (at least 1); only the last may be shorter.

    A piece is a list of parts that are views of the chunks, one after the other, none of them empty. Where
    the chunks begin and end makes no other difference. Holds at most one piece and one chunk.
    """
    held: list[Examples] = []
    count = 0
    for chunk in chunks:
        start = 0
        while count + len(chunk) - start >= size:
            stop = start + size - count
            held.append(chunk.slice(start, stop))
            yield held
            held, count, start = [], 0, stop
        if start < len(chunk):
            held.append(chunk.slice(start, len(chunk)))
            count += len(chunk) - start
    if held:
        yield held
