"""The embedding rows of an emulated job: one store, whose replies take virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.types import BatchId, Float32Array
from .clock import ArrivalOrder
from .timing import Timing

MEMORY_FRACTION = 0.8


class VirtualTables:
    """One embedding node with all rows.

    Lookups and pushes are handled in the order in which they arrive, as on a node.

    Attributes:
        plan: all rows on one node.
    """

    def __init__(self, job: Job, timing: Timing) -> None:
        self.plan = TablePlan.make(job.tables, 1)
        self._store = ShardStore(self.plan, 0, seed=job.run.seed, memory_fraction=MEMORY_FRACTION)
        self._timing = timing
        self._arrivals = ArrivalOrder()
        self._pushes = 0
        self._staleness_sum = 0

    @property
    def staleness(self) -> float:
        """Return the mean number of pushes between a lookup and its push."""
        return self._staleness_sum / max(1, self._pushes)

    async def look_up(self, plans: Sequence[LookupPlan]) -> tuple[list[Float32Array], int]:
        """Return the vectors of a batch and the version of its rows."""
        await self._arrivals.wait(self._timing.lookup_seconds)
        replies = [self.read(plan) for plan in plans]
        version = self._pushes
        await asyncio.sleep(self._timing.lookup_seconds)
        return replies, version

    def read(self, plan: LookupPlan) -> Float32Array:
        """Return vectors as they are now."""
        out = np.empty(plan.floats, np.float32)
        self._store.lookup(plan.rows, out, plan.counts, plan.bag_lengths, plan.keys)
        return out

    async def push(
        self,
        plans: Sequence[LookupPlan],
        gradients: Sequence[Float32Array],
        version: int,
        scale: float,
        batch: BatchId,
    ) -> None:
        """Apply a batch's gradients; return when its worker has the reply."""
        await self._arrivals.wait(self._timing.push_seconds)
        self._staleness_sum += self._pushes - version
        self._pushes += 1
        for plan, values in zip(plans, gradients, strict=True):
            self._store.apply(plan.rows, values, plan.counts, scale, plan.bag_lengths, batch, plan.keys)
        await asyncio.sleep(self._timing.push_seconds)
