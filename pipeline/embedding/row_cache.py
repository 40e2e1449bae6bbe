"""A worker's copies of hot rows: what they spare of lookups, and the bound of their staleness."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..data.batch import Float32Array, Int32Array
from ..errors import ResourceError
from ..memory import available_memory_bytes
from .cached_bank import ABSENT, CachedBank, Versions, slot_bytes, slots_of
from .lookup import LookupPlan, Places
from .plan import TablePlan

UNKNOWN = -1


@dataclass(slots=True, eq=False)
class CachedLookup:
    """What is asked of a node for one batch, beside what the cache had.

    Attributes:
        request: the whole of it.
        answer: float32 [floats of the request]; complete once `RowCache.take` gives None.
        missing: for each bank which of its single rows are asked for: int64, ascending.
        versions: for each bank int64 [single rows]: see `CachedBank.find`.
        rows: int32 [N]: what is asked for, as in `messages.Lookup`.
        counts: likewise.
        bag_lengths: likewise.
        floats: how many the node answers.
        known: the node's count of pushes, as far as was known when this was asked; at first UNKNOWN.
        again: whether this asks again for rows whose copies were too old, and for nothing else.
        oldest: the least count of pushes that any part of the answer was read at, once it is complete.
    """

    request: LookupPlan
    answer: Float32Array
    missing: list[Places]
    versions: list[Versions]
    rows: Int32Array
    counts: tuple[int, ...]
    bag_lengths: Int32Array
    floats: int
    known: int
    again: bool
    oldest: int = 0


class RowCache:
    """Of one worker and one embedding node. Owned by the worker's thread.

    A copy serves a batch only if the node had applied at most `staleness` pushes, of whomever, between the
    lookup that it came from and the batch's own: each batch asks the node, at least for its count of pushes,
    and when the answer says that a copy is older, its row is asked for again before the batch is trained. So
    the cache adds at most `staleness` to what the rows' staleness is without it. A worker's own pushes do not
    change its copies: what a push does is known to the node alone, which has the optimizer's state.

    Bags and batches of an evaluation go past it.

    Attributes:
        hits: distinct rows of batches that copies served.
        misses: distinct rows of batches that were asked for.
        refreshed: of those, how many a copy that turned out to be too old was found for first.
        spared_floats: of the vectors of `hits`.
    """

    def __init__(self, banks: list[CachedBank], staleness: int) -> None:
        self._banks = banks
        self._staleness = staleness
        self._known = UNKNOWN
        self._drift = 0
        self.hits = self.misses = self.refreshed = self.spared_floats = 0

    def begin(self, request: LookupPlan) -> CachedLookup:
        """What is to be asked for a batch whose `request` is for distinct rows."""
        answer = np.empty(request.floats, np.float32)
        # As many pushes as lately will have come between; a copy that is too old by then costs a round trip.
        oldest = self._known + self._drift - self._staleness
        missing, versions = [], []
        for bank, rows, out in self._parts(request, answer):
            found = bank.find(rows, max(0, oldest), out)
            versions.append(found)
            missing.append(np.flatnonzero(found == ABSENT))
        self._count(request, missing, again=False)
        return self._lookup(request, answer, missing, versions, again=False)

    def take(self, asked: CachedLookup, values: Float32Array, version: int) -> CachedLookup | None:
        """The node's answer to `asked`, read at `version`; gives what must be asked for again, if anything.

        Args:
            values: float32 [asked.floats].
        """
        self._keep(asked, values, version)
        self._known = max(self._known, version)
        for missing, versions in zip(asked.missing, asked.versions, strict=True):
            versions[missing] = version
        if not asked.again:
            if asked.known != UNKNOWN:
                self._drift = max(version - asked.known, self._drift * 7 // 8)
            stale = [np.flatnonzero(found < version - self._staleness) for found in asked.versions]
            if any(map(len, stale)):
                self._count(asked.request, stale, again=True)
                return self._lookup(asked.request, asked.answer, stale, asked.versions, again=True)
        asked.oldest = min(int(versions.min(initial=version)) for versions in asked.versions)
        return None

    def _count(self, request: LookupPlan, places: list[Places], *, again: bool) -> None:
        for bank, asked_for in zip(request.banks, places, strict=True):
            count = len(asked_for)
            served = -count if again else bank.share.single - count
            self.hits += served
            self.spared_floats += served * bank.share.dim
            self.misses += count
            self.refreshed += count * again

    def _lookup(
        self,
        request: LookupPlan,
        answer: Float32Array,
        missing: list[Places],
        versions: list[Versions],
        *,
        again: bool,
    ) -> CachedLookup:
        """Of the rows in `missing`, and but for `again` of all bags."""
        parts, counts, floats, at = [], [], 0, 0
        for bank, places in zip(request.banks, missing, strict=True):
            share = bank.share
            bags, sums = (0, 0) if again else (share.bag_rows, share.pieces * share.batch)
            parts.append(request.rows[at : at + share.single][places])
            parts.append(request.rows[at + share.single : at + share.single + bags])
            counts.append(len(places) + bags)
            floats += (len(places) + sums) * share.dim
            at += share.rows
        return CachedLookup(
            request=request,
            answer=answer,
            missing=missing,
            versions=versions,
            rows=np.concatenate(parts),
            counts=tuple(counts) if len(counts) > 1 else (),
            bag_lengths=request.bag_lengths[:, :0] if again else request.bag_lengths,
            floats=floats,
            known=self._known,
            again=again,
        )

    def _keep(self, asked: CachedLookup, values: Float32Array, version: int) -> None:
        """Puts what was answered into the batch's answer, and its rows into the cache."""
        taken, at = 0, 0
        for part, lookup, places in zip(
            self._parts(asked.request, asked.answer), asked.request.banks, asked.missing, strict=True
        ):
            bank, rows, out = part
            share = lookup.share
            fresh = values[taken : taken + len(places) * share.dim].reshape(len(places), share.dim)
            taken += fresh.size
            out[places] = fresh
            bank.put(rows[places], fresh, version)
            if not asked.again:
                sums = asked.answer[at + out.size : at + share.floats]
                sums[:] = values[taken : taken + sums.size]
                taken += sums.size
            at += share.floats

    def _parts(
        self, request: LookupPlan, answer: Float32Array
    ) -> list[tuple[CachedBank, Int32Array, Float32Array]]:
        """For each bank its single rows, and their part of the answer, [rows, dim]."""
        parts, at, floats = [], 0, 0
        for bank, lookup in zip(self._banks, request.banks, strict=True):
            share = lookup.share
            size = share.single * share.dim
            out = answer[floats : floats + size].reshape(share.single, share.dim)
            parts.append((bank, request.rows[at : at + share.single], out))
            at, floats = at + share.rows, floats + share.floats
        return parts


def make_caches(plan: TablePlan, rows: int, staleness: int) -> list[RowCache]:
    """A worker's caches, one for each node, of so many rows in all; none if `rows` is 0.

    A table with one row an example has the same share of them as any other; tables with bags have none.

    Raises:
        ResourceError: they would not fit into the memory that is available now.
    """
    if not rows:
        return []
    weights = [[0.0] * len(plan.banks) for _ in range(plan.nodes)]
    for piece in plan.pieces:
        if not plan.tables[piece.table].pooling:
            weights[piece.node][piece.bank] += len(piece) / plan.tables[piece.table].rows
    total = sum(map(sum, weights)) or 1.0
    slots = [
        [
            slots_of(int(rows * weight / total), plan.bank_rows(node, number))
            for number, weight in enumerate(own)
        ]
        for node, own in enumerate(weights)
    ]
    _require_memory(plan, slots)
    return [
        RowCache(
            [
                CachedBank(count, plan.bank_rows(node, number), bank.dim)
                for number, (count, bank) in enumerate(zip(own, plan.banks, strict=True))
            ],
            staleness,
        )
        for node, own in enumerate(slots)
    ]


def _require_memory(plan: TablePlan, slots: list[list[int]]) -> None:
    needed = sum(
        count * slot_bytes(bank.dim) for own in slots for count, bank in zip(own, plan.banks, strict=True)
    )
    available = available_memory_bytes()
    if needed > available:
        raise ResourceError(
            f"a worker's copies of {sum(map(sum, slots)):,} rows take {needed:,} bytes, and {available:,} "
            "bytes are available",
            where="trainer.cache_rows",
            remedy="lower it, or have fewer workers on a host",
        )
