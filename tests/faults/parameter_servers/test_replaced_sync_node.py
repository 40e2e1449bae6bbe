"""A sync node is killed, and another one takes its slice of the center: the mean of the replicas."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import ENDLESS, goes_on_with_another
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise
from shadowsync.tests.support.sync.example_algorithms import DOWNPOUR, needs_examples

QUICK = {"node_timeout_seconds": 2.0}
MODES: dict[str, dict[str, Any]] = {
    "shadow": {"mode": "shadow"},
    "fixed": {"mode": "fixed", "every": 3},
    "decoupled": {"mode": "shadow", "algorithm": "decoupled"},
    "decoupled, fixed": {"mode": "fixed", "every": 3, "algorithm": "decoupled"},
}


@pytest.mark.parametrize(
    "mode",
    [
        "shadow",
        pytest.param("fixed", marks=pytest.mark.matrix),
        "decoupled",
        pytest.param("decoupled, fixed", marks=pytest.mark.matrix),
    ],
)
def test_the_center_is_made_again_of_the_replicas(in_process: ClusterMaker, mode: str) -> None:
    slowed = Slowed(40, 1.0)
    own = in_process(
        {"run": QUICK, "sync": {"nodes": 2} | MODES[mode]}, supervised=True, faults=(slowed,)
    ).start()
    own.wait_for_batches(30)
    own.nodes["sync"][0].kill()
    own.join("sync")
    wait_until(lambda: own.run.logged("joined the running job"), "it has joined")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    events = [(event.node, event.what) for event in report.events]
    assert ("sync-2", "joined the running job; its slice of the center is the mean of 2 replicas") in events
    # Without it the center would be lost: `test_a_killed_sync_node`.
    name = MODES[mode].get("algorithm", "easgd")
    assert report.model_saved == f"the center ({name})"
    assert own.run.evaluation.model == f"the center ({name})"


@needs_examples
def test_nobody_takes_the_slice_of_a_center_that_sums(in_process: ClusterMaker) -> None:
    """What a replica has not sent yet would be in the mean, and be sent again."""
    changes = {"run": QUICK, "sync": {"algorithm": DOWNPOUR}}
    slowed = Slowed(40, 1.0)
    own = in_process(changes, supervised=True, faults=(slowed,)).start()
    own.wait_for_batches(30)
    own.nodes["sync"][0].kill()
    late = own.join("sync")
    assert late.wait() == ExitCode.CLUSTER
    slowed.release()
    assert "the job is running and cannot take another sync node now" in late.text()
    own.ended(ExitCode.FINISHED_WITH_DEATHS)


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    job = supervise({"data": ENDLESS, "sync": {"algorithm": "easgd", "nodes": 1}})
    joined = "sync-1: joined the running job; its slice of the center is the mean of 1 replica"
    goes_on_with_another(job, "sync", joined)
    job.interrupted()
