"""Which rows have places in memory, and which make way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.storage.on_disk import row_cache
from shadowsync.pipeline.embedding.storage.on_disk.row_cache import (
    ABSENT,
    LAST_USE,
    WAYS,
    CacheTooSmallError,
    RowCache,
)
from shadowsync.pipeline.types import Int32Array


class PlainCache:
    """The same rule with a dict: in each set the row that was used least recently makes way."""

    def __init__(self, sets: int) -> None:
        self.sets: list[dict[int, int]] = [{} for _ in range(sets)]
        self.now = 0

    def take(self, rows: Int32Array, set_of: list[int]) -> tuple[set[int], set[int]]:
        """Return the rows that come into memory and those that make way."""
        self.now += 1
        loaded, replaced = set(), set()
        wanted = dict(zip(rows.tolist(), set_of, strict=True))
        for row, number in wanted.items():
            if row in self.sets[number]:
                self.sets[number][row] = self.now
        for row, number in sorted(wanted.items()):
            own = self.sets[number]
            if row in own:
                continue
            loaded.add(row)
            if len(own) == WAYS:
                # Those of one age leave in any order, so ages must differ here.
                oldest = min(own, key=lambda row: own[row])
                del own[oldest]
                replaced.add(oldest)
            own[row] = self.now
        return loaded, replaced


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.lists(st.lists(st.integers(0, 400), max_size=1), max_size=400))
def test_the_least_recently_used_row_of_a_set_makes_way(sets: int, requests: list[list[int]]) -> None:
    cache, plain = RowCache(sets * WAYS + 5), PlainCache(sets)
    assert len(cache) == sets * WAYS
    for request in requests:
        rows = np.array(request, np.int32)
        placement = cache.take(rows)
        loaded, replaced = plain.take(rows, cache._sets_of(rows).tolist())
        assert set(placement.loaded.tolist()) == loaded
        assert set(placement.replaced.tolist()) == replaced
        np.testing.assert_array_equal(cache.row_of[placement.places], rows)
    held = {row for own in plain.sets for row in own}
    assert cache.count == len(held)
    every = np.arange(401, dtype=np.int32)
    places = cache.find(every)
    assert set(every[places != ABSENT].tolist()) == held
    np.testing.assert_array_equal(cache.row_of[places[places != ABSENT]], every[places != ABSENT])


def test_a_request_has_all_its_rows_at_once_with_repeats() -> None:
    cache = RowCache(40 * WAYS)
    draw = np.random.default_rng(1)
    for number in range(1, 200):
        rows = draw.integers(0, 5000, 150).astype(np.int32)
        before = {int(row) for row in cache.row_of if row != ABSENT}
        placement = cache.take(rows)
        np.testing.assert_array_equal(cache.row_of[placement.places], rows)
        assert set(placement.loaded.tolist()) == set(rows.tolist()) - before
        assert not set(placement.replaced.tolist()) & set(rows.tolist())
        assert placement.last_use < number
        # Each row has one place.
        held = cache.row_of[cache.row_of != ABSENT]
        assert len(np.unique(held)) == len(held) == cache.count


def test_rows_that_do_not_fit_beside_each_other_are_refused() -> None:
    cache = RowCache(WAYS)
    cache.take(np.arange(WAYS, dtype=np.int32))
    with pytest.raises(CacheTooSmallError) as caught:
        cache.take(np.arange(100, 100 + WAYS + 1, dtype=np.int32))
    assert caught.value.rows == WAYS + 1
    with pytest.raises(ValueError, match="at least 32 places, not 31"):
        RowCache(WAYS - 1)


def test_the_order_outlasts_the_largest_number_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.uint32(LAST_USE) == LAST_USE
    monkeypatch.setattr(row_cache, "LAST_USE", 200)
    cache, plain = RowCache(WAYS), PlainCache(1)
    draw = np.random.default_rng(2)
    for _ in range(1000):
        rows = draw.integers(0, 60, 1).astype(np.int32)
        placement = cache.take(rows)
        loaded, replaced = plain.take(rows, [0])
        assert (set(placement.loaded.tolist()), set(placement.replaced.tolist())) == (loaded, replaced)
        assert cache.requests <= 200
