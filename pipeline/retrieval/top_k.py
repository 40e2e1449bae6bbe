"""The items with the highest scores, exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch

from ..types import Float32Array, Float64Array, Int64Array

QUERY_BLOCK: Final = 256
ITEM_BLOCK: Final = 1 << 13
_DIVERGED: Final = "a vector is not finite: the model has diverged"


def blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most `size` that cover 0 to `count` - 1, in order."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def products(queries: Float32Array, vectors: Float32Array) -> Float32Array:
    """Return the product of each query with each vector, float32 [Q, N].

    Sums are float64 and then rounded, so that equal vectors have equal products wherever they stand.
    """
    scores: Float32Array = (queries.astype(np.float64) @ vectors.astype(np.float64).T).astype(np.float32)
    return scores


class ExactSearch:
    """Find the items with the highest products among the same vectors, again and again.

    Products in float32 say which items may be among the best, by the bound of their error; these have
    `products` computed. Several threads may search at once.

    Args:
        vectors: float32 [N, dim], of the items; N is 1 or more. They must not change.

    Raises ValueError for another shape, and for a vector that is not finite.
    """

    def __init__(self, vectors: Float32Array) -> None:
        if vectors.ndim != 2 or not len(vectors):
            raise ValueError(f"vectors {vectors.shape}")
        self._vectors = _writable(vectors)
        self._longest = max(float(_lengths(vectors[block]).max()) for block in blocks(len(vectors), 1 << 14))
        if not np.isfinite(self._longest):
            raise ValueError(_DIVERGED)

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Float32Array, k: int) -> tuple[Int64Array, Float32Array]:
        """Return for each query the numbers of the k items with the highest products, and these, best first.

        Of equal products the item with the lower number is first. Memory beside the arguments and the result
        is bounded: QUERY_BLOCK times ITEM_BLOCK products, 8 MB, or those of one query, and a copy.

        Args:
            queries: float32 [Q, dim].
            k: 1 or more; above N it is N.

        Returns int64 [Q, k] and float32 [Q, k]. Raises ValueError for a vector that is not finite, other
        shapes, or k below 1.
        """
        if queries.ndim != 2 or queries.shape[1] != self._vectors.shape[1] or k < 1:
            raise ValueError(f"queries {queries.shape}, vectors {self._vectors.shape}, k = {k}")
        queries = _writable(queries)
        lengths = _lengths(queries)
        if not np.isfinite(lengths).all():
            raise ValueError(_DIVERGED)
        k = min(k, len(self))
        numbers = np.empty((len(queries), k), np.int64)
        scores = np.empty((len(queries), k), np.float32)
        # A product's error in float32 is at most dim * 2**-24 of the lengths' product, in any order of its
        # sum (Higham, Accuracy and Stability, Section 3.1). It is that of the item and that of the k-th best.
        errors = (2 * queries.shape[1] + 4) * 2.0**-24 * self._longest * lengths
        # By torch, which keeps to the threads that it was given.
        transposed = torch.from_numpy(self._vectors).T
        for block in blocks(len(queries), max(1, QUERY_BLOCK * ITEM_BLOCK // len(self))):
            rough = (torch.from_numpy(queries[block]) @ transposed).numpy()
            least = np.partition(rough, len(self) - k, axis=1)[:, len(self) - k] - errors[block]
            for row, number in enumerate(range(block.start, block.stop)):
                near = np.flatnonzero(rough[row] >= least[row])
                exact = products(queries[number : number + 1], self._vectors[near])[0]
                best = np.argsort(-exact, kind="stable")[:k]
                numbers[number], scores[number] = near[best], exact[best]
        return numbers, scores

    def of_items(self, queries: Float32Array, numbers: Int64Array) -> Float32Array:
        """Return the products of each query, float32 [Q, dim], with its items, int64 [Q, k]: [Q, k]."""
        pairs = zip(queries, numbers, strict=True)
        return np.stack([products(query[None], self._vectors[items])[0] for query, items in pairs])


def _writable(vectors: Float32Array) -> Float32Array:
    """Return vectors in memory that torch takes, such as that of Arrow is not."""
    values: Float32Array = np.require(vectors, requirements=["C", "W"])
    return values


def _lengths(vectors: Float32Array) -> Float64Array:
    lengths: Float64Array = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    return lengths
