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
EPOCHS = 3


def machines() -> Fault:
    """Steps that take the time of an emulated machine besides their own."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        compute = Stepper.compute

        def slower(self: Stepper, step: Step) -> None:
            time.sleep((SLOW_SECONDS if is_here(SLOW) else FAST_SECONDS) / step.parts)
            compute(self, step)

        patch.setattr(Stepper, "compute", slower)

    return plant


def finished(cluster: Callable[..., InProcessCluster], balance: str, *faults: Fault) -> RunFolder:
    trainer = {"count": 3, "batch": 64, "balance": balance}
    own = cluster({"trainer": trainer, "data": {"epochs": EPOCHS}}, faults=(*faults, machines())).start()
    assert own.wait(120.0) == 0, own.coordinator.text()
    return RunFolder(own.run.folder.resolve())


def batches_of(run: RunFolder) -> dict[str, int]:
    return dict(run.query("SELECT trainer, count(*) FROM batches GROUP BY trainer"))


@pytest.mark.parametrize("faults", [(), (fake_device,)], ids=["on the host", "on a device"])
def test_a_slow_trainer_makes_more_updates_and_the_books_hold(
    cluster: Callable[..., InProcessCluster], faults: tuple[Fault, ...]
) -> None:
    run = finished(cluster, "updates", *faults)
    report, batches = run.report, batches_of(run)
    assert report.examples.distinct == EPOCHS * EXAMPLES
    assert report.ledger.adds_up, report.ledger.identities
    assert set(report.ledger.shard_applied.values()) == {run.batches()}
    updates = report.train.dense_updates
    assert set(updates) == set(batches)
    assert updates.pop(SLOW) > 2 * batches.pop(SLOW)
    assert updates == batches, "the others are not cut"
    assert f"{SLOW}, dense updates" in (run.folder / "report.md").read_text(encoding="utf-8")


def test_without_balance_a_slow_trainer_makes_an_update_of_each_batch(
    cluster: Callable[..., InProcessCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nobody tells it to do anything else, and it makes few."""
    made: dict[str, int] = {}
    metrics = TrainerRole.metrics

    def seen(self: TrainerRole) -> dict[str, Any]:
        counts = metrics(self)
        node = current_node()
        if node is not None and "dense_updates" in counts:
            made[node.name] = counts["dense_updates"]
        return counts

    monkeypatch.setattr(TrainerRole, "metrics", seen)
    run = finished(cluster, "off")
    assert made == batches_of(run)
    assert made[SLOW] < 0.5 * min(count for name, count in made.items() if name != SLOW)
    assert run.report.train.dense_updates == {}
    assert "dense updates" not in (run.folder / "report.md").read_text(encoding="utf-8")
