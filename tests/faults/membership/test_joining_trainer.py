"""A trainer joins the running job, in the place of one that died or besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.faults.conftest import ENDLESS, goes_on_with_another
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

ALGORITHMS: dict[str, dict[str, Any]] = {
    "easgd": {"algorithm": "easgd"},
    "fixed": {"algorithm": "easgd", "mode": "fixed", "every": 3, "nodes": 2},
    "decoupled": {"algorithm": "decoupled"},
    "none": {"algorithm": "none", "nodes": 0},
    "ma": {"algorithm": "ma"},
    "bmuf": {"algorithm": "bmuf"},
    "fixed bmuf": {"algorithm": "bmuf", "mode": "fixed", "every": 3},
    "gaia": {"algorithm": "gaia"},
    "ds_sync": {"algorithm": "ds_sync"},
}


def _batches_of(own: InProcessCluster, trainer: str) -> int:
    return int(own.run.query(f"SELECT count(*) FROM batches WHERE trainer = '{trainer}'")[0][0])


def _rounds_of(own: InProcessCluster, trainer: str) -> int:
    """Rounds that it has completed, as its last heartbeat says."""
    return sum(int(node["rounds"] or 0) for node in own.status()["nodes"] if node["name"] == trainer)


def _squares(folder: Path, trainer: str) -> float:
    """The mean of Adagrad's sums in a trainer's part of the last checkpoint."""
    path, manifest = open_checkpoint(folder, verify=True)
    reader = TensorReader(path, [entry for entry in manifest.files if entry.role == trainer])
    return float(np.mean(reader.read("optimizer.sum")))


def _variants(first: tuple[str, ...], matrix: tuple[str, ...]) -> list[Any]:
    return [*first, *(pytest.param(name, marks=pytest.mark.matrix) for name in matrix)]


@pytest.mark.parametrize(
    "algorithm", _variants(("easgd",), ("bmuf", "decoupled", "fixed", "none", "fixed bmuf", "ds_sync"))
)
def test_in_the_place_of_a_dead_one(in_process: ClusterMaker, algorithm: str) -> None:
    changes = {"sync": ALGORITHMS[algorithm]}
    slowed = Slowed(40, 1.0)
    own = in_process(changes, supervised=True, faults=(slowed,)).start()
    own.wait_for_batches(30)
    own.node("trainer-0").kill()
    own.join("trainer")
    wait_until(lambda: own.run.logged("joined the running job"), "it has joined")
    wait_until(lambda: _batches_of(own, "trainer-2") > 0, "it trains")
    slowed.release()
    report = own.ended_whole()
    events = [(event.node, event.what) for event in report.events]
    joined = "joined the running job, with the weights and the optimizer of trainer-1"
    assert ("trainer-2", joined) in events
    assert _batches_of(own, "trainer-2") > 0


@pytest.mark.matrix
@pytest.mark.no_kill
def test_besides_the_others_with_the_optimizer_of_one(in_process: ClusterMaker) -> None:
    changes = {"data": ENDLESS, "trainer": {"optimizer": "adagrad"}}
    own, _ = slowed_at(80, in_process, changes)
    own.join("trainer")
    wait_until(lambda: _batches_of(own, "trainer-2") > 0, "it trains")
    report = own.interrupted()
    assert report.model_saved == "the center (easgd)"
    # Sums of squares only grow, most of all at the beginning: it has those of the source in its own.
    late, first = _squares(own.run.folder, "trainer-2"), _squares(own.run.folder, "trainer-0")
    assert late > 0.5 * first
    assert 2 * _batches_of(own, "trainer-2") < _batches_of(own, "trainer-0"), "the control"


@pytest.mark.no_kill
@pytest.mark.parametrize("algorithm", _variants(("bmuf",), ("ma", "gaia")))
def test_it_meets_the_others(in_process: ClusterMaker, algorithm: str) -> None:
    sync = ALGORITHMS[algorithm] | {"gap": 4}
    own = in_process({"data": ENDLESS, "sync": sync}).start()
    own.wait_for_batches(40)
    own.join("trainer")
    wait_until(lambda: _batches_of(own, "trainer-2") > 0, "it trains")
    # One may have begun before its first batch.
    enough = _rounds_of(own, "trainer-2") + 1
    wait_until(lambda: _rounds_of(own, "trainer-2") > enough, "it completes rounds with the others")
    report = own.interrupted()
    # All say that they have one model, which are compared.
    one = "the mean of the replicas" if algorithm == "ma" else "the global model"
    assert report.model_saved == f"{one} ({algorithm})"


@pytest.mark.matrix
@pytest.mark.no_kill
def test_where_none_can_join_it_is_refused(in_process: ClusterMaker) -> None:
    changes = {"trainer": {"count": 1}}
    slowed = Slowed(30, 1.0)
    own = in_process(changes, faults=(slowed,)).start()
    own.wait_for_batches(20)
    late = own.join("trainer")
    assert late.wait() == ExitCode.CLUSTER
    slowed.release()
    assert "the job is running and cannot take another trainer node now" in late.text()
    own.ended()


@pytest.mark.matrix
def test_a_donor_that_dies_is_followed_by_another(in_process: ClusterMaker) -> None:
    changes = {"trainer": {"count": 3}}
    slowed = Slowed(50, 1.0)
    own = in_process(changes, supervised=True, faults=(slowed,)).start()
    own.wait_for_batches(40)
    own.join("trainer")
    own.nodes["trainer"][0].kill()
    wait_until(lambda: own.run.logged("joined the running job"), "it has joined")
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert any("joined the running job" in event.what for event in report.events), report.events


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    job = supervise({"data": ENDLESS, "trainer": {"count": 2}, "sync": {"algorithm": "easgd", "nodes": 1}})
    goes_on_with_another(
        job, "trainer", "joined the running job, with the weights and the optimizer of trainer"
    )
    job.interrupted()
