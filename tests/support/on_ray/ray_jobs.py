"""Jobs on a Ray cluster of a test, and their accounts."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.pipeline.data.generator.generator import generate_log

from ..jobs.processes import Process, Spawned, wait_until
from ..jobs.runs import RunFolder, Settings, small_job, write_job
from ..jobs.supervised import Supervised
from .ray_cluster import RayCluster, nodes_on
from .slowed_model import SlowedModel

EXAMPLES = 100_000
NODES = {"reader": 1, "trainer": 2, "embedding": 2, "sync": 1}
# So that there is time while it trains.
ENDLESS: Settings = {"data": {"epochs": 10_000}}
# Of a job that `slowed` has trained slowly.
EPOCHS = 2
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


def slowed(file: Path) -> Settings:
    """A job that trains slowly until `file`, which this makes, is removed."""
    file.touch()
    model = f"{SlowedModel.__module__}:{SlowedModel.__qualname__}"
    sizes = {"bottom": None, "top": None, "output_bias": "label_rate"}
    return {"data": {"epochs": EPOCHS}, "model": {"name": model, "options": {"file": str(file)}, **sizes}}


def write_ray_log(folder: Path) -> Path:
    """The log of the jobs, in `folder`."""
    generate_log(folder, examples=EXAMPLES, eval_examples=4000, seed=1, data_format="parquet", files=2)
    return folder


def write_ray_job(folder: Path, log: Path, changes: Settings | None = None) -> Path:
    """The file of a job of NODES, which runs in `folder`."""
    base: dict[str, Mapping[str, Any]] = {"embedding": {"nodes": 2}, "run": PATIENT}
    return write_job(folder / "job.toml", small_job(log, folder / "runs"), {**base, **(changes or {})})


@contextmanager
def ray_jobs(ray: RayCluster, log: Path, folder: Path) -> Iterator[Callable[..., Supervised]]:
    """Starts jobs in a folder with some changes and options, on the cluster or on this machine."""
    started: list[Process] = []

    def start(changes: Settings | None = None, *options: str) -> Supervised:
        job = write_ray_job(folder, log, changes)
        command = [sys.executable, "-m", "shadowsync.cli", "run", str(job), *options]
        started.append(Spawned(command, ray.environment, folder, folder / f"{len(started)}.txt"))
        return Supervised(started[-1], folder / "runs")

    try:
        yield start
    finally:
        for process in started:
            process.end()


def key_of(job: Supervised) -> str:
    """The path of the key that the job has made."""
    return job.process.text().partition(": --key ")[2].partition("\n")[0]


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
