"""Placement of rows on embedding nodes, before any node joins.

Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ....pipeline.config.job import Job
from ....pipeline.config.tables import TableSettings, bytes_in_memory
from ....pipeline.embedding.placement.plan import TablePlan
from ....pipeline.embedding.placement.row_costs import (
    TableCost,
)
from ....pipeline.embedding.placement.split_by_cost import TableLoad
from ....pipeline.embedding.placement.table_access import TableAccess
from ....pipeline.report.tables.placement import How, PlacedNode, PlacedPiece, PlacedTable, PlanRecord


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
        profiles: one per table; empty if nothing was sampled.
        examples: number of sampled examples.
        memory_bytes: `embedding.memory_bytes`.
    """

    plan: TablePlan
    how: How
    profiles: tuple[TableProfile, ...] = ()
    examples: int = 0
    memory_bytes: int = 0

    @classmethod
    def by_rows(cls, job: Job) -> TablePlacement:
        """Split by the tables' sizes alone; raises JobFileError like `TablePlan.of_ranges`."""
        plan = TablePlan.make(job.tables, job.embedding.nodes)
        return cls(plan, "rows", memory_bytes=job.embedding.memory_bytes)

    @classmethod
    def of_before(cls, job: Job, plan: dict[str, Any], how: str) -> TablePlacement:
        """Restore the plan of a dead coordinator."""
        known_plan = TablePlan.from_body(job.tables, job.embedding.nodes, plan)
        known_how = next(known for known in get_args(How) if known == how)
        return cls(known_plan, known_how, memory_bytes=job.embedding.memory_bytes)

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
        sizes = [(tables[piece.table], len(piece) * tables[piece.table].row_bytes) for piece in pieces]
        return PlacedNode(
            name=f"embedding-{number}",
            pieces=len(pieces),
            rows=self.plan.rows_of(number),
            bytes=sum(size for _, size in sizes),
            memory_bytes=bytes_in_memory(sizes, self.memory_bytes),
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
            pooling=table.poolings,
            columns=[column.name for column in table.columns],
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
