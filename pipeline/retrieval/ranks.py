"""Ranks of items among a whole catalogue, and the items that they are not ranked among."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from ..errors import ResourceError
from ..types import Float32Array, Int64Array, Uint64Array
from .items import places_in
from .top_k import ITEM_BLOCK, QUERY_BLOCK, blocks, products

MOST_PAIRS: Final = 1 << 27
"""Pairs of a query group and an item that are kept: 1 GiB, and twice that for a moment."""
_LEAST_PENDING: Final = 1 << 20


class Pairs(NamedTuple):
    """Items that belong to some queries.

    Attributes:
        query: int64 [P], the query's place among those of a call.
        item: int64 [P], the item's number.
    """

    query: Int64Array
    item: Int64Array


def no_pairs() -> Pairs:
    return Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


def ranks_of(
    queries: Float32Array, targets: Int64Array, vectors: Float32Array, excluded: Pairs | None = None
) -> Int64Array:
    """Return the rank of an item for each query among all items, int64 [Q], from 1.

    It is 1 and the number of other items with at least the item's product: of equal products the item is the
    last, so that a model that gives all items one score gains nothing. A query's excluded items do not count,
    but for the item itself. Memory beside the arguments is bounded, as of `ExactSearch.search`.

    Args:
        queries: float32 [Q, dim].
        targets: int64 [Q], the number of each query's item.
        vectors: float32 [N, dim], of the items.
        excluded: items that are left out for a query.
    """
    ranks = np.ones(len(queries), np.int64)
    query, item = no_pairs() if excluded is None else excluded
    for some in blocks(len(queries), QUERY_BLOCK):
        of_some = (query >= some.start) & (query < some.stop)
        left_out = query[of_some] - some.start, item[of_some]
        own_products = _own_products(queries[some], vectors[targets[some]])
        for items in blocks(len(vectors), ITEM_BLOCK):
            above = products(queries[some], vectors[items]) >= own_products[:, np.newaxis]
            for row, number in (left_out, (np.arange(len(own_products)), targets[some])):
                here = (number >= items.start) & (number < items.stop)
                above[row[here], number[here] - items.start] = False
            ranks[some] += above.sum(axis=1)
    return ranks


def _own_products(queries: Float32Array, vectors: Float32Array) -> Float32Array:
    """Return the product of each query with its vector, float32 [Q], as `products` rounds it."""
    exact = np.einsum("qd,qd->q", queries.astype(np.float64), vectors.astype(np.float64))
    rounded: Float32Array = exact.astype(np.float32)
    return rounded


class ItemNumbers:
    """The numbers of items by their identities; of items with one identity, the first."""

    def __init__(self, identities: Int64Array) -> None:
        self._sorted, self._number = np.unique(identities, return_index=True)

    def of(self, identities: Int64Array) -> Int64Array:
        """Return int64 [n]: the number of each item, -1 for one that is not there."""
        places, known = places_in(self._sorted, identities)
        numbers: Int64Array = np.where(known, self._number[places], -1)
        return numbers


class ItemsOfGroups:
    """The distinct items of groups of queries, 8 bytes for each pair of a group and an item.

    Args:
        groups: uint64, hashes of the groups that may be asked for.
        items: number of items.
        most: number of pairs past which they are refused.
    """

    def __init__(self, groups: Uint64Array, items: int, most: int = MOST_PAIRS) -> None:
        self._groups, self._items, self._most = np.unique(groups), items, most
        self._codes = np.zeros(0, np.int64)
        self._pending: list[Int64Array] = []
        self._pending_pairs = 0

    @property
    def count(self) -> int:
        self._fold_pending()
        return len(self._codes)

    def add(self, groups: Uint64Array, numbers: Int64Array) -> None:
        """Add rows: hashes of their groups, and numbers of their items, below 0 for none; both [n].

        Raises ResourceError past the limit.
        """
        place, known = places_in(self._groups, groups)
        code = (place * self._items + numbers)[known & (numbers >= 0)]
        self._pending.append(code)
        self._pending_pairs += len(code)
        if self._pending_pairs > max(_LEAST_PENDING, len(self._codes)):
            self._fold_pending()

    def leave_out(self, others: ItemsOfGroups) -> None:
        """Forget the pairs that others have, which are of the same groups and items."""
        self._fold_pending()
        others._fold_pending()
        self._codes = np.setdiff1d(self._codes, others._codes, assume_unique=True)

    def of(self, groups: Uint64Array) -> Pairs:
        """Return the items of the group of each of n queries; n is small."""
        self._fold_pending()
        place, known = places_in(self._groups, groups)
        first = np.searchsorted(self._codes, place * self._items)
        counts = np.where(known, np.searchsorted(self._codes, (place + 1) * self._items) - first, 0)
        query = np.repeat(np.arange(len(groups)), counts)
        behind = np.arange(len(query)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Pairs(query, self._codes[np.repeat(first, counts) + behind] % self._items)

    def _fold_pending(self) -> None:
        if not self._pending:
            return
        self._codes = np.unique(np.concatenate([self._codes, *self._pending]))
        self._pending, self._pending_pairs = [], 0
        if len(self._codes) > self._most:
            raise ResourceError(
                f"the training part has more than {self._most:,} pairs of a group and an item to leave out",
                where="validation.exclude_trained",
                remedy="validate on fewer groups, or leave it out",
            )


def groups_of(parts: Iterable[Uint64Array]) -> Uint64Array:
    """Return the distinct hashes of groups, without 0, which is none."""
    known = np.zeros(0, np.uint64)
    for part in parts:
        known = np.union1d(known, part)
    groups: Uint64Array = known[known != 0]
    return groups
