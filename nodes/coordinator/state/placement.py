"""Placement of rows on embedding nodes, planned before any node joins. Imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from ....pipeline.config.job import Job
from ....pipeline.config.tables import TableSettings
from ....pipeline.data.batch import Batch
from ....pipeline.data.span import Span
from ....pipeline.embedding.placement.plan import TablePlan
from ....pipeline.embedding.placement.row_costs import (
    CountedRowCosts,
    LookupTraffic,
    RowCostModel,
    TableCost,
    TimedRowCosts,
    table_cost,
)
from ....pipeline.embedding.placement.split_by_cost import TableLoad, split_by_cost, width_bytes
from ....pipeline.embedding.placement.table_access import AccessCounter, TableAccess
from ....pipeline.input.sample import take_sample
from ....pipeline.report.placement import How, PlacedNode, PlacedPiece, PlacedTable, PlanRecord

SAMPLE_EXAMPLES = 8192
SAMPLE_BYTES = 32 << 20
SAMPLE_SECONDS = 1.0
PRICING_SECONDS = 0.2
CODED_FLOATS = 1024

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TableProfile:
    """A table as sampled, and the cost of its lookups."""

    access: TableAccess
    cost: TableCost

    def load(self, table: TableSettings) -> TableLoad:
        """Return the load for the split, in picoseconds per example."""
        access = self.access
        return TableLoad.of_counts(table.rows, access.edges, access.counts, round(self.cost.total_ns * 1000))


@dataclass(frozen=True)
class TablePlacement:
    """A plan of the tables, and how it was found.

    Attributes:
        profiles: one a table; empty where nothing was sampled.
        examples: how many were.
    """

    plan: TablePlan
    how: How
    profiles: tuple[TableProfile, ...] = ()
    examples: int = 0

    @classmethod
    def by_rows(cls, job: Job) -> TablePlacement:
        """Split by the tables' sizes alone; raises JobFileError as `TablePlan.of_ranges`."""
        return cls(TablePlan.make(job.tables, job.embedding.nodes), "rows")

    @classmethod
    def find(cls, job: Job, spans: Sequence[Span], saved: TablePlan | None = None) -> TablePlacement:
        """Find the plan as `embedding.placement` says; `saved` is that of a resumed run's checkpoint.

        Reads a sample of the input and times some rows, for about SAMPLE_SECONDS and PRICING_SECONDS, so a
        loop calls it on another thread. With `run.deterministic` it looks at no clock: the sample is then
        always the same, and so are the costs. Raises JobFileError as `TablePlan.of_ranges`.
        """
        if saved is not None:
            return cls(saved, "kept")
        nodes, tables = job.embedding.nodes, job.tables
        if nodes == 1 or job.embedding.placement == "rows":
            return cls.by_rows(job)
        counter = _sampled(job, spans)
        if not counter.examples:
            log.warning("no example of the input could be sampled, so the tables are split by their rows")
            return cls.by_rows(job)
        prices: RowCostModel = (
            CountedRowCosts() if job.run.deterministic else TimedRowCosts.measure(PRICING_SECONDS)
        )
        traffic = _traffic(job)
        profiles = tuple(
            TableProfile(access, table_cost(table, access, prices, traffic))
            for table, access in zip(tables, counter.result(), strict=True)
        )
        loads = [profile.load(table) for profile, table in zip(profiles, tables, strict=True)]
        plan = TablePlan.of_ranges(tables, nodes, split_by_cost(tables, loads, nodes))
        return cls(plan, "counted" if job.run.deterministic else "measured", profiles, counter.examples)

    @classmethod
    def of_before(cls, job: Job, plan: dict[str, Any], how: str) -> TablePlacement:
        """Restore the plan of a dead coordinator."""
        found = TablePlan.from_body(job.tables, job.embedding.nodes, plan)
        return cls(found, next(known for known in get_args(How) if known == how))

    def record(self) -> PlanRecord:
        """Return the content of plan.json."""
        return PlanRecord(
            how=self.how,
            sampled_examples=self.examples,
            digest=self.plan.digest,
            nodes=[self.node(number) for number in range(self.plan.nodes)],
            tables=[self._table(number) for number in range(len(self.plan.tables))],
        )

    def node(self, number: int) -> PlacedNode:
        """Return what a node keeps."""
        pieces, tables = self.plan.pieces_of(number), self.plan.tables
        cost = 0
        for piece in pieces if self.profiles else ():
            load = self.profiles[piece.table].load(tables[piece.table])
            cost += load.between(piece.start, piece.stop)
        return PlacedNode(
            name=f"embedding-{number}",
            pieces=len(pieces),
            rows=self.plan.rows_of(number),
            bytes=sum(len(piece) * width_bytes(tables[piece.table]) for piece in pieces),
            expected_ns=cost / 1000 if self.profiles else None,
        )

    def _table(self, number: int) -> PlacedTable:
        table = self.plan.tables[number]
        profile = self.profiles[number] if self.profiles else None
        access, cost = (profile.access, profile.cost) if profile else (None, None)
        return PlacedTable(
            name=table.name,
            rows=table.rows,
            dim=table.dim,
            pooling=table.pooling,
            optimizer=table.optimizer,
            storage=table.storage,
            rows_per_example=access.rows_per_example if access else None,
            distinct_per_example=access.distinct_per_example if access else None,
            head_share=access.head_share if access else None,
            lookup_ns=cost.lookup_ns if cost else None,
            update_ns=cost.update_ns if cost else None,
            wire_ns=cost.wire_ns if cost else None,
            pieces=[
                PlacedPiece(node=f"embedding-{piece.node}", start=piece.start, stop=piece.stop)
                for piece in sorted(self.plan.pieces, key=lambda piece: piece.start)
                if piece.table == number
            ],
        )


def _traffic(job: Job) -> LookupTraffic:
    """Return what the job's trainers look up."""
    vector, link = np.ones(CODED_FLOATS, np.float32), job.codecs.embedding()
    coded = sum(len(codec.encode(vector)) for codec in (link.up, link.down))
    return LookupTraffic(distinct=job.trainer.distinct_rows, float_bytes=coded / 2 / CODED_FLOATS)


def _sampled(job: Job, spans: Sequence[Span]) -> AccessCounter:
    counter = AccessCounter(job.tables)

    def add(batch: Batch) -> bool:
        counter.add(batch)
        return counter.bytes < SAMPLE_BYTES

    seconds = None if job.run.deterministic else SAMPLE_SECONDS
    take_sample(job, spans, add, examples=SAMPLE_EXAMPLES, seconds=seconds)
    return counter
