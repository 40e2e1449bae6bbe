"""Counts, cardinalities and quantiles, each against the plain way, and merged in any order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.hashing import Uint64Array, hash_integers
from shadowsync.pipeline.prepare.cardinality import REGISTERS, STANDARD_ERROR, Cardinality
from shadowsync.pipeline.prepare.quantiles import RELATIVE_ERROR, Quantiles
from shadowsync.pipeline.prepare.value_counts import ValueCounts


def _hashes(count: int, first: int = 0) -> Uint64Array:
    return hash_integers(5, np.arange(first, first + count))


@pytest.mark.parametrize("count", [0, 1, 1000, 20_000, 45_000, 200_000, 2_000_000])
def test_cardinality_is_within_four_standard_errors(count: int) -> None:
    sketch = Cardinality()
    sketch.add(_hashes(count))
    assert abs(sketch.estimate() - count) <= 4 * STANDARD_ERROR * count


def test_cardinality_neither_counts_twice_nor_heeds_the_order() -> None:
    once, chunks = Cardinality(), Cardinality()
    once.add(_hashes(30_000))
    for first in (20_000, 0, 10_000, 5_000):
        chunks.add(_hashes(10_000, first)[::-1])
    assert (once.registers == chunks.registers).all()
    chunks.add(_hashes(30_000, 30_000))
    assert chunks.estimate() > 1.8 * once.estimate()
    assert len(chunks.registers) == REGISTERS


def test_cardinality_goes_on_where_it_was() -> None:
    first = Cardinality()
    first.add(_hashes(5000))
    second = Cardinality(first.registers)
    second.add(_hashes(5000, 5000))
    assert first.estimate() < 5200 < 9600 < second.estimate()


def _add(counts: ValueCounts, values: list[int]) -> None:
    keys, found = np.unique(np.array(values, np.uint64), return_counts=True)
    counts.add(keys, found)


@given(st.lists(st.lists(st.integers(0, 40)), max_size=12), st.integers(1, 50))
def test_counts_are_never_above_and_never_further_below_than_stated(
    chunks: list[list[int]], limit: int
) -> None:
    counts = ValueCounts(limit)
    for chunk in chunks:
        _add(counts, chunk)
    truth = Counter(value for chunk in chunks for value in chunk)
    held = dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True))
    assert len(held) <= limit
    assert sorted(held) == counts.keys.tolist()
    for value, count in truth.items():
        assert count - counts.short <= held.get(value, 0) <= count
    assert counts.short * (limit + 1) <= sum(truth.values()), "what Misra and Gries promise"
    if len(truth) <= limit:
        assert counts.exact
        assert held == dict(truth)


def test_frequent_values_outlive_many_rare_ones() -> None:
    counts = ValueCounts(100)
    for chunk in range(50):
        _add(counts, [1] * 300 + [2] * 200 + list(range(1000 * chunk + 10, 1000 * chunk + 500)))
    assert not counts.exact
    first, second = counts.top(2).tolist()
    assert 15_000 - counts.short <= first <= 15_000
    assert 10_000 - counts.short <= second <= 10_000
    assert counts.short < 500


@pytest.mark.parametrize("spread", ["whole", "normal", "negative", "huge"])
def test_quantiles_are_as_near_as_stated(spread: str) -> None:
    rng = np.random.default_rng(3)
    drawn = {
        "whole": rng.integers(-200, 256, 20_000).astype(np.float64),
        "normal": rng.normal(0, 1000, 20_000),
        "negative": -np.exp(rng.normal(0, 9, 20_000)),
        "huge": np.exp(rng.normal(30, 10, 20_000)),
    }[spread].astype(np.float32)
    quantiles = Quantiles()
    for chunk in np.array_split(drawn, 7):
        quantiles.add(chunk)
    fractions = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
    want = np.quantile(drawn, fractions, method="inverted_cdf").astype(float)
    found = np.array(quantiles.at(fractions))
    assert (np.abs(found) <= np.abs(want)).all()
    assert (np.abs(found - want) <= RELATIVE_ERROR * np.abs(want)).all()
    if spread == "whole":
        assert (found == want).all()
    assert Quantiles().at(fractions) == []
