"""Measurements of a job as a profile gathers them, with numbers of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadowsync.pipeline.performance.measurements import NodeMeasurements, ProfileMeasurements, ThreadTime
from shadowsync.pipeline.performance.plan_basis import PlanBasis

SECONDS = 10.0
# Of two workers in ten seconds: 18 s of steps, all on a core.
COMPUTING = {
    "trained_examples": 51_200.0,
    "compute_seconds": 18.0,
    "compute_cpu_seconds": 18.0,
    "wait_for_reader_seconds": 0.4,
    "wait_for_vectors_seconds": 0.6,
    "wait_for_pushes_seconds": 0.0,
    "wait_for_sync_seconds": 0.0,
}


def node(role: str, counts: Mapping[str, float] | None = None, **more: Any) -> NodeMeasurements:
    """A node with an idle thread."""
    standard: dict[str, Any] = {
        "name": f"{role}-0",
        "role": role,
        "machine": "here",
        "cores": 4,
        "seconds": SECONDS,
        "cpu_seconds": 1.0,
        "stalled_share": 0.0,
        "locked_share": 0.0,
        "threads": {},
        "counts": dict(counts or {}),
    }
    return NodeMeasurements(**(standard | more))


def threads(**times: tuple[float, float]) -> dict[str, ThreadTime]:
    """Seconds on a core and waiting for one by thread; "_" in a name stands for "-"."""
    return {
        name.replace("_", "-"): ThreadTime(cpu_seconds=cpu, core_wait_seconds=wait)
        for name, (cpu, wait) in times.items()
    }


def measured(
    trainer: Mapping[str, float] | None = None,
    *,
    trainer_more: Mapping[str, Any] | None = None,
    reader: NodeMeasurements | None = None,
    embedding: NodeMeasurements | None = None,
) -> ProfileMeasurements:
    """A job of one trainer with two workers that compute, but for what is given. Its reader waits for credit
    and its embedding node is occupied a tenth of the time."""
    return ProfileMeasurements(
        run="planted",
        seconds=SECONDS,
        workers=2,
        batch=512,
        sync="easgd, shadow",
        basis=PlanBasis(
            model_digest="", settings={}, rows_bytes=0, embedding_threads=1, machine_memory_bytes=0
        ),
        nodes=[
            node("trainer", COMPUTING | dict(trainer or {}), **dict(trainer_more or {})),
            reader or node("reader", {"parse_seconds": 1.0, "wait_for_credit_seconds": 9.0}),
            embedding or node("embedding", {"busy_seconds": 1.0, "handled_messages": 100.0}),
        ],
    )
