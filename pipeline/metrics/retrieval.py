"""Retrieval over a whole catalogue: recall@k, NDCG@k, hit rate@k and MRR, from the ranks of items."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from ..types import RANKED_METRICS, Float64Array, Int64Array, Mask, Uint64Array

KEPT_BYTES: Final = 256 << 20
"""Bytes of the rows with a group of one pass: 11 million of them."""
_MISSED: Final = np.iinfo(np.int64).max
_ROW: Final = np.dtype([("group", np.uint64), ("item", np.int64), ("rank", np.int64)])


@dataclass(frozen=True, slots=True)
class RetrievalQuality:
    """The mean figures of queries; a query has one relevant item or, with groups, all of its group.

    Attributes:
        k: how many items count.
        recall: relevant items among the first k, over all of the query.
        ndcg: discounted gain of those, over that of the best order; a gain is 1 over log2(1 + rank).
        hit: share of the queries with any among the first k.
        mrr: mean of 1 over the rank of the first one, however far it is.
        queries: queries that the means are of; the means are None without any.
        items: items of the catalogue.
        rows: positive rows that were ranked, or missed.
        rows_not_in_catalogue: those of them whose item the catalogue lacks; they count as missed.
        rows_without_group: positive rows whose group is missing; they are in no query.
        rows_left_out: positive rows of groups that were left out for want of memory.
    """

    k: int
    recall: float | None
    ndcg: float | None
    hit: float | None
    mrr: float | None
    queries: int
    items: int
    rows: int
    rows_not_in_catalogue: int
    rows_without_group: int
    rows_left_out: int

    def metrics(self) -> dict[str, float | None]:
        """Return the figures as [validation] names them: "recall@10", "mrr"."""
        return {f"{name}@{self.k}": getattr(self, name) for name in RANKED_METRICS} | {"mrr": self.mrr}

    def as_dict(self) -> dict[str, Any]:
        """Return the figures, and the counts by their names, for JSON."""
        return self.metrics() | {
            name: value for name, value in asdict(self).items() if name not in (*RANKED_METRICS, "mrr", "k")
        }


class RetrievalSums:
    """The figures of positive rows with the ranks of their items. Not thread-safe.

    Without groups each row is a query. With them the distinct items of a group are the relevant ones of one
    query; an item that a group has twice has the better of its ranks, and the n-th best of a query has rank n
    or more, so that no figure is above 1. Then 24 bytes of each row are kept. If they do not fit into
    `limit_bytes`, half of the groups are left out, those whose hash has a 1 as its next bit, as often as
    needed.

    Args:
        k: 1 or more.
        items: number of items of the catalogue.
        limit_bytes: bytes of the kept rows; in memory about three times as many.
    """

    def __init__(self, k: int, items: int, limit_bytes: int = KEPT_BYTES) -> None:
        self._k, self._items, self._limit_bytes = k, items, limit_bytes
        self._sums, self._queries = np.zeros(4), 0
        self._rows = self._missing = self._without = self._left_out = 0
        self._zero_bits = 0
        self._kept: list[Any] = []

    def add(self, ranks: Int64Array, identities: Int64Array, groups: Uint64Array | None = None) -> None:
        """Add rows: ranks from 1, 0 for an item that the catalogue lacks; all [n].

        `identities` tell the items apart, and `groups` has the hashes of the rows' groups, 0 for none; it is
        None for all rows of a job without.
        """
        self._rows += len(ranks)
        missing = ranks == 0
        self._missing += int(missing.sum())
        # An item that is missed is after any rank.
        ranks = np.where(missing, _MISSED, ranks)
        if groups is None:
            self._add_queries(np.arange(len(ranks)), ranks)
            return
        has_group, kept = groups != 0, self._is_kept(groups)
        self._without += int((~has_group).sum())
        self._left_out += int((has_group & ~kept).sum())
        rows = np.empty(len(ranks), _ROW)
        rows["group"], rows["item"], rows["rank"] = groups, identities, ranks
        self._kept.append(rows[has_group & kept])
        if sum(part.nbytes for part in self._kept) > self._limit_bytes:
            self._leave_out()

    def result(self) -> RetrievalQuality:
        """Return the figures of all rows; call it once."""
        if self._kept:
            rows = self._distinct()
            _, query = np.unique(rows["group"], return_inverse=True)
            self._add_queries(query, rows["rank"])
        recall, ndcg, hit, mrr = (
            float(total) / self._queries if self._queries else None for total in self._sums
        )
        return RetrievalQuality(
            self._k,
            recall,
            ndcg,
            hit,
            mrr,
            queries=self._queries,
            items=self._items,
            rows=self._rows,
            rows_not_in_catalogue=self._missing,
            rows_without_group=self._without,
            rows_left_out=self._left_out,
        )

    def _add_queries(self, query: Int64Array, ranks: Int64Array) -> None:
        """Add queries 0, 1, ..., each with the ranks of its relevant items, _MISSED for a missed one."""
        if not len(query):
            return
        relevant = np.bincount(query)
        order = np.lexsort((ranks, query))
        query, first = query[order], np.cumsum(relevant) - relevant
        # The n-th relevant item has n - 1 others before it, though ranks by rows of their own may be alike.
        ranks = np.maximum(ranks[order], np.arange(1, len(query) + 1) - first[query])
        in_top_k = ranks <= self._k
        hits = _sums(query[in_top_k], np.ones(int(in_top_k.sum())), len(relevant))
        gains = _sums(query[in_top_k], 1.0 / np.log2(ranks[in_top_k] + 1.0), len(relevant))
        best = np.cumsum(1.0 / np.log2(np.arange(min(self._k, relevant.max())) + 2.0))
        reciprocal = np.zeros(len(relevant))
        known = ranks < _MISSED
        np.maximum.at(reciprocal, query[known], 1.0 / ranks[known])
        ideal = best[np.minimum(relevant, self._k) - 1]
        each = (hits / relevant, gains / ideal, hits > 0, reciprocal)
        self._sums += [float(figure.sum()) for figure in each]
        self._queries += len(relevant)

    def _distinct(self) -> Any:
        """Return the kept rows, each group's items once."""
        rows = np.concatenate(self._kept)
        rows = rows[np.lexsort((rows["rank"], rows["item"], rows["group"]))]
        same = (rows["group"][1:] == rows["group"][:-1]) & (rows["item"][1:] == rows["item"][:-1])
        return rows[np.concatenate([[True], ~same])] if len(rows) else rows

    def _leave_out(self) -> None:
        """Keep as many groups as fit."""
        rows = self._distinct()
        while rows.nbytes > self._limit_bytes:
            self._zero_bits += 1
            kept = self._is_kept(rows["group"])
            self._left_out += int((~kept).sum())
            rows = rows[kept]
        self._kept = [rows]

    def _is_kept(self, groups: Uint64Array) -> Mask:
        kept: Mask = (groups & np.uint64((1 << self._zero_bits) - 1)) == 0
        return kept


def _sums(query: Int64Array, values: Float64Array, queries: int) -> Float64Array:
    return np.bincount(query, weights=values, minlength=queries).astype(np.float64, copy=False)
