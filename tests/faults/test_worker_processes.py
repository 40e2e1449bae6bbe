"""A worker process or its trainer is killed, or stands still: it is seen, said, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from shadowsync.nodes.runtime.process import WORKER, runs
from shadowsync.nodes.worker.step import LOSS_NOT_FINITE
from shadowsync.tests.faults.conftest import FEW_NODES
from shadowsync.tests.support.cluster import Cluster
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.processes import is_alive, wait_until
from shadowsync.tests.support.runs import EXAMPLES
from shadowsync.tests.support.supervised import Supervised

Clusters = Callable[..., Cluster]
SECONDS = 45.0
PROCESSES: dict[str, Any] = {"workers": 2, "worker_kind": "process"}
ONE_TRAINER = FEW_NODES | {"trainer": {"count": 1, **PROCESSES}, "data": {"epochs": 10_000}}
TWO_TRAINERS = FEW_NODES | {"trainer": {"count": 2, "workers": 1, "worker_kind": "process"}}


def workers_of(pid: int) -> list[psutil.Process]:
    """A trainer's worker processes."""
    found = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if runs(child.cmdline(), WORKER):
                found.append(child)
    return found


def busy(own: Cluster) -> bool:
    """Whether each of the two trainers has trained some batches."""
    counts = own.run.query("SELECT count(*) FROM batches GROUP BY trainer")
    return len(counts) == 2 and all(count >= 10 for (count,) in counts)


def test_a_killed_worker_process_is_the_death_of_its_trainer_alone(processes: Clusters) -> None:
    own = processes(TWO_TRAINERS | {"data": {"epochs": 6}}).start()
    wait_until(lambda: busy(own), "both trainers have trained")
    victim = own.nodes["trainer"][1]
    (worker,) = workers_of(victim.pid)
    worker.kill()
    assert victim.wait(SECONDS) == 6
    why = f"worker process 0 (pid {worker.pid}) died: killed by SIGKILL"
    assert why in victim.text()
    assert own.wait() == 5, own.coordinator.text()
    report = own.run.report
    assert report.outcome == "finished although a node died"
    (event,) = [event for event in report.events if event.node.startswith("trainer")]
    assert event.what == f"failed: {why}"
    # What it had not confirmed was trained by the other, once.
    assert report.examples.distinct == 6 * EXAMPLES
    assert report.ledger.adds_up, report.ledger.identities
    assert report.ledger.shard_applied == {"embedding-0": own.run.batches()}


@pytest.mark.matrix
def test_of_the_only_trainer_it_ends_the_job(supervise: Callable[..., Supervised]) -> None:
    job = supervise(ONE_TRAINER)
    job.wait_for_batches(20)
    workers = workers_of(job.node("trainer").pid)
    assert len(workers) == 2
    workers[0].kill()
    assert job.process.wait(SECONDS) == 6, job.process.text()
    assert "the last trainer died" in job.last_line()
    wait_until(lambda: not any(map(is_alive, workers)), "all workers have ended")


@pytest.mark.matrix
def test_a_killed_trainer_takes_its_workers_with_it(supervise: Callable[..., Supervised]) -> None:
    """The kernel ends the pipe that holds them, whatever they are doing; the memory goes with the last."""
    job = supervise(ONE_TRAINER)
    job.wait_for_batches(20)
    trainer = job.node("trainer")
    workers = workers_of(trainer.pid)
    trainer.kill()
    wait_until(lambda: not any(map(is_alive, workers)), "both workers end")
    assert job.process.wait(SECONDS) == 6, job.process.text()


@pytest.mark.matrix
@pytest.mark.no_kill
@pytest.mark.parametrize(
    "sync",
    [{"algorithm": "none"}, {"algorithm": "ma", "mode": "fixed", "every": 5}],
    ids=["none", "at the gate"],
)
def test_a_worker_process_that_stands_still_is_seen(
    supervise: Callable[..., Supervised], sync: dict[str, Any]
) -> None:
    job = supervise(ONE_TRAINER | {"run": {"node_timeout_seconds": 3.0}, "sync": sync})
    job.wait_for_batches(20)
    workers = workers_of(job.node("trainer").pid)
    still = workers[0]
    os.kill(still.pid, signal.SIGSTOP)
    assert job.process.wait(3.0 + SECONDS) == 6, job.process.text()
    died = [event.what for event in job.run.report.events if event.node == "trainer-0"]
    assert f"(pid {still.pid}) died: was silent for 3 s" in died[0]
    wait_until(lambda: not any(map(is_alive, workers)), "all workers have ended")


@pytest.mark.matrix
@pytest.mark.no_kill
def test_an_interrupt_ends_workers_in_order(supervise: Callable[..., Supervised]) -> None:
    job = supervise(ONE_TRAINER)
    job.wait_for_batches(20)
    workers = workers_of(job.node("trainer").pid)
    # A terminal sends it to every process of its group.
    for worker in workers:
        worker.send_signal(signal.SIGINT)
    job.process.signal(signal.SIGINT)
    assert job.process.wait(60.0) == 130, job.process.text()
    report = job.run.report
    assert report.ledger.adds_up, report.ledger.identities
    assert (job.run.folder / "checkpoint").exists()
    wait_until(lambda: not any(map(is_alive, workers)), "all workers have ended")


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_loss_that_is_no_number_is_told_as_it_is_by_a_thread(
    in_process: Callable[..., InProcessCluster],
) -> None:
    # Of two workers one could meet an infinite gradient while the other's update is half done.
    alone = ONE_TRAINER | {"trainer": {"count": 1, "worker_kind": "process", "lr": 1e30, "optimizer": "sgd"}}
    own = in_process(alone).start()
    assert own.wait() == 2, own.coordinator.text()
    assert LOSS_NOT_FINITE in own.coordinator.text()
    assert "lower trainer.lr or embedding.lr" in own.coordinator.text()
