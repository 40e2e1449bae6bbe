"""A trainer that the others synchronize with dies, or stands still: the group goes on without it."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.faults.conftest import AnyCluster, AnyClusterMaker
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

MODES: list[dict[str, Any]] = [{"duty": 1.0}, {"mode": "fixed", "every": 3}]
# Short, but not so short that a busy machine alone makes a trainer late.
SHORT_TIMEOUT = {"timeout_seconds": 5.0}


def of(own: AnyCluster, trainer: int) -> int:
    """Batches that a trainer has trained."""
    return int(own.run.query(f"SELECT count(*) FROM batches WHERE trainer = 'trainer-{trainer}'")[0][0])


def settings(algorithm: str, mode: dict[str, Any], epochs: int = 1) -> dict[str, dict[str, Any]]:
    """Three trainers under an algorithm of groups."""
    return {
        "run": {"node_timeout_seconds": 3.0},
        "data": {"epochs": epochs},
        "trainer": {"count": 3},
        "sync": {"algorithm": algorithm} | mode,
    }


@pytest.mark.parametrize(
    ("algorithm", "mode"),
    [
        ("ma", MODES[0]),
        pytest.param("ma", MODES[1], marks=pytest.mark.matrix),
        pytest.param("bmuf", MODES[0], marks=pytest.mark.matrix),
        ("decoupled", MODES[0]),
        pytest.param("decoupled", MODES[1], marks=pytest.mark.matrix),
    ],
    ids=["ma-shadow", "ma-fixed", "bmuf-shadow", "decoupled-shadow", "decoupled-fixed"],
)
def test_a_killed_trainer(in_process: ClusterMaker, algorithm: str, mode: dict[str, Any]) -> None:
    slowed = Slowed(60)
    own = in_process(settings(algorithm, mode), faults=(slowed,)).start()
    wait_until(lambda: min(of(own, trainer) for trainer in range(3)) >= 10, "all three have trained")
    own.nodes["trainer"][1].kill()
    slowed.release()
    report = own.ended(5, distinct=EXAMPLES)
    words = {
        "ma": "the mean of the replicas (ma)",
        "bmuf": "the global model (bmuf)",
        "decoupled": "the center (decoupled)",
    }
    assert report.model_saved == words[algorithm]
    assert own.run.evaluation.model == words[algorithm]
    assert not [event for event in report.events if "another model" in event.what]
    open_checkpoint(own.run.folder, verify=True)


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_trainer_that_stands_still_is_left_out_and_let_in_again(cluster: AnyClusterMaker) -> None:
    _require_that_it_is_let_in_again(cluster, MODES[0])


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_trainer_that_stands_still_keeps_no_other_from_training(in_process: ClusterMaker) -> None:
    """In the fixed mode they wait for each other."""
    _require_that_it_is_let_in_again(in_process, MODES[1])


def _require_that_it_is_let_in_again(cluster: AnyClusterMaker, mode: dict[str, Any]) -> None:
    changes = settings("ma", mode | SHORT_TIMEOUT, epochs=10_000)
    changes["run"] = {"node_timeout_seconds": 60.0}
    own = cluster(changes).start()
    wait_until(lambda: min(of(own, trainer) for trainer in range(3)) >= 10, "all three have trained")
    own.nodes["trainer"][2].suspend()
    left = "was removed from the group"
    wait_until(lambda: own.run.logged(left), "the others go on without it")
    # Trainers are numbered as they join, so its number is not known before.
    (line,) = (line["text"] for line in own.run.log("coordinator") if left in line["text"])
    name = line.partition(":")[0]
    stopped, other = int(name.removeprefix("trainer-")), 0 if name != "trainer-0" else 1
    stood_at, before = of(own, stopped), of(own, other)
    wait_until(lambda: of(own, other) >= before + 50, "the others train on")
    assert of(own, stopped) == stood_at
    own.nodes["trainer"][2].resume()
    again = f"{name}: rejoined the synchronization"
    wait_until(lambda: own.run.logged(again), "it is let in again")
    wait_until(lambda: of(own, stopped) >= stood_at + 50, "it trains again")
    report = own.interrupted()
    assert report.model_saved == "the mean of the replicas (ma)"
    reported = [(event.node, event.what) for event in report.events]
    assert any(node == name and left in what for node, what in reported)
    # Nobody else was put out for what one of them did.
    assert not any(node != name and left in what for node, what in reported)


@pytest.mark.matrix
def test_the_last_one_goes_on_alone(in_process: ClusterMaker) -> None:
    slowed = Slowed(60)
    own = in_process(settings("bmuf", {"mode": "fixed", "every": 3}), faults=(slowed,)).start()
    wait_until(lambda: min(of(own, trainer) for trainer in range(3)) >= 10, "all three have trained")
    own.nodes["trainer"][0].kill()
    own.nodes["trainer"][2].kill()
    slowed.release()
    report = own.ended(5, distinct=EXAMPLES)
    assert report.model_saved == "the global model (bmuf)"


@pytest.mark.no_kill
def test_an_interrupt_in_the_middle_of_rounds(in_process: ClusterMaker) -> None:
    own = in_process(settings("ma", {"mode": "fixed", "every": 2}, epochs=10_000)).start()
    own.wait_for_batches(60)
    report = own.interrupted()
    assert report.model_saved == "the mean of the replicas (ma)"
