"""Whole jobs with a slow trainer: balanced, it makes more dense updates, and the books hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.in_process_node import current_node
from shadowsync.tests.support.node_faults import Fault, fake_device, is_here
from shadowsync.tests.support.runs import EXAMPLES, RunFolder

SLOW = "trainer-0"
# The time of a batch of the slow trainer and of the others; parts share it.
SLOW_SECONDS, FAST_SECONDS = 0.12, 0.01
EPOCHS = 6


class Machines:
    """Emulates machines of unequal speed, until the slow one makes two updates of a batch on average.

    Attributes:
        updates: of each trainer, by its last heartbeat.
        balanced: whether they have become equally fast since.
    """

    def __init__(self) -> None:
        self.updates: dict[str, int] = {}
        self.balanced = False

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """As a fault of a cluster."""
        compute, metrics = Stepper.compute, TrainerRole.metrics

        def slower(stepper: Stepper, step: Step) -> None:
            if not self.balanced:
                time.sleep((SLOW_SECONDS if is_here(SLOW) else FAST_SECONDS) / step.parts)
            compute(stepper, step)

        def seen(role: TrainerRole) -> dict[str, Any]:
            counts, node = metrics(role), current_node()
            if node is not None and "dense_updates" in counts:
                self.updates[node.name] = counts["dense_updates"]
                if node.name == SLOW and counts["dense_updates"] > 2 * max(1, counts["iterations"]):
                    self.balanced = True
            return counts

        patch.setattr(Stepper, "compute", slower)
        patch.setattr(TrainerRole, "metrics", seen)


def finished(
    cluster: Callable[..., InProcessCluster], balance: str, epochs: int, *faults: Fault
) -> tuple[Machines, RunFolder]:
    machines, trainer = Machines(), {"count": 3, "batch": 64, "balance": balance}
    settings = {"trainer": trainer, "data": {"epochs": epochs}}
    own = cluster(settings, faults=(*faults, machines.plant)).start()
    assert own.wait(300.0) == 0, own.coordinator.text()
    return machines, RunFolder(own.run.folder.resolve())


def batches_of(run: RunFolder) -> dict[str, int]:
    return dict(run.query("SELECT trainer, count(*) FROM batches GROUP BY trainer"))


@pytest.mark.parametrize(
    "faults", [(), pytest.param((fake_device,), marks=pytest.mark.matrix)], ids=["on the host", "on a device"]
)
def test_a_slow_trainer_makes_more_updates_and_the_books_hold(
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


def test_without_balance_a_slow_trainer_makes_an_update_of_each_batch(
    cluster: Callable[..., InProcessCluster],
) -> None:
    """The control: nobody tells it to do anything else."""
    machines, run = finished(cluster, "off", 1)
    assert not machines.balanced
    assert machines.updates == batches_of(run)
    assert run.report.train.dense_updates == {}
    assert "dense updates" not in (run.folder / "report.md").read_text(encoding="utf-8")
