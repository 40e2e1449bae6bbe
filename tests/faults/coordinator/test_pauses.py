"""A pause of a whole job, or of its coordinator alone, costs time and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

import pytest
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import Process, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

pytestmark = pytest.mark.no_kill

TIMEOUT_SECONDS = 3.0
# Longer than any timeout of the job: those of nodes, the wait for the coordinator, and a round's.
PAUSE_SECONDS = 5 * TIMEOUT_SECONDS
EPOCHS = 2


def stand_still(processes: Iterable[Process]) -> None:
    """Stop these and what they started, as `docker pause` does, and let them go on later."""
    groups = [process.pid for process in processes]
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    threading.Event().wait(PAUSE_SECONDS)
    for group in groups:
        os.killpg(group, signal.SIGCONT)


def paused(make: Callable[..., Cluster], who: Callable[[Cluster], Iterable[Process]]) -> Report:
    """Runs the job with such a pause in the middle of its training."""
    slowed = Slowed(50)
    cluster = make(changes(), faults=(slowed,)).start()
    cluster.wait_for_batches(50)
    stand_still(who(cluster))
    slowed.release()
    assert cluster.wait() == 0, cluster.coordinator.text()
    return cluster.run.report


def changes() -> dict[str, dict[str, object]]:
    return {
        "run": {"node_timeout_seconds": TIMEOUT_SECONDS},
        "data": {"epochs": EPOCHS},
    }


def check_nothing_else(report: Report) -> None:
    assert report.events == []
    assert report.ledger.adds_up
    assert report.examples.distinct == report.examples.trained == EPOCHS * EXAMPLES
    assert report.examples.returned == 0
    assert report.sync.incomplete_rounds == 0


@pytest.mark.matrix
def test_everything_stands_still(processes: Callable[..., Cluster]) -> None:
    check_nothing_else(paused(processes, Cluster.everyone))


@pytest.mark.matrix
def test_the_coordinator_alone_stands_still(processes: Callable[..., Cluster]) -> None:
    check_nothing_else(paused(processes, lambda cluster: [cluster.coordinator]))


@pytest.mark.matrix
def test_a_trainer_alone_is_given_up(processes: Callable[..., Cluster]) -> None:
    """The control: the others would wait for it, and its batches go to them."""
    slowed = Slowed(50)
    own = processes(changes(), faults=(slowed,)).start()
    own.wait_for_batches(50)
    victim = own.nodes["trainer"][1]
    victim.suspend()
    wait_until(lambda: own.run.logged(f"was silent for {TIMEOUT_SECONDS:g} s"), "the coordinator gives it up")
    victim.resume()
    slowed.release()
    own.ended(5)
