"""Exact search again and again, and an index: which items they find, and the recall that is told."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.retrieval.index import LEAST_RECALL, VectorIndex, least_of
from shadowsync.pipeline.retrieval.top_k import ExactSearch
from shadowsync.pipeline.types import Float32Array

ITEMS, DIM, QUERIES = 3000, 16, 60


def vectors_of(count: int, seed: int, dim: int = DIM) -> Float32Array:
    vectors: Float32Array = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors


def test_products_that_float32_cannot_tell_apart_are_compared_exactly() -> None:
    """Long vectors whose products with the query cancel: float32 puts them in another order."""
    rng = np.random.default_rng(3)
    items = (1000 * rng.normal(size=(2000, 64))).astype(np.float32)
    query = rng.normal(size=(1, 64)).astype(np.float32)
    # Only what is left of each item beside the query's direction, and a little of it.
    items -= np.outer(items @ query[0] / (query @ query.T), query).astype(np.float32)
    true = items.astype(np.float64) @ query[0].astype(np.float64)
    rough = items @ query[0]
    best = np.argsort(-true.astype(np.float32), kind="stable")[:50]
    assert (np.argsort(-rough, kind="stable")[:50] != best).any(), "the control: float32 alone is wrong"
    np.testing.assert_array_equal(ExactSearch(items).search(query, 50)[0][0], best)


@given(st.integers(1, 50), st.integers(0, 500), st.data())
def test_the_least_that_suffices_is_found(first: int, more: int, data: st.DataObject) -> None:
    last = first + more
    least = data.draw(st.integers(first, last))
    asked = list[int]()

    def suffices(number: int) -> bool:
        asked.append(number)
        return number >= least

    found = least_of(suffices, first, last)
    assert least <= found <= max(least + 1, least * 6 / 5 + 1)
    assert all(first <= number <= last for number in asked)


def test_an_index_searches_as_many_lists_as_its_recall_needs() -> None:
    items, queries = vectors_of(ITEMS, 1), vectors_of(QUERIES, 2)
    exact, index = ExactSearch(items), VectorIndex.build(items)
    found = index.tune(exact, queries, "queries")
    probes = index._index.nprobe
    numbers, scores = index.search(queries, 100)
    best, least = exact.search(queries, 100)
    same = np.mean([len({*a} & {*b}) / 100 for a, b in zip(numbers.tolist(), best.tolist(), strict=True)])
    assert found.at_100 == pytest.approx(same, abs=1e-4)
    assert LEAST_RECALL <= found.at_100 < 1.0 or probes == index._index.nlist
    assert (found.queries, found.of) == (QUERIES, "queries")
    np.testing.assert_allclose(scores, exact.of_items(queries, numbers), rtol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    index._index.nprobe = 1
    few, _ = index.search(queries, 100)
    assert np.mean(exact.of_items(queries, few) >= least[:, -1:]) < 0.5, "the control: of one list"


def test_where_one_list_has_too_few_items_the_last_numbers_are_none() -> None:
    items = vectors_of(200, 1)
    index = VectorIndex.build(items)
    index._index.nprobe = 1
    numbers, _ = index.search(vectors_of(5, 2), 150)
    assert (numbers[:, -1] == -1).all()
    assert (numbers[:, 0] >= 0).all()
    recall = index.tune(ExactSearch(items), vectors_of(5, 2), "items")
    assert recall.at_100 >= LEAST_RECALL
    assert (index.search(vectors_of(5, 2), 500)[0].shape) == (5, 200)


def test_equal_items_stand_for_each_other() -> None:
    """All items are one vector: whichever are found, nothing is missed."""
    items = np.repeat(vectors_of(1, 1), 300, axis=0)
    recall = VectorIndex.build(items).tune(ExactSearch(items), vectors_of(3, 2), "items")
    assert (recall.at_10, recall.at_100) == (1.0, 1.0)


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    items, queries = vectors_of(ITEMS, 1), vectors_of(QUERIES, 2)
    index = VectorIndex.build(items)
    index.tune(ExactSearch(items), queries, "items")
    index.write(tmp_path / "index")
    again = VectorIndex.read(tmp_path / "index")
    assert (len(again), again.dim) == (ITEMS, DIM)
    for found, wanted in zip(again.search(queries, 20), index.search(queries, 20), strict=True):
        np.testing.assert_array_equal(found, wanted)
    (tmp_path / "text").write_text("no index")
    faiss.write_index(faiss.IndexFlatIP(DIM), str(tmp_path / "flat"))
    for name in ("text", "flat", "absent"):
        with pytest.raises(DataError, match=f"{name}: is no index of items .*; export the items again"):
            VectorIndex.read(tmp_path / name)


def test_vectors_that_cannot_be_compared_are_refused() -> None:
    items = vectors_of(5, 1)
    for wrong in (items[0], items[:0]):
        with pytest.raises(ValueError, match="vectors"):
            ExactSearch(wrong)
    with pytest.raises(ValueError, match="queries"):
        ExactSearch(items).search(vectors_of(2, 2, DIM + 1), 3)
    with pytest.raises(ValueError, match="k = 0"):
        ExactSearch(items).search(items, 0)
    items[2, 3] = np.inf
    for work in (lambda: ExactSearch(items), lambda: ExactSearch(vectors_of(5, 1)).search(items, 1)):
        with pytest.raises(ValueError, match="not finite"):
            work()
