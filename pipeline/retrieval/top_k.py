"""The items with the highest scores, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ..types import Float32Array, Int64Array

QUERY_BLOCK: Final = 256
ITEM_BLOCK: Final = 1 << 13
_FIRST_BLOCK: Final = 1 << 10


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
    bounded: that of QUERY_BLOCK times ITEM_BLOCK products, at most 200 MB with what sorts them.

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
    first = min(len(vectors), max(_FIRST_BLOCK, k))
    scores = products(queries, vectors[:first])
    numbers: Int64Array = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores = np.take_along_axis(scores, numbers, axis=1)
    for items in blocks(len(vectors) - first, ITEM_BLOCK):
        start, stop = first + items.start, first + items.stop
        numbers, scores = _with_better(numbers, scores, products(queries, vectors[start:stop]), start)
    return numbers, scores


def _with_better(
    numbers: Int64Array, scores: Float32Array, others: Float32Array, start: int
) -> tuple[Int64Array, Float32Array]:
    """Return the best of [Q, k], and of the scores [Q, n] of the items `start` and on, in order."""
    k = numbers.shape[1]
    # Few are better than the worst so far; one that equals it has a higher number.
    query, place = np.nonzero(others > scores[:, -1:])
    of_query = np.concatenate([np.repeat(np.arange(len(scores)), k), query])
    every = np.concatenate([scores.ravel(), others[query, place]])
    named = np.concatenate([numbers.ravel(), start + place])
    order = np.lexsort((named, -every, of_query))
    counts = np.bincount(of_query, minlength=len(scores))
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    best = order[rank < k]
    return named[best].reshape(-1, k), every[best].reshape(-1, k)
