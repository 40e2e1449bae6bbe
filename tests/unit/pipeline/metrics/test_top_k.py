"""NDCG@k, recall@k and MAP@k by group: the definition, merging, the bound of memory, and hostile bytes."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.hashing import mix64
from shadowsync.pipeline.metrics.top_k import GROUP_BYTES, GroupRanking, TopKSums
from shadowsync.pipeline.types import Float32Array, IndexArray, Uint64Array

Rows = tuple[Float32Array, Float32Array, Uint64Array]


def rows_of(seed: int, count: int = 4000, groups: int = 150, levels: int = 50) -> Rows:
    """Return scores with ties, labels and hashes of groups; 0 is no group."""
    draw = np.random.default_rng(seed)
    keys = mix64(np.arange(1, groups + 1, dtype=np.uint64))
    keys[0] = 0
    group = np.minimum(draw.geometric(0.02, count), groups) - 1
    scores = (draw.integers(0, levels, count) / 8).astype(np.float32)
    labels = (draw.random(count) < 0.1).astype(np.float32)
    return scores, labels, keys[group]


def expected(rows: Rows, k: int) -> list[float]:
    """Compute the figures from the definition, a group at a time."""
    figures = []
    scores, labels, groups = rows
    for key in np.unique(groups[groups != 0]):
        own = groups == key
        ranked = [
            float(label)
            for _, label in sorted(zip(-scores[own], labels[own], strict=True), key=lambda pair: tuple(pair))
        ]
        positives = int(sum(ranked))
        if not positives:
            continue
        gain = sum(label / math.log2(rank + 2) for rank, label in enumerate(ranked[:k]))
        best = sum(1 / math.log2(rank + 2) for rank in range(min(k, positives)))
        precisions = [sum(ranked[: rank + 1]) / (rank + 1) for rank, label in enumerate(ranked[:k]) if label]
        figures.append((gain / best, sum(ranked[:k]) / positives, sum(precisions) / min(k, positives)))
    return list(map(float, np.mean(figures, axis=0)))


def scored(rows: Rows, k: int, order: IndexArray | None = None, limit_bytes: int = 1 << 30) -> TopKSums:
    sums = TopKSums(k, limit_bytes)
    order = np.arange(len(rows[0])) if order is None else order
    for start in range(0, len(order), 97):
        here = order[start : start + 97]
        sums.add(rows[0][here], rows[1][here], rows[2][here])
    return sums


@pytest.mark.parametrize("k", [1, 5, 10, 1000])
def test_the_figures_are_those_of_the_definition(k: int) -> None:
    rows = rows_of(1)
    found = scored(rows, k).result()
    assert [found.ndcg, found.recall, found.map] == pytest.approx(expected(rows, k), rel=1e-12)
    assert found.rows_without_group == np.count_nonzero(rows[2] == 0) > 0
    assert found.rows_left_out == 0
    positives = {key: rows[1][rows[2] == key].sum() for key in np.unique(rows[2][rows[2] != 0])}
    assert found.groups == sum(value > 0 for value in positives.values())
    assert found.groups_without_positive == sum(value == 0 for value in positives.values()) > 0


@given(st.integers(0, 10_000), st.integers(2, 5), st.sampled_from([1 << 30, 6000, 900]))
def test_rows_spread_over_scorers_have_the_figures_of_one_pass(seed: int, scorers: int, limit: int) -> None:
    rows, draw = rows_of(seed, 1500), np.random.default_rng(seed)
    whole = scored(rows, 5, limit_bytes=limit).result()
    order, owner = draw.permutation(1500), draw.integers(0, scorers, 1500)
    merged = TopKSums(5, limit)
    for scorer in range(scorers):
        part = scored(rows, 5, order[owner[order] == scorer], limit_bytes=limit)
        merged.merge(TopKSums.from_bytes(part.to_bytes(), limit))
    assert merged.result() == whole
    assert (whole.rows_left_out > 0) == (limit < 1 << 30)


def test_the_mean_of_scorers_is_not_the_figure_of_all() -> None:
    """The control: what merging is for."""
    rows, scorers = rows_of(3), np.random.default_rng(3).integers(0, 3, 4000)
    parts = [scored(rows, 10, np.flatnonzero(scorers == one)).result().ndcg or 0.0 for one in range(3)]
    assert abs(sum(parts) / 3 - (scored(rows, 10).result().ndcg or 0.0)) > 0.01


def test_equal_scores_gain_nothing() -> None:
    labels = (np.arange(20) < 3).astype(np.float32)
    rows = np.zeros(20, np.float32), labels, np.full(20, 7, np.uint64)
    assert scored(rows, 10).result().ndcg == 0.0
    apart = np.arange(20, 0, -1).astype(np.float32), labels, rows[2]
    assert scored(apart, 10).result() == GroupRanking(10, 1.0, 1.0, 1.0, 1, 0, 0, 0)


def test_memory_is_bounded_and_says_what_was_left_out() -> None:
    draw = np.random.default_rng(5)
    keys = mix64(draw.integers(1, 1 << 40, 200_000).astype(np.uint64))
    sums = TopKSums(3, 100 * GROUP_BYTES)
    for start in range(0, len(keys), 5000):
        here = keys[start : start + 5000]
        sums.add(draw.random(len(here)).astype(np.float32), np.ones(len(here), np.float32), here)
    found = sums.result()
    assert len(sums.to_bytes()) <= 100 * GROUP_BYTES + 48
    assert 25 <= found.groups <= 100
    assert found.rows_left_out == 200_000 - found.groups


def test_no_rows_have_no_figures() -> None:
    assert TopKSums(10).result() == GroupRanking(10, None, None, None, 0, 0, 0, 0)
    missing = TopKSums(2)
    missing.add(np.ones(3, np.float32), np.ones(3, np.float32), np.zeros(3, np.uint64))
    assert missing.result() == GroupRanking(2, None, None, None, 0, 0, 3, 0)
    assert missing.result().metrics() == {"ndcg@2": None, "recall@2": None, "map@2": None}


def test_what_cannot_be_added_is_refused() -> None:
    sums, one = TopKSums(3), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="not finite"):
        sums.add(np.array([1, np.nan], np.float32), one, np.ones(2, np.uint64))
    with pytest.raises(ValueError, match="not \\[B\\]"):
        sums.add(one, one, np.ones(3, np.uint64))
    with pytest.raises(ValueError, match="do not add"):
        sums.merge(TopKSums(4))
    with pytest.raises(ValueError, match="give 1 to 1000"):
        TopKSums(0)
    assert sums.rows == 0


@given(st.data())
def test_bytes_that_no_rows_have_are_refused_or_are_sums(data: st.DataObject) -> None:
    sent = bytearray(scored(rows_of(2, 60, 12), 3).to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    try:
        sums = TopKSums.from_bytes(bytes(sent))
    except ValueError:
        return
    found = sums.result()
    assert all(value is None or 0.0 <= value <= 1.0 + 1e-9 for value in found.metrics().values())
    assert min(found.groups, found.rows_left_out, found.rows_without_group) >= 0


def test_each_kind_of_wrong_bytes_is_refused() -> None:
    good = scored(rows_of(2, 60, 12), 3).to_bytes()
    header = np.frombuffer(good[:48], "<i8")
    assert TopKSums.from_bytes(good).to_bytes() == good
    bad = [b"", good[:-1], good + b"\0"]
    for place, value in ((0, 4), (0, 0), (1, 64), (2, 3), (3, -1), (4, -1)):
        changed = header.copy()
        changed[place] = value
        bad.append(changed.tobytes() + good[48:])
    for one in bad:
        with pytest.raises(ValueError, match=r"group|k is"):
            TopKSums.from_bytes(one)
    assert all(one != other for one, other in pairwise(bad))
