"""Jobs on a Ray cluster of a test, and their accounts."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.pipeline.data.generator.generator import generate_log

from .processes import wait_until
from .ray_cluster import nodes_on
from .runs import RunFolder, Settings, small_job, write_job

EXAMPLES = 100_000
NODES = {"reader": 1, "trainer": 2, "embedding": 2, "sync": 1}
# Of a busy machine; nothing waits for so long otherwise.
SECONDS = 600.0
PATIENT: dict[str, Any] = {
    "start_timeout_seconds": 300.0,
    "rejoin_seconds": 300.0,
    "node_timeout_seconds": 30.0,
}


RAY_TESTS = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="the extra ray is not installed: make ray installs it"
    ),
]


def write_ray_log(folder: Path) -> Path:
    """The log of the jobs, in `folder`."""
    generate_log(folder, examples=EXAMPLES, eval_examples=4000, seed=1, data_format="parquet", files=2)
    return folder


def write_ray_job(folder: Path, log: Path, changes: Settings | None = None) -> Path:
    """The file of a job of NODES, which runs in `folder`."""
    base: dict[str, Mapping[str, Any]] = {"embedding": {"nodes": 2}, "run": PATIENT}
    return write_job(folder / "job.toml", small_job(log, folder / "runs"), {**base, **(changes or {})})


def accounts(run: RunFolder) -> dict[str, Any]:
    """What must not depend on where the nodes were."""
    report = run.report
    assert report.ledger.adds_up, report.ledger.identities
    counted = report.examples
    return {
        "read": counted.read,
        "trained": counted.trained,
        "batches": run.batches(),
        "evaluated": report.eval is not None,
    }


def actor_of(raylet: psutil.Process, role: str) -> psutil.Process:
    """The process of the actor that has a node of this role."""
    wait_until(lambda: bool(nodes_on(raylet, role)), f"a {role} runs")
    actor = nodes_on(raylet, role)[0].parent()
    assert actor is not None
    assert "NodeHost" in " ".join(actor.cmdline())
    return actor
