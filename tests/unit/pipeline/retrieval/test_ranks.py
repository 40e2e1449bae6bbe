"""The best items and the ranks of items, exactly: against all products at once, in blocks of any size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.retrieval import ranks, top_k
from shadowsync.pipeline.retrieval.ranks import ItemNumbers, ItemsOfGroups, Pairs, groups_of, ranks_of
from shadowsync.pipeline.retrieval.top_k import ExactSearch
from shadowsync.pipeline.types import Float32Array, Int64Array

QUERIES, ITEMS, DIM = 53, 301, 7


def vectors_of(seed: int, count: int, *, coarse: bool = False) -> Float32Array:
    """Return vectors; if coarse, many products are equal."""
    draw = np.random.default_rng(seed)
    values = draw.integers(-1, 2, (count, DIM)) if coarse else draw.normal(size=(count, DIM))
    return values.astype(np.float32)


@pytest.fixture(params=[(16, 32), (1000, 1000)], ids=["small blocks", "one block"])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (top_k, ranks):
        monkeypatch.setattr(module, "QUERY_BLOCK", request.param[0])
        monkeypatch.setattr(module, "ITEM_BLOCK", request.param[1])


def brute_ranks(
    queries: Float32Array, targets: Int64Array, vectors: Float32Array, excluded: set[tuple[int, int]]
) -> list[int]:
    """Return ranks from all products, an item at a time."""
    products = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return [
        1
        + sum(
            bool(products[query, item] >= products[query, target])
            for item in range(len(vectors))
            if item != target and (query, item) not in excluded
        )
        for query, target in enumerate(targets.tolist())
    ]


@pytest.mark.parametrize("coarse", [False, True], ids=["no ties", "ties"])
@pytest.mark.parametrize("k", [1, 10, 40, ITEMS, ITEMS + 5])
@pytest.mark.usefixtures("_blocks")
def test_the_best_items_are_those_of_a_stable_sort(k: int, coarse: bool) -> None:
    queries, vectors = vectors_of(1, QUERIES, coarse=coarse), vectors_of(2, ITEMS, coarse=coarse)
    exact = ExactSearch(vectors)
    numbers, scores = exact.search(queries, k)
    products = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    want = np.argsort(-products, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(numbers, want)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, want, axis=1))
    # The same of items that were found otherwise, in float32.
    np.testing.assert_allclose(exact.of_items(queries, want), scores, rtol=1e-6, atol=1e-6)
    ties = len(np.unique(products[0])) < ITEMS
    assert ties is coarse


@pytest.mark.parametrize("coarse", [False, True], ids=["no ties", "ties"])
@pytest.mark.usefixtures("_blocks")
def test_ranks_are_those_of_all_products(coarse: bool) -> None:
    queries, vectors = vectors_of(3, QUERIES, coarse=coarse), vectors_of(4, ITEMS, coarse=coarse)
    draw = np.random.default_rng(5)
    targets = draw.integers(0, ITEMS, QUERIES)
    pairs = Pairs(draw.integers(0, QUERIES, 2000), draw.integers(0, ITEMS, 2000))
    # A query's own item among them is ranked all the same.
    pairs = Pairs(np.append(pairs.query, 0), np.append(pairs.item, targets[0]))
    found = ranks_of(queries, targets, vectors, pairs)
    excluded = set(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True))
    assert found.tolist() == brute_ranks(queries, targets, vectors, excluded)
    plain = ranks_of(queries, targets, vectors)
    assert plain.tolist() == brute_ranks(queries, targets, vectors, set())
    assert (plain > found).any(), "the control: what is excluded counts without exclusion"
    # The control: the rank among a sample of the items is another one.
    sample = np.append(draw.choice(ITEMS, 50, replace=False), targets)
    few = ranks_of(queries, np.arange(50, 50 + QUERIES), vectors[sample])
    assert abs(few.mean() - plain.mean()) > 10


@pytest.mark.usefixtures("_blocks")
def test_equal_vectors_gain_nothing() -> None:
    """The last of all items; a rank that counted only higher products would be 1, and recall 1."""
    queries, same = vectors_of(6, QUERIES), np.repeat(vectors_of(7, 1), ITEMS, axis=0)
    targets = np.arange(QUERIES)
    assert set(ranks_of(queries, targets, same).tolist()) == {ITEMS}
    assert (ranks_of(queries, targets, vectors_of(8, ITEMS)) < ITEMS).any(), "the control"


def test_memory_is_that_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each item is better than all before it."""
    items, queries = 1 << 15, 300
    for module in (top_k, ranks):
        monkeypatch.setattr(module, "ITEM_BLOCK", 1 << 11)
        monkeypatch.setattr(module, "QUERY_BLOCK", 64)
    one = np.ones((queries, 1), np.float32)
    rising = np.arange(items, dtype=np.float32)[:, np.newaxis]
    whole = 4 * queries * items

    def peak(work: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    targets = np.arange(queries)
    assert peak(lambda: ExactSearch(rising).search(one, 10)) < 15e6 < whole
    assert peak(lambda: ranks_of(one, targets, rising)) < 15e6
    numbers, _ = ExactSearch(rising).search(one[:2], 3)
    assert numbers.tolist() == [[items - 1, items - 2, items - 3]] * 2
    for module in (top_k, ranks):
        monkeypatch.setattr(module, "ITEM_BLOCK", items)
        monkeypatch.setattr(module, "QUERY_BLOCK", queries)
    assert peak(lambda: ranks_of(one, targets, rising)) > whole, "the control"


def test_items_are_found_by_their_identities() -> None:
    numbers = ItemNumbers(np.array([7, -3, 9, 7]))
    assert numbers.of(np.array([9, 7, -3, 8, 2**62, -(2**62)])).tolist() == [2, 0, 1, -1, -1, -1]


def test_the_items_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LEAST_PENDING", 50)
    draw = np.random.default_rng(9)
    groups = draw.integers(1, 2**63, 20).astype(np.uint64)
    rows = groups[draw.integers(0, 20, 3000)], draw.integers(-1, 40, 3000)
    asked = groups_of([groups[:12], np.zeros(3, np.uint64)])
    kept = ItemsOfGroups(asked, 40)
    for start in range(0, 3000, 100):
        kept.add(rows[0][start : start + 100], rows[1][start : start + 100])
    want = {(g, i) for g, i in zip(*(r.tolist() for r in rows), strict=True) if i >= 0 and g in asked}
    assert kept.count == len(want) < 3000
    queries = np.concatenate([groups, np.zeros(1, np.uint64)])
    found = kept.of(queries)
    pairs = list(zip(queries[found.query].tolist(), found.item.tolist(), strict=True))
    assert set(pairs) == want
    assert len(pairs) == len(want)
    some = ItemsOfGroups(asked, 40)
    some.add(rows[0][:200], rows[1][:200])
    kept.leave_out(some)
    found = kept.of(queries)
    left = set(zip(queries[found.query].tolist(), found.item.tolist(), strict=True))
    first = set(zip(rows[0][:200].tolist(), rows[1][:200].tolist(), strict=True))
    assert left == want - first != want


def test_more_items_of_groups_than_fit_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_LEAST_PENDING", 1)
    groups = np.arange(1, 4, dtype=np.uint64)
    kept = ItemsOfGroups(groups, 10, most=3)
    kept.add(groups, np.zeros(3, np.int64))
    kept.add(groups, np.zeros(3, np.int64))
    assert kept.count == 3, "the same pairs again are no more"
    with pytest.raises(ResourceError, match=r"validation\.exclude_trained: .*more than 3 pairs"):
        kept.add(groups.repeat(2), np.array([1, 2] * 3))
