"""A pause of a whole job, or of its coordinator alone, costs time and nothing else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable

import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import slowed_at
from shadowsync.tests.support.jobs.processes import Process, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES

pytestmark = [pytest.mark.matrix, pytest.mark.no_kill]

TIMEOUT_SECONDS = 3.0
CHANGES = {"run": {"node_timeout_seconds": TIMEOUT_SECONDS}}
# Longer than any timeout of the job: those of nodes, the wait for the coordinator, and a round's.
PAUSE_SECONDS = 5 * TIMEOUT_SECONDS


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
    cluster, slowed = slowed_at(50, make, CHANGES)
    stand_still(who(cluster))
    slowed.release()
    return cluster.ended()


def check_nothing_else(report: Report) -> None:
    assert report.events == []
    assert report.examples.distinct == report.examples.trained == EXAMPLES
    assert report.examples.returned == 0
    assert report.sync.incomplete_rounds == 0


def test_everything_stands_still(processes: Callable[..., Cluster]) -> None:
    check_nothing_else(paused(processes, Cluster.everyone))


def test_the_coordinator_alone_stands_still(processes: Callable[..., Cluster]) -> None:
    check_nothing_else(paused(processes, lambda cluster: [cluster.coordinator]))


def test_a_trainer_alone_is_given_up(processes: Callable[..., Cluster]) -> None:
    """The control: the others would wait for it, and its batches go to them."""
    own, slowed = slowed_at(50, processes, CHANGES)
    victim = own.nodes["trainer"][1]
    victim.suspend()
    wait_until(lambda: own.run.logged(f"was silent for {TIMEOUT_SECONDS:g} s"), "the coordinator gives it up")
    victim.resume()
    slowed.release()
    own.ended(5)
