"""Recall, NDCG, hit rate and MRR over a catalogue: the definition, groups, what is missed, and the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from shadowsync.pipeline.data.hashing import mix64
from shadowsync.pipeline.metrics.retrieval import RetrievalQuality, RetrievalSums
from shadowsync.pipeline.types import Int64Array, Uint64Array

ITEMS = 60


def rows_of(seed: int, count: int = 3000, groups: int = 400) -> tuple[Int64Array, Int64Array, Uint64Array]:
    """Return ranks, some 0, items, some twice in a group, and hashes of groups, some 0."""
    draw = np.random.default_rng(seed)
    keys = mix64(np.arange(1, groups + 1, dtype=np.uint64))
    keys[0] = 0
    return (
        draw.integers(0, ITEMS, count),
        draw.integers(0, ITEMS, count),
        keys[draw.integers(0, groups, count)],
    )


def expected(ranks: Int64Array, items: Int64Array, groups: Uint64Array, k: int) -> list[float]:
    """Compute recall, NDCG, hit rate and MRR from the definition, a query at a time."""
    figures = []
    for key in np.unique(groups[groups != 0]):
        best: dict[int, float] = {}
        for rank, item in zip(ranks[groups == key].tolist(), items[groups == key].tolist(), strict=True):
            best[item] = min(best.get(item, math.inf), rank or math.inf)
        in_order = [max(place, rank) for place, rank in enumerate(sorted(best.values()), 1)]
        first = [rank for rank in in_order if rank <= k]
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(best))))
        gain = sum(1 / math.log2(rank + 1) for rank in first)
        figures.append((len(first) / len(best), gain / ideal, bool(first), 1 / min(best.values())))
    return list(map(float, np.mean(np.array(figures, np.float64), axis=0)))


def scored(
    rows: tuple[Int64Array, Int64Array, Uint64Array], k: int, limit: int = 1 << 30
) -> RetrievalQuality:
    sums = RetrievalSums(k, ITEMS, limit)
    for start in range(0, len(rows[0]), 97):
        here = slice(start, start + 97)
        sums.add(rows[0][here], rows[1][here], rows[2][here])
    return sums.result()


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_the_figures_are_those_of_the_definition(k: int) -> None:
    rows = rows_of(k)
    found = scored(rows, k)
    assert [found.recall, found.ndcg, found.hit, found.mrr] == pytest.approx(expected(*rows, k), rel=1e-12)
    assert (found.rows, found.rows_not_in_catalogue) == (len(rows[0]), int((rows[0] == 0).sum()))
    assert found.rows_without_group == int((rows[2] == 0).sum()) > 0
    assert found.queries == len(np.unique(rows[2])) - 1
    # The control: a row of its own for each item of a group is another figure.
    apart = scored((*rows[:2], mix64(np.arange(1, len(rows[0]) + 1, dtype=np.uint64))), k)
    assert apart.mrr is not None
    assert found.mrr is not None
    assert apart.mrr < found.mrr / 2


def test_no_figure_is_above_1_though_ranks_of_a_query_are_alike() -> None:
    """Rows with histories of their own may each have their item first; one list of them has one first."""
    sums = RetrievalSums(2, 10)
    sums.add(np.array([1, 1, 1, 1]), np.array([7, 8, 9, 7]), np.array([5, 5, 5, 6], np.uint64))
    found = sums.result()
    assert found.recall == pytest.approx((2 / 3 + 1) / 2)
    assert (found.ndcg, found.hit, found.mrr) == (1.0, 1.0, 1.0)


def test_without_groups_each_row_is_a_query_with_one_item() -> None:
    sums = RetrievalSums(3, 10)
    sums.add(np.array([1, 3]), np.array([7, 7]))
    sums.add(np.array([4, 0]), np.array([7, 8]))
    found = sums.result()
    assert found.recall == found.hit == 0.5
    assert found.ndcg == pytest.approx((1 + 1 / 2) / 4)
    assert found.mrr == pytest.approx((1 + 1 / 3 + 1 / 4) / 4), "ranks after k count there, a missed item not"
    assert (found.queries, found.rows_not_in_catalogue) == (4, 1)
    assert found.metrics() == {"recall@3": 0.5, "ndcg@3": found.ndcg, "hit@3": 0.5, "mrr": found.mrr}


def test_nothing_to_rank_has_no_figures() -> None:
    nothing = RetrievalSums(10, 5).result()
    assert (nothing.queries, nothing.recall, nothing.ndcg, nothing.hit, nothing.mrr) == (0, *[None] * 4)
    sums = RetrievalSums(10, 5)
    sums.add(np.array([1, 1]), np.array([1, 2]), np.zeros(2, np.uint64))
    assert (sums.result().recall, sums.result().rows_without_group) == (None, 2)


def test_past_the_bound_whole_groups_are_left_out_and_the_rest_is_exact() -> None:
    rows, limit = rows_of(5, 6000), 24 * 2000
    found = scored(rows, 10, limit)
    assert found.rows_left_out > 0
    for bits in range(1, 8):
        kept = (rows[2] & np.uint64((1 << bits) - 1)) == 0
        if len(np.unique(rows[2][kept])) - 1 == found.queries:
            break
    else:
        pytest.fail("the kept groups are those of no number of bits")
    few = tuple(values[kept] for values in rows)
    want = expected(few[0], few[1], few[2], 10)
    assert [found.recall, found.ndcg, found.hit, found.mrr] == pytest.approx(want, rel=1e-12)
    assert scored(rows, 10).rows_left_out == 0, "the control"
