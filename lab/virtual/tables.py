"""The embedding rows of an emulated job: one store, whose replies take virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ...pipeline.config.job import Job
from ...pipeline.embedding.in_flight.applied_pushes import AppliedPushes, parse_applied
from ...pipeline.embedding.in_flight.id_finder import IdFinder
from ...pipeline.embedding.in_flight.rows_in_flight import Answer, RowsInFlight
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.types import BatchId, Float32Array
from .clock import ArrivalOrder
from .timing import Timing

MEMORY_FRACTION = 0.8
_NODE: Final = "embedding-0"


@dataclass(slots=True)
class VirtualRows:
    """The rows of a batch.

    Attributes:
        plans: its requests.
        answers: one for each.
        version: pushes of all trainers that the rows contain.
        ticket: see `RowsInFlight`; 0 if it is not to be completed.
    """

    plans: Sequence[LookupPlan]
    answers: list[Answer]
    version: int
    ticket: int = 0

    @property
    def values(self) -> list[Float32Array]:
        """Vectors of each request, float32 [floats]."""
        return [answer.values for answer in self.answers]


@dataclass(frozen=True, slots=True)
class Sender:
    """Whose a push or a lookup is, and which of its pushes.

    Attributes:
        sequence, answered_below: see `messages.Push`; 0 for rows that are not exact.
    """

    trainer: str
    worker: int
    sequence: int = 0
    answered_below: int = 0


class VirtualTables:
    """One embedding node with all rows.

    Lookups and pushes are handled in the order in which they arrive, as on a node.

    Attributes:
        plan: all rows on one node.
    """

    def __init__(self, job: Job, timing: Timing) -> None:
        self.plan = TablePlan.make(job.tables, 1)
        self._store = ShardStore(
            self.plan, 0, seed=job.run.seed, memory_fraction=MEMORY_FRACTION, clock=_virtual_seconds
        )
        self._timing = timing
        self._arrivals = ArrivalOrder()
        self._applied = AppliedPushes()
        self._pushes = 0
        self._staleness_sum = 0

    @property
    def staleness(self) -> float:
        """Return the mean number of pushes that a batch's rows lacked when its own was applied."""
        return self._staleness_sum / max(1, self._pushes)

    async def look_up(self, plans: Sequence[LookupPlan], sender: Sender, ticket: int) -> VirtualRows:
        """Return the rows of a batch, with their state if it has a ticket."""
        await self._arrivals.wait(self._timing.lookup_seconds)
        applied = self._applied.of_trainer(sender.trainer)
        answers = [self._answer(plan, applied, with_state=ticket > 0) for plan in plans]
        rows = VirtualRows(plans, answers, self._pushes, ticket)
        await asyncio.sleep(self._timing.lookup_seconds)
        return rows

    def read(self, plan: LookupPlan) -> Float32Array:
        """Return vectors as they are now."""
        return self._answer(plan, (), with_state=False).values

    async def push(
        self,
        rows: VirtualRows,
        gradients: Sequence[Float32Array],
        scale: float,
        batch: BatchId,
        sender: Sender,
    ) -> None:
        """Apply a batch's gradients; return when its worker has the reply."""
        await self._arrivals.wait(self._timing.push_seconds)
        self._staleness_sum += max(0, self._pushes - rows.version)
        self._pushes += 1
        for plan, values in zip(rows.plans, gradients, strict=True):
            self._store.apply(plan.rows, values, plan.counts, scale, plan.bag_lengths, batch, plan.keys)
        if sender.sequence:
            self._applied.add(sender.trainer, sender.worker, sender.sequence, sender.answered_below)
        await asyncio.sleep(self._timing.push_seconds)

    def _answer(self, plan: LookupPlan, applied: Sequence[int], *, with_state: bool) -> Answer:
        requested, counts, lengths = len(plan.rows) + len(plan.keys), plan.counts, plan.bag_lengths
        floats = self._store.state_floats_of(requested, counts, lengths) if with_state else 0
        values, state = np.empty(plan.floats, np.float32), np.empty(floats, np.float32)
        work = self._store.lookup_work(
            plan.rows, values, counts, lengths, plan.keys, state if with_state else None
        )
        work.run(0, 1)
        work.finish()
        return Answer(0, values, state, work.absent, parse_applied(applied))


class VirtualTableClient:
    """One worker's requests to the tables, as `EmbeddingClient` makes them.

    Args:
        rows: makes the rows of batches exact; None to take them as the tables answer.
    """

    def __init__(self, tables: VirtualTables, rows: RowsInFlight | None, trainer: str, worker: int) -> None:
        self._tables, self._rows, self._finder = tables, rows, IdFinder()
        if rows is not None:
            rows.connect(0, _NODE)
        self._sender = Sender(trainer, worker)
        self._sequence = 0
        self._unanswered: set[int] = set()

    def look_up(self, plans: Sequence[LookupPlan]) -> asyncio.Task[VirtualRows]:
        """Request the rows of a batch."""
        ticket = 0 if self._rows is None else self._rows.begin()
        return asyncio.create_task(self._tables.look_up(plans, self._sender, ticket))

    def complete(self, rows: VirtualRows) -> None:
        """Add the trainer's own pushes to the rows of a batch, before its step."""
        if self._rows is None:
            return
        lacking = [
            self._rows.complete(plan, answer, self._finder)
            for plan, answer in zip(rows.plans, rows.answers, strict=True)
        ]
        # So that staleness does not count what is known.
        rows.version += max(lacking, default=0)
        self._rows.end(rows.ticket)

    def push(
        self, rows: VirtualRows, gradients: Sequence[Float32Array], scale: float, batch: BatchId
    ) -> asyncio.Task[None]:
        """Send the gradients of a batch."""
        sender = self._sender if self._rows is None else self._record(rows, gradients, scale, batch)

        async def send() -> None:
            await self._tables.push(rows, gradients, scale, batch, sender)
            if self._rows is not None:
                self._unanswered.discard(sender.sequence)
                for plan in rows.plans:
                    self._rows.answered(
                        plan.node, sender.worker, sender.sequence, _NODE, changed=True, is_resent=False
                    )

        return asyncio.create_task(send())

    def _record(
        self, rows: VirtualRows, gradients: Sequence[Float32Array], scale: float, batch: BatchId
    ) -> Sender:
        """Record a push, and return its sender."""
        assert self._rows is not None
        self._sequence += 1
        self._unanswered.add(self._sequence)
        for plan, answer, values in zip(rows.plans, rows.answers, gradients, strict=True):
            self._rows.pushed(
                plan,
                answer,
                values,
                worker=self._sender.worker,
                sequence=self._sequence,
                lr_scale=scale,
                batch=batch,
                again=False,
            )
        return replace(self._sender, sequence=self._sequence, answered_below=min(self._unanswered))


def _virtual_seconds() -> float:
    """Return the time of the emulation; 0 before it begins."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
