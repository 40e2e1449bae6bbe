"""Lists row by row: padded places, and weighted pools with their gradients by closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.lookup.item_lists import ItemList, list_layout
from shadowsync.pipeline.embedding.lookup.request import NO_KEYS, NO_WEIGHTS, ColumnBags
from shadowsync.pipeline.types import Float32Array, IndexArray
from shadowsync.tests.support.tables.embedding_cluster import DrawnRows, EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables.tables import make_table

LENGTHS = np.array([2, 0, 3, 1], np.int32)


def bags_of(pooling: str, weights: Float32Array = NO_WEIGHTS) -> ColumnBags:
    return ColumnBags(np.arange(6, dtype=np.int32), LENGTHS, pooling, weights, NO_KEYS)


def laid_out(
    bags: ColumnBags, padded: int = 0
) -> tuple[ItemList, list[torch.Tensor], Callable[[IndexArray], IndexArray]]:
    """The list, its index tensors, and what returns the places of rows; with so many rows more."""
    tensors: list[torch.Tensor] = []

    def add(array: NDArray[Any]) -> int:
        tensors.append(torch.from_numpy(array))
        return len(tensors) - 1

    made, places = list_layout(0, bags, add, lambda _, size: size + padded)
    return made, tensors, places


def test_vectors_of_a_list_are_side_by_side_in_its_order() -> None:
    lists, tensors, places = laid_out(bags_of("none"))
    assert lists.vectors == 12
    assert lists.lengths is not None
    assert tensors[lists.lengths].tolist() == LENGTHS.tolist()
    assert places(np.arange(6)).tolist() == [0, 1, 6, 7, 8, 9]
    longer, _, places = laid_out(bags_of("none"), padded=2)
    assert longer.vectors == 20
    assert places(np.arange(6)).tolist() == [0, 1, 10, 11, 12, 15]
    nothing = ColumnBags(np.zeros(0, np.int32), np.zeros(3, np.int32), "none", NO_WEIGHTS, NO_KEYS)
    empty, tensors, _ = laid_out(nothing)
    assert empty.join(torch.zeros(empty.vectors, 5), tensors).shape == (3, 1, 5)


@pytest.mark.parametrize("padded", [0, 3])
@pytest.mark.parametrize("pooling", ["weighted_sum", "weighted_mean"])
def test_weights_by_closed_form(pooling: str, padded: int) -> None:
    """Sums of w v, means divided by the sum of w, zeros for all-zero weights; so are the gradients."""
    weights = np.array([0.5, 1.5, 0.0, 2.0, 4.0, 0.0], np.float32)
    owners = np.repeat(np.arange(4), LENGTHS)
    rng = np.random.default_rng(1)
    vectors, upstream = rng.standard_normal((6, 3)), rng.standard_normal((4, 3))
    totals = np.bincount(owners, weights, 4)
    wanted, gradient = np.zeros((4, 3)), np.zeros((6, 3))
    for at, owner in enumerate(owners):
        factor = weights[at] / (1.0 if pooling == "weighted_sum" else totals[owner] or 1.0)
        wanted[owner] += factor * vectors[at]
        gradient[at] = factor * upstream[owner]
    pooled, tensors, _ = laid_out(bags_of(pooling, weights), padded)
    given = torch.zeros(6 + padded, 3)
    given[:6] = torch.from_numpy(vectors)
    got = pooled.join(given, tensors)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert got[1].tolist() == got[3].tolist() == [0.0] * 3
    back = pooled.split(torch.from_numpy(upstream.astype(np.float32)), tensors)
    np.testing.assert_allclose(back[:6], gradient, rtol=1e-5, atol=1e-6)
    even, tensors, _ = laid_out(bags_of(pooling, np.ones(6, np.float32)), padded)
    assert np.abs(even.join(given, tensors).numpy() - wanted).max() > 0.1


def gradients_by_differences(
    cluster: EmbeddingCluster, drawn: DrawnRows, upstream: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Slopes of the sum of embeddings times `upstream`, by replies that are changed float by float."""
    requests, replies = cluster.call(drawn)

    def value() -> float:
        found = cluster.router.assemble(requests, [reply.copy() for reply in replies]).embeddings
        return sum(
            float((own.detach().double().numpy() * up).sum()) for own, up in zip(found, upstream, strict=True)
        )

    slopes: list[NDArray[np.float64]] = []
    for reply in replies:
        slopes.append(np.zeros(len(reply)))
        for at in range(len(reply)):
            kept, step = float(reply[at]), 0.5
            reply[at] = kept + step
            above = value()
            reply[at] = kept - step
            slopes[-1][at] = (above - value()) / (2 * step)
            reply[at] = kept
    return slopes


@pytest.mark.parametrize("distinct", [False, True])
def test_gradients_are_those_of_differences(distinct: bool) -> None:
    """Embeddings are linear in the replies, so central differences are exact but for rounding."""
    tables = (
        make_table("sequence", 40, 2, pooling="none"),
        make_table("mean", 400, 2, pooling="weighted_mean"),
        make_table("sum", 40, 3, pooling="weighted_sum"),
        make_table("one", 30, 2),
    )
    cluster, drawn = EmbeddingCluster(tables, 2, distinct=distinct), draw_rows(tables, 5, 2)
    assert any(not cluster.plan.is_whole(piece) for piece in cluster.plan.pieces)
    _, vectors = cluster.forward(drawn)
    rng = np.random.default_rng(3)
    upstream = [rng.standard_normal(tuple(own.shape)) for own in vectors.embeddings]
    loss: Any = sum(
        (own * torch.from_numpy(up).float()).sum()
        for own, up in zip(vectors.embeddings, upstream, strict=True)
    )
    loss.backward()
    wanted = gradients_by_differences(cluster, drawn, upstream)
    for got, slope in zip(vectors.gradients(), wanted, strict=True):
        np.testing.assert_allclose(got, slope, rtol=1e-3, atol=1e-4)
        assert np.abs(slope).max() > 0.5, "the control: there is something to compare"


def test_lengths_come_with_sequences_alone() -> None:
    tables = (make_table("means", 9, 2, pooling="mean"), make_table("sequence", 9, 2, pooling="none"))
    drawn = draw_rows(tables, 6, 1)
    _, vectors = EmbeddingCluster(tables, 1).forward(drawn)
    assert list(vectors.lengths) == [1]
    assert vectors.lengths[1].tolist() == drawn.bag_lengths[1].tolist()


@pytest.mark.parametrize(
    "weights", [np.zeros(0, np.float32), np.ones(3, np.float32), np.ones(6)], ids=["none", "few", "float64"]
)
def test_weights_that_do_not_fit_the_rows(weights: Any) -> None:
    cluster = EmbeddingCluster((make_table("w", 9, 2, pooling="weighted_sum"),), 1)
    rows = DrawnRows(np.zeros((0, 4), np.int32), np.zeros(6, np.int32), LENGTHS[None], weights)
    with pytest.raises(ValueError, match=r"item_weights must be float32 \[6\], one for each of bag_rows"):
        cluster.call(rows)
