"""A killed node is started again, as an engine does, before the coordinator has noticed its silence."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

ROLES = ("embedding", pytest.param("sync", marks=pytest.mark.matrix))


def _changes(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"run": {"node_timeout_seconds": 2.0}, "data": data, "embedding": {"nodes": 2}}


@pytest.mark.matrix
@pytest.mark.parametrize("role", ROLES)
def test_it_waits_for_the_place_of_the_dead_one(in_process: ClusterMaker, role: str) -> None:
    slowed = Slowed(40, 1.0)
    own = in_process(_changes({"epochs": 1}), faults=(slowed,)).start()
    own.wait_for_batches(30)
    dead = own.nodes[role][0]
    dead.kill()
    own.join(role)
    joined = f"{role}-{len(own.nodes[role]) - 1}: joined the running job"
    wait_until(lambda: own.run.logged(joined) or own.coordinator.poll() is not None, joined)
    slowed.release()
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert own.run.logged(f"{dead.name}: was silent for 2 s")


@pytest.mark.parametrize("role", ROLES)
def test_without_a_death_it_is_refused(in_process: ClusterMaker, role: str) -> None:
    """The control: all that hold a place are heard of again."""
    own = in_process(_changes(ENDLESS)).start()
    own.wait_for_batches(20)
    late = own.join(role)
    assert late.wait() == ExitCode.CLUSTER
    assert f"the job is running and cannot take another {role} node now" in late.text()
    own.interrupted()
