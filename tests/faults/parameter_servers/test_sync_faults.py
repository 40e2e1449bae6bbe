"""Rule "Training never waits": not for a sync node that is stopped, nor for one that is gone.

The gap grows, and the report shows it.
"""

from __future__ import annotations

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.faults.conftest import AnyClusterMaker
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

pytestmark = pytest.mark.matrix


@pytest.mark.no_kill
def test_a_stopped_sync_node_only_makes_the_gap_grow(cluster: AnyClusterMaker) -> None:
    changes = {"run": {"node_timeout_seconds": 60.0}, "data": {"epochs": 4}, "sync": {"duty": 0.2}}
    own, slowed = slowed_at(40, cluster, changes)
    sync = own.nodes["sync"][0]
    sync.suspend()
    slowed.release()
    # Of what the ledger's file has from now on, a part was trained before. Of 400 more, half at least is not,
    # and of that one trainer has half.
    own.wait_for_batches(own.run.batches() + 400)
    sync.resume()
    report = own.ended()
    assert report.examples.trained == 4 * EXAMPLES
    assert present(report.sync.gap_max) >= 100
    assert report.sync.rounds > 0
    assert report.model_saved == "the center (easgd)"


@pytest.mark.no_kill
def test_a_fixed_rate_waits_for_the_stopped_node(in_process: ClusterMaker) -> None:
    """The control of the test above: in the foreground the same stop holds up training, and no gap grows."""
    changes = {
        "run": {"node_timeout_seconds": 60.0},
        "data": {"epochs": 10_000},
        "sync": {"mode": "fixed", "every": 2},
    }
    own = in_process(changes).start()
    own.wait_for_batches(40)
    sync = own.nodes["sync"][0]
    sync.suspend()
    # Each trainer has two iterations left, and the ledger's file is a little behind.
    wait_until(lambda: not own.run.reaches(own.run.batches() + 1, 3.0), "training waits")
    sync.resume()
    own.wait_for_batches(own.run.batches() + 60)
    own.interrupted()
    assert own.run.report.sync.gap_max == 2


def test_a_killed_sync_node(cluster: AnyClusterMaker) -> None:
    changes = {"run": {"node_timeout_seconds": 2.0}}
    own, slowed = slowed_at(40, cluster, changes)
    own.nodes["sync"][0].kill()
    wait_until(lambda: own.run.logged("was silent for 2 s"), "the coordinator knows of it")
    slowed.release()
    report = own.ended(5)
    assert (report.outcome, report.examples.trained) == ("finished although a node died", EXAMPLES)
    # There is no center any more; the report says whose model it is instead.
    assert report.model_saved == "the replica of trainer-0 (easgd)"
    assert own.run.evaluation.model == "the mean of the 2 replicas' own scores (easgd)"
    reported = [event.what for event in report.events]
    assert "the center is lost; the saved model is trainer-0's replica" in reported
    _, manifest = open_checkpoint(own.run.folder, verify=True)
    assert not any(entry.role.startswith("sync") for entry in manifest.files)


def test_one_of_two_sync_nodes(in_process: ClusterMaker) -> None:
    """Half a center is no center."""
    own, slowed = slowed_at(40, in_process, {"run": {"node_timeout_seconds": 2.0}, "sync": {"nodes": 2}})
    own.nodes["sync"][1].kill()
    wait_until(lambda: own.run.logged("was silent for 2 s"), "the coordinator knows of it")
    slowed.release()
    report = own.ended(5)
    assert report.model_saved == "the replica of trainer-0 (easgd)"
    open_checkpoint(own.run.folder, verify=True)
