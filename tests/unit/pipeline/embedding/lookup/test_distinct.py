"""The distinct rows of a batch, and the way back to all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.lookup.request import DistinctRows


@given(st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 9), max_size=60))
def test_every_place_is_known_and_every_row_is_there_once(drawn: list[int]) -> None:
    rows = np.array(drawn, np.int32)
    got = DistinctRows.of(rows)
    assert got.rows.tolist() == sorted(set(drawn))
    assert got.rows[got.which].tolist() == drawn
    ends = [*got.begins[1:], len(rows)]
    for row, begin, end in zip(got.rows, got.begins, ends, strict=False):
        assert got.order[begin:end].tolist() == np.flatnonzero(rows == row).tolist()
    assert got.rows.dtype == got.which.dtype == np.int32
    assert got.order.dtype == got.begins.dtype == np.int64


@pytest.mark.parametrize(("tables", "batch", "rest"), [(3, 50, 40), (3, 0, 7), (0, 50, 7), (2, 50, 0)])
def test_tables_that_are_sorted_one_by_one_give_the_same(tables: int, batch: int, rest: int) -> None:
    draw = np.random.default_rng(tables + rest)
    block = draw.integers(0, 20, (tables, batch)) + 100 * np.arange(tables)[:, None]
    rows = np.concatenate([block.reshape(-1), draw.integers(1000, 1020, rest)]).astype(np.int32)
    got, wanted = DistinctRows.of(rows, tables, batch), DistinctRows.of(rows)
    for name in DistinctRows.__slots__:
        np.testing.assert_array_equal(getattr(got, name), getattr(wanted, name))
