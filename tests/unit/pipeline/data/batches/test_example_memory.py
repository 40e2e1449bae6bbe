"""Shuffling through columns gives what taking the examples one by one gives, in memory of its own."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.pipeline.data.batch import Bags
from shadowsync.pipeline.data.batches.shuffle import WindowMemory
from shadowsync.pipeline.data.schema import Examples


def _part(seed: int, count: int, *, wide: bool) -> Examples:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 1000, (3, count)).astype(np.int32)
    dense = rng.random((count, 2)).astype(np.float32)
    labels = rng.integers(0, 2, count).astype(np.float32)
    if not wide:
        return Examples(labels, dense, rows)
    lengths = rng.integers(0, 4, (2, count)).astype(np.int32)
    items = int(lengths.sum())
    keys = rng.integers(0, 2**63, items).astype(np.uint64)
    bags = Bags(rng.integers(0, 50, items).astype(np.int32), lengths, keys=keys)
    return Examples(labels, dense, rows, rng.random(count).astype(np.float32), bags)


def _arrays(examples: Examples) -> list[np.ndarray]:
    bags = examples.bags
    arrays = [examples.labels, examples.dense, examples.rows, examples.weights]
    return [*arrays, bags.rows, bags.lengths, bags.keys]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("counts", [(100,), (40, 1, 59), (7,)])
@pytest.mark.parametrize(("lead", "batch"), [(0, 10), (3, 10), (0, 100), (99, 32), (500, 32)])
def test_pieces_are_the_rows_in_their_order(
    counts: tuple[int, ...], lead: int, batch: int, wide: bool
) -> None:
    memory = WindowMemory()
    # Memory that was used for more rows before makes no difference.
    larger = _part(9, 300, wide=wide)
    assert sum(map(len, memory.shuffled([larger], np.arange(300), lead=0, batch=64))) == 300
    parts = [_part(seed, count, wide=wide) for seed, count in enumerate(counts)]
    order = np.random.default_rng(5).permutation(sum(counts))
    want = Examples.join(parts).take(order)
    pieces = list(memory.shuffled(parts, order, lead=lead, batch=batch))
    sizes = [len(piece) for piece in pieces]
    first = min(lead, sum(counts))
    whole, rest = divmod(sum(counts) - first, batch)
    assert sizes == [size for size in (first, *[batch] * whole, rest) if size]
    got = Examples.join(pieces)
    for one, other in zip(_arrays(got), _arrays(want), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(got.rows, Examples.join(parts).rows), "the order counts"


def test_a_piece_stays_as_it_is_when_the_memory_is_used_again() -> None:
    memory = WindowMemory()
    parts = [_part(0, 64, wide=True), _part(1, 64, wide=True)]
    before = list(memory.shuffled(parts, np.arange(128), lead=0, batch=32))
    copies = [[array.copy() for array in _arrays(piece)] for piece in before]
    list(memory.shuffled([_part(2, 128, wide=True)], np.arange(128), lead=0, batch=32))
    for piece, copy in zip(before, copies, strict=True):
        assert piece.rows.flags.c_contiguous
        assert piece.dense.flags.c_contiguous
        assert piece.rows.base is None, "a view keeps a whole window alive"
        for one, other in zip(_arrays(piece), copy, strict=True):
            np.testing.assert_array_equal(one, other)
