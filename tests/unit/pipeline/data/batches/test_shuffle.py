"""Permutations: golden, complete, different by each part of their key; windows: exact whatever the chunks."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.batches.shuffle import permutation, row_order, windows
from shadowsync.pipeline.data.batches.span_plan import span_order
from shadowsync.pipeline.data.schema import Examples


def _examples(first: int, count: int) -> Examples:
    numbers = np.arange(first, first + count)
    return Examples(
        numbers.astype(np.float32), numbers[:, None].astype(np.float32), numbers[None].astype(np.int32)
    )


def test_golden_orders() -> None:
    """Another order would give batches other contents under the same ids, so these stay for ever."""
    assert permutation(10, 1, 2, 3).tolist() == [1, 8, 2, 4, 6, 5, 0, 9, 7, 3]
    assert row_order(8, seed=1, epoch=0, span=0, window=0).tolist() == [5, 6, 3, 7, 2, 1, 0, 4]
    assert span_order(8, 0, 1, True) == [7, 1, 6, 3, 5, 0, 2, 4]


@given(st.integers(0, 3000), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_each_index_once(count: int, first: int, second: int) -> None:
    assert sorted(permutation(count, first, second).tolist()) == list(range(count))


def test_each_part_of_the_key_counts() -> None:
    orders = {
        tuple(row_order(100, seed=seed, epoch=epoch, span=span, window=window).tolist())
        for seed, epoch, span, window in itertools.product((0, 1, 2), repeat=4)
    }
    assert len(orders) == 81


def test_order_is_near_uniform() -> None:
    """Where index 0 lands over 3,000 permutations of 10, within 5 standard deviations of chance."""
    places = [permutation(10, seed).tolist().index(0) for seed in range(3000)]
    counts = np.bincount(places, minlength=10)
    assert np.abs(counts - 300).max() < 5 * (3000 * 0.1 * 0.9) ** 0.5


def test_span_order() -> None:
    assert span_order(5, 3, 1, shuffled=False) == [0, 1, 2, 3, 4]
    assert sorted(span_order(50, 3, 1, shuffled=True)) == list(range(50))
    assert span_order(50, 3, 1, shuffled=True) == span_order(50, 3, 1, shuffled=True)
    assert len({tuple(span_order(50, epoch, seed, True)) for epoch in range(3) for seed in range(3)}) == 9
    assert span_order(0, 0, 0, shuffled=True) == []


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 25))
def test_windows_are_exact_whatever_the_chunks(sizes: list[int], size: int) -> None:
    firsts = itertools.accumulate(sizes, initial=0)
    chunks = [_examples(first, count) for first, count in zip(firsts, sizes, strict=False)]
    parts = list(windows(chunks, size))
    assert all(len(part) for window in parts for part in window)
    got = [Examples.join(window) for window in parts]
    assert all(len(window) == size for window in got[:-1])
    assert all(0 < len(window) <= size for window in got)
    for part in ("labels", "dense", "rows"):
        flat = [getattr(window, part).ravel() for window in got]
        assert np.concatenate([np.empty(0), *flat]).tolist() == list(range(sum(sizes)))
