"""Ranking within groups: NDCG@k, recall@k and MAP@k, from candidates that merge.

NDCG: Järvelin and Kekäläinen, ACM TOIS 20, 2002; a positive has the gain 1, over log2(1 + its rank).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import (
    GROUP_METRICS,
    MOST_TOP_ROWS,
    Float32Array,
    Float64Array,
    Int64Array,
    Mask,
    Uint64Array,
)

GROUP_BYTES: Final = 24
CANDIDATE_BYTES: Final = 5
SENT_BYTES: Final = 16 << 20
"""Bytes of the groups of one scorer that sends them: 220,000 groups of 10 rows and more, with k = 10."""
KEPT_BYTES: Final = 256 << 20
"""Bytes of the groups of a process that scores alone: 3.6 million of them."""

_HEADER: Final = struct.Struct("<6q")
_LEAST_PENDING_ROWS: Final = 1 << 16
_MOST_ROWS: Final = 2**53


@dataclass(frozen=True, slots=True)
class GroupRanking:
    """The mean figures of the groups with a positive.

    Attributes:
        k: how many rows of a group count.
        ndcg: discounted gain of the first k, over that of the best order.
        recall: positives among the first k, over all positives of the group.
        map: sum of the precisions at the positives among the first k, over min(k, positives).
        groups: groups that the means are of; the means are None without any.
        groups_without_positive: groups that have no figures, and are in no mean.
        rows_without_group: rows whose value is missing; they are in no group.
        rows_left_out: rows of groups that were left out for want of memory.
    """

    k: int
    ndcg: float | None
    recall: float | None
    map: float | None
    groups: int
    groups_without_positive: int
    rows_without_group: int
    rows_left_out: int

    def metrics(self) -> dict[str, float | None]:
        """Return the figures as [validation] names them: "ndcg@10"."""
        return {f"{name}@{self.k}": getattr(self, name) for name in GROUP_METRICS}

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the figures, and the counts by their names, for JSON."""
        counts = ("groups", "groups_without_positive", "rows_without_group", "rows_left_out")
        return self.metrics() | {name: getattr(self, name) for name in counts}


class _Groups(NamedTuple):
    """Groups in the order of their keys, and their candidates, the best first.

    Attributes:
        keys: uint64 [N], each once.
        rows, positives: int64 [N], of all rows.
        scores: float32 [C], the first min(k, rows) of each group.
        labels: bool [C].
    """

    keys: Uint64Array
    rows: Int64Array
    positives: Int64Array
    scores: Float32Array
    labels: Mask

    @property
    def bytes(self) -> int:
        return GROUP_BYTES * len(self.keys) + CANDIDATE_BYTES * len(self.scores)

    def candidates_per_group(self, k: int) -> Int64Array:
        counts: Int64Array = np.minimum(self.rows, k)
        return counts


class TopKSums:
    """The first k rows of each group by score, and what else the figures need.

    Rows of one group may come to several scorers, in any order: merged, their objects have exactly the
    figures of one that had all rows. Within a group rows are ordered by descending score, a negative before a
    positive of the same score, so that equal scores gain nothing. Sample weights do not count.

    The figures are exact while the groups fit into `limit_bytes`. If they do not, half of the groups are left
    out, those whose hash has a 1 as its next bit, as often as needed. Which ones are left depends on the rows
    alone, and not on how they are spread over scorers.

    Not thread-safe.

    Args:
        k: from 1 to MOST_TOP_ROWS.
        limit_bytes: bytes of the kept groups, as they are sent; in memory about four times as many.

    Attributes:
        rows: rows that were added, with those that are in no group.
    """

    def __init__(self, k: int, limit_bytes: int = KEPT_BYTES) -> None:
        if not 1 <= k <= MOST_TOP_ROWS:
            raise ValueError(f"k is {k}; give 1 to {MOST_TOP_ROWS}")
        self.k, self._limit_bytes = k, limit_bytes
        self.rows = 0
        self._rows_without_group = 0
        # Groups whose hash has so many zeros at its end are kept.
        self._zero_bits = 0
        self._groups = _no_groups()
        self._pending: list[tuple[Uint64Array, Float32Array, Mask]] = []
        self._pending_rows = 0

    def add(self, scores: Float32Array, labels: Float32Array, groups: Uint64Array) -> None:
        """Add rows: finite scores, labels of 0 and 1, and the hashes of their groups, 0 for none; all [B].

        Raises ValueError for a score that is not finite, or arrays that are not of one shape [B].
        """
        if not (scores.ndim == 1 and scores.shape == labels.shape == groups.shape):
            raise ValueError(
                f"scores {scores.shape}, labels {labels.shape} and groups {groups.shape}: not [B]"
            )
        if not np.isfinite(scores).all():
            raise ValueError("a score is not finite: the model has diverged")
        self.rows += len(scores)
        self._rows_without_group += int(np.count_nonzero(groups == 0))
        kept = np.flatnonzero(self._is_kept(groups) & (groups != 0))
        self._pending.append((groups[kept], scores[kept], labels[kept] == 1.0))
        self._pending_rows += len(kept)
        if self._pending_rows >= max(_LEAST_PENDING_ROWS, len(self._groups.scores)):
            self._fold_pending()

    def merge(self, other: TopKSums) -> None:
        """Add the rows of `other`, which does not change; raises ValueError for another k."""
        if other.k != self.k:
            raise ValueError(f"the first {other.k} of groups do not add to the first {self.k}")
        other._fold_pending()
        self._fold_pending()
        self.rows += other.rows
        self._rows_without_group += other._rows_without_group
        self._zero_bits = max(self._zero_bits, other._zero_bits)
        self._groups = self._fitting(_joined(self._groups, other._groups, self.k))

    def result(self) -> GroupRanking:
        """Return the figures of all rows so far."""
        self._fold_pending()
        groups = self._groups
        counted = groups.positives > 0
        positives = groups.positives[counted]
        gains, hits, precisions = (each[counted] for each in self._sums_of_groups())
        best = np.cumsum(1.0 / np.log2(np.arange(self.k) + 2.0))
        most = np.minimum(positives, self.k)
        each_of = (gains / best[most - 1], hits / positives, precisions / most)
        ndcg, recall, precision = (float(of.sum()) / len(of) if len(of) else None for of in each_of)
        return GroupRanking(
            self.k,
            ndcg,
            recall,
            precision,
            groups=len(positives),
            groups_without_positive=len(counted) - len(positives),
            rows_without_group=self._rows_without_group,
            rows_left_out=self.rows - self._rows_without_group - int(groups.rows.sum()),
        )

    def to_bytes(self) -> bytes:
        """Return the sums as bytes, little-endian: a header, then the arrays of the groups.

        The header is six int64: k, the zero bits, all rows, those without a group, groups, candidates.
        """
        self._fold_pending()
        groups = self._groups
        sizes = (len(groups.keys), len(groups.scores))
        header = _HEADER.pack(self.k, self._zero_bits, self.rows, self._rows_without_group, *sizes)
        return header + b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in groups)

    @classmethod
    def from_bytes(cls, data: bytes, limit_bytes: int = SENT_BYTES) -> TopKSums:
        """Return the sums from the bytes of `to_bytes`; raises ValueError for bytes that cannot be such."""
        if len(data) < _HEADER.size:
            raise ValueError(f"groups of {len(data)} bytes")
        k, zero_bits, rows, without, groups, candidates = _HEADER.unpack_from(data)
        sums = cls(k, limit_bytes)
        body = GROUP_BYTES * groups + CANDIDATE_BYTES * candidates
        if min(groups, candidates, without) < 0 or len(data) != _HEADER.size + body:
            raise ValueError(f"{groups} groups with {candidates} candidates in {len(data)} bytes")
        if not (0 <= zero_bits < 64 and without <= rows <= _MOST_ROWS):
            raise ValueError(f"groups with {zero_bits} zero bits, of {rows} rows, {without} in no group")
        read = _Groups(*_arrays(data, groups, candidates))
        _check(read, k, rows - without)
        sums.rows, sums._rows_without_group, sums._zero_bits, sums._groups = rows, without, zero_bits, read
        if not (sums._is_kept(read.keys).all() and read.bytes <= limit_bytes):
            raise ValueError("groups that were to be left out")
        return sums

    def _is_kept(self, keys: Uint64Array) -> Mask:
        kept: Mask = (keys & np.uint64((1 << self._zero_bits) - 1)) == 0
        return kept

    def _fold_pending(self) -> None:
        """Take pending rows into the groups."""
        if not self._pending:
            return
        keys, scores, labels = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        self._pending, self._pending_rows = [], 0
        self._groups = self._fitting(_joined(self._groups, _grouped(keys, scores, labels, self.k), self.k))

    def _fitting(self, groups: _Groups) -> _Groups:
        """Return the groups that are kept, as few as fit."""
        groups = _chosen(groups, self._is_kept(groups.keys), self.k)
        while groups.bytes > self._limit_bytes:
            self._zero_bits += 1
            groups = _chosen(groups, self._is_kept(groups.keys), self.k)
        return groups

    def _sums_of_groups(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return float64 [N] each: discounted gains, positives and precisions at them, of the candidates."""
        labels, counts = self._groups.labels, self._groups.candidates_per_group(self.k)
        group, first = np.repeat(np.arange(len(counts)), counts), np.cumsum(counts) - counts
        rank = np.arange(1, len(labels) + 1) - first[group]
        before = np.concatenate([[0], np.cumsum(labels)])
        precision = labels * (before[1:] - before[first[group]]) / rank

        def sums(values: NDArray[Any]) -> Float64Array:
            return np.bincount(group, weights=values, minlength=len(counts)).astype(np.float64, copy=False)

        return sums(labels / np.log2(rank + 1.0)), sums(labels), sums(precision)


def _no_groups() -> _Groups:
    none = np.zeros(0, np.int64)
    return _Groups(np.zeros(0, np.uint64), none, none, np.zeros(0, np.float32), np.zeros(0, np.bool_))


def _grouped(keys: Uint64Array, scores: Float32Array, labels: Mask, k: int) -> _Groups:
    unique_keys, group, rows = np.unique(keys, return_inverse=True, return_counts=True)
    positives = np.bincount(group, weights=labels, minlength=len(unique_keys)).astype(np.int64)
    return _Groups(unique_keys, rows.astype(np.int64), positives, *_first(group, scores, labels, k))


def _joined(first: _Groups, second: _Groups, k: int) -> _Groups:
    """Return the groups of both, each once."""
    keys, group = np.unique(np.concatenate([first.keys, second.keys]), return_inverse=True)
    rows, positives = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    np.add.at(rows, group, np.concatenate([first.rows, second.rows]))
    np.add.at(positives, group, np.concatenate([first.positives, second.positives]))
    counts = np.concatenate([part.candidates_per_group(k) for part in (first, second)])
    scores = np.concatenate([first.scores, second.scores])
    labels = np.concatenate([first.labels, second.labels])
    return _Groups(keys, rows, positives, *_first(np.repeat(group, counts), scores, labels, k))


def _first(group: Int64Array, scores: Float32Array, labels: Mask, k: int) -> tuple[Float32Array, Mask]:
    """Return the first k rows of each group, in the order of the groups, whose places are `group`."""
    order = np.lexsort((labels, -scores, group))
    counts = np.bincount(group)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = order[rank < k]
    return scores[first], labels[first]


def _chosen(groups: _Groups, which: Mask, k: int) -> _Groups:
    if which.all():
        return groups
    of_candidates = np.repeat(which, groups.candidates_per_group(k))
    heads = (groups.keys[which], groups.rows[which], groups.positives[which])
    return _Groups(*heads, groups.scores[of_candidates], groups.labels[of_candidates])


def _arrays(
    data: bytes, groups: int, candidates: int
) -> tuple[Uint64Array, Int64Array, Int64Array, Float32Array, Mask]:
    """Return the arrays behind the header of as many bytes as they need."""
    eighths, start = 8 * groups, _HEADER.size
    keys = np.frombuffer(data, "<u8", groups, start).astype(np.uint64)
    rows = np.frombuffer(data, "<i8", groups, start + eighths).astype(np.int64)
    positives = np.frombuffer(data, "<i8", groups, start + 2 * eighths).astype(np.int64)
    scores = np.frombuffer(data, "<f4", candidates, start + 3 * eighths).astype(np.float32)
    labels = np.frombuffer(data, np.uint8, candidates, start + 3 * eighths + 4 * candidates) != 0
    return keys, rows, positives, scores, labels


def _check(groups: _Groups, k: int, most_rows: int) -> None:
    """Raise ValueError for groups that no rows have."""
    keys, rows, positives, scores, labels = groups
    if len(keys) and not (keys[0] > 0 and (keys[1:] > keys[:-1]).all()):
        raise ValueError("groups out of order")
    if not ((rows > 0) & (rows <= most_rows) & (positives >= 0) & (positives <= rows)).all():
        raise ValueError("a group with a number of rows or positives that cannot be")
    # As floats, whose sum cannot wrap around.
    if rows.sum(dtype=np.float64) > most_rows or groups.candidates_per_group(k).sum() != len(scores):
        raise ValueError("groups of another number of rows")
    if not np.isfinite(scores).all():
        raise ValueError("a score that is not finite")
    place = np.repeat(np.arange(len(keys)), groups.candidates_per_group(k))
    hits = np.bincount(place, weights=labels, minlength=len(keys))
    misses = groups.candidates_per_group(k) - hits
    same = place[1:] == place[:-1]
    falls = (scores[1:] < scores[:-1]) | ((scores[1:] == scores[:-1]) & (labels[1:] >= labels[:-1]))
    if not (falls[same].all() and (hits <= positives).all() and (misses <= rows - positives).all()):
        raise ValueError("candidates out of order, or more of them than rows")
