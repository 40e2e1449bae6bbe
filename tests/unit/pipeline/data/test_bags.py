"""Bags against lists of lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.batch import Bags

# Tables of examples of bags.
Lists = list[list[list[int]]]


@st.composite
def tables(draw: st.DrawFn, examples: int | None = None, count: int | None = None) -> Lists:
    n = draw(st.integers(0, 6)) if examples is None else examples
    m = draw(st.integers(0, 3)) if count is None else count
    bag = st.lists(st.integers(0, 99), max_size=4)
    return draw(st.lists(st.lists(bag, min_size=n, max_size=n), min_size=m, max_size=m))


def _made(lists: Lists, examples: int) -> Bags:
    rows = [row for table in lists for bag in table for row in bag]
    lengths = [[len(bag) for bag in table] for table in lists]
    own = np.array(rows, np.int32)
    # Weights and keys that tell their row, so that they must stay with it.
    weights = (own / 2).astype(np.float32)
    keys = own.astype(np.uint64) << np.uint64(40)
    return Bags(own, np.array(lengths, np.int32).reshape(len(lists), examples), weights, keys)


def _lists(bags: Bags) -> Lists:
    assert bags.rows.dtype == bags.lengths.dtype == np.int32
    assert bags.weights.dtype == np.float32
    np.testing.assert_array_equal(bags.weights * 2, bags.rows)
    assert bags.keys.dtype == np.uint64
    np.testing.assert_array_equal(bags.keys >> np.uint64(40), bags.rows)
    assert bags.lengths.flags.c_contiguous or not len(bags.lengths)
    rows = iter(bags.rows.tolist())
    found = [[[next(rows) for _ in range(length)] for length in table] for table in bags.lengths.tolist()]
    assert next(rows, None) is None
    return found


@given(st.data())
def test_slices(data: st.DataObject) -> None:
    examples = data.draw(st.integers(0, 6))
    lists = data.draw(tables(examples))
    start = data.draw(st.integers(0, examples))
    stop = data.draw(st.integers(start, examples + 3))
    found = _made(lists, examples).slice(start, stop)
    assert _lists(found) == [table[start:stop] for table in lists]


@given(st.data())
def test_takes(data: st.DataObject) -> None:
    examples = data.draw(st.integers(1, 6))
    lists = data.draw(tables(examples))
    indices = data.draw(st.lists(st.integers(0, examples - 1), max_size=8))
    found = _made(lists, examples).take(np.array(indices, np.intp))
    assert _lists(found) == [[table[index] for index in indices] for table in lists]


@given(st.data())
def test_joins(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 3))
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    parts = [data.draw(tables(size, count)) for size in sizes]
    found = Bags.join([_made(part, size) for part, size in zip(parts, sizes, strict=True)])
    assert _lists(found) == [[bag for part in parts for bag in part[table]] for table in range(count)]
