"""Jobs that go on until something happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from shadowsync.nodes.clients.requests import end_input
from shadowsync.nodes.clients.watched_job import address_of
from shadowsync.pipeline.errors import ClusterError
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
from shadowsync.tests.support.jobs.processes import Starter, wait_until
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise, Supervised

AnyCluster: TypeAlias = Cluster | InProcessCluster
AnyClusterMaker: TypeAlias = Callable[..., AnyCluster]
# More than any machine trains in the time of a test.
ENDLESS = {"epochs": 10_000}
# Goes on until its input is ended, and has trained all of the click log by then.
FOLLOWING = {"follow": True}
# Only a trainer and an embedding node have to import torch.
FEW_NODES: dict[str, dict[str, Any]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.matrix)])
def cluster(request: pytest.FixtureRequest) -> AnyClusterMaker:
    """A cluster whose nodes can be killed: in this process, and for `make faults` also of real processes."""
    name = "in_process" if request.param == "threads" else "processes"
    make: AnyClusterMaker = request.getfixturevalue(name)
    return make


@pytest.fixture
def supervise(starter: Starter, job_file: JobMaker, tmp_path: Path) -> Supervise:
    """Starts `shadowsync run` on an endless job of few nodes, with changes."""

    def start(changes: dict[str, dict[str, Any]] | None = None) -> Supervised:
        job = job_file(FEW_NODES | {"data": ENDLESS} | (changes or {}))
        return Supervised(starter.fork("run", str(job)), tmp_path / "runs")

    return start


def goes_on_with_another(job: Supervised, role: str, joined: str) -> None:
    """Kill a job's node; its supervisor starts another one, which the coordinator's log names."""
    job.wait_for_batches(20)
    job.node(role).kill()
    wait_until(lambda: job.run.logged(joined), joined)
    job.wait_for_batches(job.run.batches() + 100)


def finish_input(job: Supervised) -> None:
    """End the input of a job of FOLLOWING, once it has a coordinator that answers."""

    def is_ended() -> bool:
        try:
            asyncio.run(end_input(address_of(job.run.folder, None)))
        except ClusterError:
            return False
        return True

    wait_until(is_ended, "a coordinator answers")


def replace_embedding_nodes(own: AnyCluster, count: int = 1) -> None:
    """Kill so many embedding nodes, and have others join once the coordinator knows of it."""
    for node in own.nodes["embedding"][:count]:
        node.kill()
    wait_until(lambda: len(dead_embedding_nodes(own.run)) == count, "the coordinator knows of it")
    for _ in range(count):
        own.join("embedding")


def dead_embedding_nodes(run: RunFolder) -> set[str]:
    """The embedding nodes that the coordinator has declared dead."""
    names = {f"embedding-{number}" for number in range(4)}
    texts = (line["text"] for line in run.log("coordinator"))
    silent = [text for text in texts if "was silent for" in text]
    return {name for name in names if any(f"{name}: " in text for text in silent)}
