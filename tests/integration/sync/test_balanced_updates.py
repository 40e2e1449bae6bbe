"""Whole jobs with a slow trainer: balanced, it makes more dense updates, and the ledger hold."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster
from shadowsync.tests.support.jobs.in_process_node import current_node
from shadowsync.tests.support.jobs.node_faults import Fault, fake_device
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.real_time import ENOUGH_SECONDS

SLOW = "trainer-0"
BATCH = 64
# Batches of a fast trainer in the time of one of the slow one's, and between two heartbeats.
TIMES_SLOWER, BATCHES_A_BEAT = 12, 20
# More than the slow one has at hand: when so few are left, others may have none to go on with.
LAST_BATCHES = 40
EPOCHS = 4


class Machines:
    """Emulates machines of unequal speed, until the slow one makes two updates of a batch on average.

    Their time is the fast ones' heartbeats and batches: a machine that is busy besides makes all of them
    slower, and none of them by more than another.

    Args:
        batches: how many will be trained.

    Attributes:
        updates: of each trainer, by its last heartbeat.
        balanced: whether they have become equally fast since.
    """

    def __init__(self, batches: int) -> None:
        self.updates: dict[str, int] = {}
        self.balanced = False
        self._left = batches
        self._changed = threading.Condition()
        self._allowed: dict[str, int] = {}
        # Of a fast trainer's batch, that the slow one has not used yet.
        self._passed = 0.0

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """As a fault of a cluster."""
        launch, metrics = Stepper.launch, TrainerRole.metrics

        def slower(stepper: Stepper, step: Step) -> None:
            node = current_node()
            assert node is not None
            self._take_turn(node.name)
            launch(stepper, step)

        def seen(role: TrainerRole) -> dict[str, Any]:
            counts, node = metrics(role), current_node()
            if node is not None and "dense_updates" in counts:
                self._beat(node.name, counts)
            return counts

        patch.setattr(Stepper, "launch", slower)
        patch.setattr(TrainerRole, "metrics", seen)

    def _beat(self, name: str, counts: dict[str, Any]) -> None:
        with self._changed:
            self.updates[name] = counts["dense_updates"]
            self._allowed[name] = BATCHES_A_BEAT
            if name == SLOW and counts["dense_updates"] > 2 * max(1, counts["iterations"]):
                self.balanced = True
            self._changed.notify_all()

    def _take_turn(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._may_go_on(name), ENOUGH_SECONDS)
            if name == SLOW:
                self._passed -= TIMES_SLOWER
            else:
                self._allowed[name] = self._allowed.get(name, 0) - 1
                self._passed += 0.5
            self._left -= 1
            self._changed.notify_all()

    def _may_go_on(self, name: str) -> bool:
        if self.balanced or self._left <= LAST_BATCHES:
            return True
        return self._passed >= TIMES_SLOWER if name == SLOW else self._allowed.get(name, 0) > 0


def finished(
    cluster: Callable[..., InProcessCluster], balance: str, epochs: int, *faults: Fault
) -> tuple[Machines, RunFolder]:
    trainer = {"count": 3, "batch": BATCH, "balance": balance}
    machines = Machines(epochs * EXAMPLES // BATCH)
    settings = {"trainer": trainer, "data": {"epochs": epochs}}
    own = cluster(settings, faults=(*faults, machines.plant)).start()
    assert own.wait(300.0) == 0, own.coordinator.text()
    return machines, RunFolder(own.run.folder.resolve())


def batches_of(run: RunFolder) -> dict[str, int]:
    return dict(run.query("SELECT trainer, count(*) FROM batches GROUP BY trainer"))


@pytest.mark.matrix
@pytest.mark.parametrize(
    "faults", [(), pytest.param((fake_device,), marks=pytest.mark.matrix)], ids=["on the host", "on a device"]
)
def test_a_slow_trainer_makes_more_updates_and_the_ledger_holds(
    cluster: Callable[..., InProcessCluster], faults: tuple[Fault, ...]
) -> None:
    machines, run = finished(cluster, "updates", EPOCHS, *faults)
    report, batches = run.report, batches_of(run)
    assert machines.balanced
    assert report.examples.distinct == EPOCHS * EXAMPLES
    assert report.ledger.adds_up, report.ledger.identities
    assert set(report.ledger.shard_applied.values()) == {run.batches()}
    updates = report.train.dense_updates
    assert set(updates) == set(batches)
    assert updates[SLOW] > batches[SLOW]
    assert f"{SLOW}, dense updates" in (run.folder / "report.md").read_text(encoding="utf-8")


@pytest.mark.matrix
def test_without_balance_a_slow_trainer_makes_an_update_of_each_batch(
    cluster: Callable[..., InProcessCluster],
) -> None:
    """The control: nobody tells it to do anything else."""
    machines, run = finished(cluster, "off", 1)
    assert not machines.balanced
    assert machines.updates == batches_of(run)
    assert run.report.train.dense_updates == {}
    assert "dense updates" not in (run.folder / "report.md").read_text(encoding="utf-8")
