"""All trainers of a job die: another one takes the weights from the center, where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.control.orders import TakeCenter, TakeCenterReply
from shadowsync.tests.faults.conftest import ENDLESS, goes_on_with_another
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

QUICK = {"node_timeout_seconds": 2.0}
SYNC: dict[str, dict[str, Any]] = {
    "easgd": {"algorithm": "easgd", "nodes": 2},
    "fixed": {"algorithm": "easgd", "mode": "fixed", "every": 3},
    "decoupled": {"algorithm": "decoupled", "nodes": 2},
    "none": {"algorithm": "none", "nodes": 0},
}


class Taken:
    """Notes what trainers take over: the center, their weights after it, and their optimizer's state."""

    def __init__(self) -> None:
        self.center = self.weights = self.first = torch.empty(0)
        self.squares = -1.0

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        take = TrainerRole._take_center

        async def noted(role: TrainerRole, request: TakeCenter) -> TakeCenterReply:
            self.center = await present(role._sync).shadow.read_center()
            self.first = role._context.replica.read().clone()
            reply = await take(role, request)
            self.weights = role._context.replica.read().clone()
            self.squares = float(role._context.optimizer.state["sum"].mean())
            return reply

        patch.setattr(TrainerRole, "_take_center", noted)


def _rounds(own: InProcessCluster) -> int:
    return int(own.status()["sync"]["rounds"])


def _kill_all(own: InProcessCluster) -> None:
    """Kill all trainers, and then do what a supervisor does."""
    victims = list(own.nodes["trainer"])
    for victim in victims:
        victim.kill()
    for victim in victims:
        own.replace_dead(victim)


@pytest.mark.parametrize(
    ("sync", "trainers"),
    [
        ("easgd", 2),
        pytest.param("decoupled", 1, marks=pytest.mark.matrix),
        pytest.param("fixed", 2, marks=pytest.mark.matrix),
    ],
)
def test_another_takes_the_weights_from_the_center(
    in_process: ClusterMaker, sync: str, trainers: int
) -> None:
    slowed, taken = Slowed(60), Taken()
    changes = {
        "run": QUICK,
        "trainer": {"count": trainers, "optimizer": "adagrad"},
        "sync": SYNC[sync],
        "checkpoint": {"every_examples": 2_000},
    }
    own = in_process(changes, replaces=True, faults=(slowed, taken)).start()
    own.wait_for_batches(60)
    wait_until(lambda: (own.run.folder / "checkpoint").exists(), "there is a checkpoint")
    before = _rounds(own)
    # One at least began now, and moves the center.
    wait_until(lambda: _rounds(own) > before + trainers, "a round of what is trained")
    _kill_all(own)
    joined = (
        "joined the running job, with the weights of the center and the optimizer of the checkpoint after"
    )
    wait_until(lambda: own.run.logged(joined), joined)
    slowed.release()
    report = own.ended_whole()
    assert report.outcome == "finished although a node died"
    assert report.ledger.shard_applied == {"embedding-0": own.run.batches()}
    assert report.examples.returned > 0
    assert torch.equal(taken.weights, taken.center[: len(taken.weights)])
    assert not torch.equal(taken.weights, taken.first), "the control"
    assert taken.squares > 0.0
    assert own.run.evaluation.model.startswith("the center")


@pytest.mark.matrix
def test_without_a_checkpoint_the_optimizer_is_new(in_process: ClusterMaker) -> None:
    slowed, taken = Slowed(40), Taken()
    changes = {
        "run": QUICK,
        "trainer": {"count": 1, "optimizer": "adagrad"},
        "checkpoint": {"every_seconds": 0},
    }
    own = in_process(changes, replaces=True, faults=(slowed, taken)).start()
    own.wait_for_batches(40)
    _kill_all(own)
    joined = "trainer-1: joined the running job, with the weights of the center and a new optimizer"
    wait_until(lambda: own.run.logged(joined), joined)
    slowed.release()
    own.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert torch.equal(taken.weights, taken.center[: len(taken.weights)])
    assert taken.squares == 0.0


def test_without_a_center_the_job_stops(in_process: ClusterMaker) -> None:
    """The control: nobody has the dense model any more."""
    changes = {"run": QUICK, "data": ENDLESS, "sync": SYNC["none"], "checkpoint": {"every_examples": 2_000}}
    own, slowed = slowed_at(60, in_process, changes, replaces=True)
    wait_until(lambda: (own.run.folder / "checkpoint").exists(), "there is a checkpoint")
    _kill_all(own)
    slowed.release()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    assert report.outcome == "stopped: the last trainer died"
    assert "shadowsync resume" in own.coordinator.text()


def test_without_another_the_job_stops(in_process: ClusterMaker) -> None:
    changes = {"run": QUICK | {"rejoin_seconds": 1.0}, "data": ENDLESS, "trainer": {"count": 1}}
    own = in_process(changes).start()
    own.wait_for_batches(20)
    own.nodes["trainer"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    assert report.outcome == "stopped: the last trainer died"
    assert report.model_saved is None
    assert report.examples.read == report.examples.trained + report.examples.returned
    assert report.examples.dropped == report.examples.returned > 0


def test_a_supervisor_without_restarts_left_is_not_waited_for(in_process: ClusterMaker) -> None:
    changes = {"run": QUICK | {"rejoin_seconds": 3_600.0}, "data": ENDLESS, "trainer": {"count": 1}}
    own = in_process(changes, supervised=True).start()
    own.wait_for_batches(20)
    own.nodes["trainer"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    assert report.outcome == "stopped: the last trainer died"


def test_the_center_dies_with_the_last_trainer(in_process: ClusterMaker) -> None:
    changes = {"run": QUICK, "data": ENDLESS, "trainer": {"count": 1}}
    own = in_process(changes, supervised=False, replaces=True).start()
    own.wait_for_batches(20)
    own.nodes["trainer"][0].kill()
    own.nodes["sync"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    assert report.outcome in {
        "stopped: sync-0 died while the job had no trainer, so the center is lost",
        "stopped: the last trainer died",
    }


@pytest.mark.matrix
def test_the_coordinator_dies_too(in_process: ClusterMaker) -> None:
    """The next one knows from the ledger that no trainer lives, and waits for another."""
    changes = {"run": QUICK, "trainer": {"count": 1}}
    own, slowed = slowed_at(60, in_process, changes, replaces=True)
    victim = own.nodes["trainer"][0]
    victim.kill()
    own.coordinator.kill()
    own.take_over()
    own.replace_dead(victim)
    slowed.release()
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert own.run.logged("with the weights of the center")


@pytest.mark.matrix
def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    job = supervise({"data": ENDLESS, "sync": {"algorithm": "easgd", "nodes": 1}})
    goes_on_with_another(job, "trainer", "trainer-1: joined the running job, with the weights of the center")
    job.interrupted()
