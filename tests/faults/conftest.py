"""Jobs that go on until something happens to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from shadowsync.tests.support.cluster import Cluster
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.processes import Starter
from shadowsync.tests.support.runs import JobMaker
from shadowsync.tests.support.supervised import Supervised

AnyCluster: TypeAlias = Cluster | InProcessCluster
# More than any machine trains in the time of a test.
ENDLESS = {"epochs": 10_000}
# Only a trainer and an embedding node have to import torch.
FEW_NODES: dict[str, dict[str, Any]] = {"trainer": {"count": 1}, "sync": {"algorithm": "none"}}


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.matrix)])
def cluster(request: pytest.FixtureRequest) -> Callable[..., AnyCluster]:
    """A cluster whose nodes can be killed: in this process, and for `make faults` also of real processes."""
    name = "in_process" if request.param == "threads" else "processes"
    make: Callable[..., AnyCluster] = request.getfixturevalue(name)
    return make


@pytest.fixture
def supervise(starter: Starter, job_file: JobMaker, tmp_path: Path) -> Callable[..., Supervised]:
    """Starts `shadowsync run` on an endless job of few nodes, with changes."""

    def start(changes: dict[str, dict[str, Any]] | None = None) -> Supervised:
        job = job_file(FEW_NODES | {"data": ENDLESS} | (changes or {}))
        return Supervised(starter.fork("run", str(job)), tmp_path / "runs")

    return start
