"""Ids of one batch among those of others: whatever their bits, as a dict finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.in_flight.id_finder import IdFinder

# Few low bits, so that ids of one cell are many, and high ones that make all cells of a table equal.
ROWS = st.one_of(st.integers(0, 40), st.integers(0, 60).map(lambda number: number << 24))
KEYS = st.one_of(st.integers(0, 40), st.integers(0, 2**64 - 1), st.integers(0, 99).map(lambda n: n << 56))


def check(finder: IdFinder, ids: Sequence[int], others: Sequence[Sequence[int]], kind: Any) -> int:
    """Compare with a dict; return how many are found."""
    places = {number: place for place, number in enumerate(ids)}
    found = finder.find(np.array(ids, kind), [np.array(some, kind) for some in others])
    assert len(found) == len(others)
    for some, (positions, targets) in zip(others, found, strict=True):
        assert positions.dtype == targets.dtype == np.int64
        assert positions.tolist() == [at for at, number in enumerate(some) if number in places]
        assert targets.tolist() == [places[number] for number in some if number in places]
    return sum(len(targets) for _, targets in found)


@given(
    st.data(),
    st.sampled_from([np.int32, np.uint64]),
    st.integers(1, 4),
)
def test_it_finds_what_a_dict_finds(data: st.DataObject, kind: Any, rounds: int) -> None:
    """Also after other ids, which leave their places behind."""
    numbers, finder = ROWS if kind is np.int32 else KEYS, IdFinder()
    for _ in range(rounds):
        ids = data.draw(st.lists(numbers, unique=True, max_size=40))
        others = data.draw(st.lists(st.lists(numbers, unique=True, max_size=40), min_size=1, max_size=4))
        check(finder, ids, others, kind)


@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_ids_that_all_share_a_cell_are_found(kind: Any) -> None:
    ids = [number << 20 for number in range(1000)]
    assert check(IdFinder(), ids, [ids[::-1], [*ids[::3], 5]], kind) == 1000 + 334


@pytest.mark.parametrize("kind", [np.int32, np.uint64])
def test_nothing_is_found_in_nothing(kind: Any) -> None:
    assert check(IdFinder(), [], [[1, 2], []], kind) == 0
    assert check(IdFinder(), [1, 2], [[], []], kind) == 0
    assert check(IdFinder(), [], [[]], kind) == 0


def test_large_batches_follow_small_ones() -> None:
    finder, draw = IdFinder(), np.random.default_rng(0)
    for size in (10, 20_000, 50):
        ids: NDArray[np.int32] = draw.choice(1 << 24, size, replace=False).astype(np.int32)
        assert check(finder, ids.tolist(), [ids[: size // 2].tolist()], np.int32) == size // 2


def test_what_was_looked_for_long_before_is_not_found() -> None:
    """Longer than there are marks."""
    finder = IdFinder()
    for number in range(600):
        assert check(finder, [number], [[number - 1, number, number + 256]], np.int32) == 1
