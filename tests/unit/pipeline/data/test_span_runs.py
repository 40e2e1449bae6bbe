"""Sets of span numbers as runs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.span import from_runs, to_runs


def test_numbers_that_follow_each_other_are_one_run() -> None:
    assert to_runs([7, 3, 4, 5, 9, 4]) == [(3, 6), (7, 8), (9, 10)]
    assert to_runs([]) == []


@given(st.frozensets(st.integers(0, 60)))
def test_runs_give_the_numbers_again(numbers: frozenset[int]) -> None:
    runs = to_runs(numbers)
    assert from_runs(runs) == numbers
    assert all(stop < start for (_, stop), (start, _) in pairwise(runs))
