"""Numbers in order that come and go: beside a sorted list, in blocks so short that they split."""

from __future__ import annotations

from bisect import insort
from statistics import median
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.sync_algos.contract import sorted_values
from shadowsync.sync_algos.contract.sorted_values import SortedValues

NUMBERS = st.one_of(st.integers(0, 9).map(float), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(st.booleans(), NUMBERS, st.integers(0, 1 << 16)), max_size=80), NUMBERS, NUMBERS)
def test_it_is_a_sorted_list(changes: list[tuple[bool, float, int]], limit: float, more: float) -> None:
    plain: list[float] = []
    values = SortedValues()
    with patch.object(sorted_values, "MOST_IN_A_BLOCK", 4):
        for adds, value, place in changes:
            if adds or not plain:
                values.add(value)
                insort(plain, value)
            else:
                values.remove(plain.pop(place % len(plain)))
            assert [values[rank] for rank in range(len(values))] == plain
            assert values.count_within(limit, more) == sum(one + more <= limit for one in plain)
            if plain:
                assert values.median() == median(plain)


def test_what_is_not_there_is_refused() -> None:
    values = SortedValues()
    for one in (1.0, 3.0):
        values.add(one)
    for missing in (0.0, 2.0, 4.0):
        with pytest.raises(ValueError, match=f"{missing} is not among the 2 numbers"):
            values.remove(missing)
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="2 numbers have no such rank"):
            values[rank]
    values.remove(3.0)
    values.remove(1.0)
    assert len(values) == values.count_within(9.0) == 0, "the control"
    with pytest.raises(ValueError, match="among the 0 numbers"):
        values.remove(1.0)
