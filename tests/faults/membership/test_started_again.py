"""A killed node is started again, as an engine does, before the coordinator has noticed its silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import ENDLESS
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

SECONDS = 120.0
ROLES = ("embedding", pytest.param("sync", marks=pytest.mark.matrix))


def _changes(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"run": {"node_timeout_seconds": 2.0}, "data": data, "embedding": {"nodes": 2}}


@pytest.mark.matrix
@pytest.mark.parametrize("role", ROLES)
def test_it_waits_for_the_place_of_the_dead_one(
    in_process: Callable[..., InProcessCluster], role: str
) -> None:
    slowed = Slowed(40, 1.0)
    own = in_process(_changes({"epochs": 1}), faults=(slowed,)).start()
    own.wait_for_batches(30)
    dead = own.nodes[role][0]
    dead.kill()
    own.join(role)
    joined = f"{role}-{len(own.nodes[role]) - 1}: joined the running job"
    wait_until(lambda: own.run.logged(joined) or own.coordinator.poll() is not None, joined)
    slowed.release()
    assert own.wait(SECONDS) == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert own.run.logged(f"{dead.name}: was silent for 2 s")
    report = own.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct == EXAMPLES


@pytest.mark.parametrize("role", ROLES)
def test_without_a_death_it_is_refused(in_process: Callable[..., InProcessCluster], role: str) -> None:
    """The control: all that hold a place are heard of again."""
    own = in_process(_changes(ENDLESS)).start()
    own.wait_for_batches(20)
    late = own.join(role)
    assert late.wait(SECONDS) == ExitCode.CLUSTER
    assert f"the job is running and cannot take another {role} node now" in late.text()
    own.coordinator.interrupt()
    assert own.wait(SECONDS) == ExitCode.INTERRUPTED, own.coordinator.text()
