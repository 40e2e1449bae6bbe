"""Jobs whose processes are forked, and jobs whose processes are spawned."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.tests.support.processes import Starter, wait_until
from shadowsync.tests.support.runs import JobMaker
from shadowsync.tests.support.supervised import Supervised

ROLES = {"coordinator": False, "reader": False, "trainer": True, "embedding": True, "sync": True}


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.matrix)])
def test_a_job_trains_and_only_some_of_its_nodes_have_torch(
    method: str, starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    path = job_file({"data": {"epochs": 10_000}})
    process = starter.fork("run", str(path), "--quiet", environment={"SHADOWSYNC_START_METHOD": method})
    job = Supervised(process, tmp_path / "runs")
    job.wait_for_batches(5)
    for role, torch in ROLES.items():
        node = job.node(role)
        assert ("libtorch" in Path(f"/proc/{node.pid}/maps").read_text()) == torch, role
        parent = node.parent()
        assert parent is not None
        assert (parent.pid == process.pid) == (method == "spawn")
    process.signal(2)
    wait_until(lambda: process.poll() is not None, "the job ends")
    assert process.code == 130, process.text()
    assert job.run.report.ledger.adds_up
