"""What the workers of a trainer share, in a process by itself, without a coordinator that plans."""

from __future__ import annotations

from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan


def build_shared(job: Job) -> TrainerContext:
    """Its tables are split by their rows."""
    return TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))
