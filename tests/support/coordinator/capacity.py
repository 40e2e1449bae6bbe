"""A profile with known costs, for tests of plans."""

from __future__ import annotations

from typing import Any

from shadowsync.lab.capacity.demands import Demands
from shadowsync.lab.capacity.prediction import JobRules
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.performance.measurements import ProfileMeasurements
from shadowsync.pipeline.performance.plan_basis import PlanBasis
from shadowsync.tests.support.jobs.profile_measurements import SECONDS, node, threads

GIB = 2.0**30
# Of one example: 20 us in a worker, 2 us in a reader, 4 us in embedding nodes, 0.5 us in the coordinator.
COSTS: dict[str, Any] = {
    "batch": 500,
    "step_seconds": 0.010,
    "locked_seconds": 0.001,
    "trainer_seconds": 20e-6,
    "parser_seconds": 2e-6,
    "reader_seconds": 2e-6,
    "shard_seconds": 4e-6,
    "writer_seconds": 0.0,
    "embedding_seconds": 4e-6,
    "coordinator_seconds": 0.5e-6,
    "round_cpu_seconds": 0.002,
    "shadow_seconds": 0.003,
    "round_seconds": 0.004,
    "center_seconds": 0.001,
    "sync_seconds": 0.002,
    "round_sent_bytes": 2e6,
    "round_received_bytes": 2e6,
    "delivered_bytes": 160.0,
    "pushed_bytes": 1700.0,
    "looked_up_bytes": 1700.0,
    "trainer_bytes": 0.3 * GIB,
    "embedding_bytes": 0.2 * GIB,
    "rows_bytes": 1.0 * GIB,
    "reader_bytes": 0.2 * GIB,
    "sync_bytes": 0.2 * GIB,
    "coordinator_bytes": 0.2 * GIB,
    "embedding_threads": 1,
}


def costs(**changed: Any) -> Demands:
    """Costs with some of them changed."""
    return Demands(**(COSTS | changed))


def rules(**changed: Any) -> JobRules:
    """A job of the shadow mode with sync nodes, with some of its rules changed."""
    standard: dict[str, Any] = {
        "lookups_ahead": 1,
        "credit": 4,
        "duty": 0.01,
        "gap": None,
        "every": 30,
        "link_bytes_per_second": None,
        "synchronizes": True,
        "fixed": False,
        "has_center": True,
    }
    return JobRules(**(standard | changed))


def profile_of(job: Job) -> Profile:
    """A profile of a job: in ten seconds two workers of a trainer trained 400,000 examples."""
    counts = {
        "trained_examples": 400_000.0,
        "compute_cpu_seconds": 16.0,
        "rounds": 50.0,
        "round_cpu_seconds": 0.1,
        "round_seconds": 0.25,
        "sync_sent_bytes": 1e8,
        "sync_received_bytes": 1e8,
        "from/reader-0": 4e7,
        "to/embedding-0": 8e7,
        "from/embedding-0": 4e6,
        "shared/embedding-0": 4e8,
    }
    trainer = {"memory_bytes": 3e8, "cpu_seconds": 18.15, "locked_share": 0.1}
    nodes = [
        node("trainer", counts, threads=threads(worker_0=(8.5, 0.0), worker_1=(8.5, 0.0), shadow=(0.15, 0.0)))
        .model_copy(update=trainer),
        node("reader", threads=threads(parser=(0.8, 0.0)), memory_bytes=2e8),
        node("embedding", threads=threads(shard=(1.6, 0.0)), cpu_seconds=2.0, memory_bytes=4e8),
        node("sync", threads=threads(center=(0.05, 0.0)), cpu_seconds=0.1, memory_bytes=2e8),
        node("coordinator", cpu_seconds=0.2, memory_bytes=1e8),
    ]  # fmt: skip
    measured = ProfileMeasurements(
        run="planted",
        seconds=SECONDS,
        workers=2,
        batch=job.trainer.batch,
        sync="easgd, shadow",
        basis=PlanBasis.of(job, int(16 * GIB)),
        nodes=nodes,
    )
    return Profile.of(measured, [], None)
