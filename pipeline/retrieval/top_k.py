"""The items with the highest scores, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..types import Float32Array, Int64Array

QUERY_BLOCK: Final = 512
ITEM_BLOCK: Final = 1 << 14


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0 to `count` - 1, in order."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def products(queries: Float32Array, vectors: Float32Array) -> Float32Array:
    """Return the product of each query with each vector, float32 [Q, N].

    Sums are float64 and then rounded, so that equal vectors have equal products wherever they stand.
    """
    scores: Float32Array = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return scores


def exact_top_k(queries: Float32Array, vectors: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Return for each query the numbers of the k items with the highest products, and these, best first.

    Of equal products the item with the lower number is first. Memory beside the arguments and the result is
    bounded: a block has QUERY_BLOCK times ITEM_BLOCK products, about 200 MB with what sorts them.

    Args:
        queries: float32 [Q, dim].
        vectors: float32 [N, dim], of the items.
        k: 1 or more; above N it is N.

    Returns int64 [Q, k] and float32 [Q, k]. Raises ValueError for a vector that is not finite, other shapes,
    or k below 1.
    """
    if queries.ndim != 2 or vectors.ndim != 2 or queries.shape[1] != vectors.shape[1] or k < 1:
        raise ValueError(f"queries {queries.shape}, vectors {vectors.shape}, k = {k}")
    if not (np.isfinite(queries).all() and np.isfinite(vectors).all()):
        raise ValueError("a vector is not finite: the model has diverged")
    k = min(k, len(vectors))
    numbers = np.empty((len(queries), k), np.int64)
    scores = np.empty((len(queries), k), np.float32)
    for block in blocks(len(queries), QUERY_BLOCK):
        numbers[block], scores[block] = _of_block(queries[block], vectors, k)
    return numbers, scores


def _of_block(queries: Float32Array, vectors: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    numbers = np.zeros((len(queries), 0), np.int64)
    scores = np.zeros((len(queries), 0), np.float32)
    for items in blocks(len(vectors), max(ITEM_BLOCK, k)):
        of_items = np.arange(items.start, items.stop)[np.newaxis].repeat(len(queries), axis=0)
        numbers = np.concatenate([numbers, of_items], axis=1)
        scores = np.concatenate([scores, products(queries, vectors[items])], axis=1)
        numbers, scores = _highest(numbers, scores, k)
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(numbers, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _highest(numbers: Int64Array, scores: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
    """Return the k highest of each row in their order, of equal ones the first."""
    if scores.shape[1] <= k:
        return numbers, scores
    least = -np.partition(-scores, k - 1, axis=1)[:, k - 1 : k]
    above, equal = scores > least, scores == least
    wanted = k - above.sum(axis=1, keepdims=True)
    kept = above | (equal & (np.cumsum(equal, axis=1, dtype=np.int32) <= wanted))
    return numbers[kept].reshape(-1, k), scores[kept].reshape(-1, k)
