"""Statuses of jobs that never were."""

from __future__ import annotations

from typing import Any

from shadowsync.watch.status import (
    CurvePart,
    Edge,
    LedgerFigures,
    NodeStatus,
    Progress,
    Quality,
    Speed,
    Status,
    SyncFigures,
)


def a_status(trainers: int = 2, **changes: Any) -> Status:
    """A job in the middle of training."""
    nodes = [NodeStatus(name="coordinator", role="coordinator", index=0, cpu=0.02, cpu_seconds=1.0, pid=1)]
    nodes += [
        NodeStatus(name="reader-0", role="reader", index=0, cpu=0.3, queued=4, retained_bytes=1_000_000)
    ]
    nodes += [
        NodeStatus(
            name=f"trainer-{index}",
            role="trainer",
            index=index,
            cpu=0.9,
            memory_bytes=300_000_000,
            examples_per_second=15_000.0,
            wait=0.1,
            rounds=20,
            gap_open=3,
        )
        for index in range(trainers)
    ]
    nodes += [NodeStatus(name="embedding-0", role="embedding", index=0, cpu=0.2, requests_per_second=60.0)]
    nodes += [NodeStatus(name="sync-0", role="sync", index=0, cpu=0.1, requests_per_second=30.0)]
    edges = [
        Edge(source=f"trainer-{index}", target=other, up=2e6, down=3e6)
        for index in range(trainers)
        for other in ("reader-0", "embedding-0", "sync-0")
    ]
    curves = {"ne": CurvePart(step=4096.0, start=0, points=[(4096.0, 0.9), (8192.0, 0.8), (12288.0, 0.7)])}
    given: dict[str, Any] = {
        "run": "a-job",
        "algorithm": "easgd",
        "mode": "shadow",
        "phase": "training",
        "seconds": 20.0,
        "progress": Progress(trained=12288, distinct=12288, total=50_000, exact=True, seconds_left=30.0),
        "speed": Speed(now=31_000.0, mean=30_000.0),
        "quality": Quality(ne=0.8, ne_recent=0.7),
        "sync": SyncFigures(rounds=40, gap_open=3, gap_mean=2.5, sent_bytes_per_second=2e6, divergence=0.02),
        "ledger": LedgerFigures(read=13_000, trained=12_288, distinct=12_288, in_flight=712),
        "nodes": nodes,
        "edges": edges,
        "curves": curves,
    }
    return Status(**(given | changes))
