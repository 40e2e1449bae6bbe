"""Ctrl-C and SIGTERM: everything stops, and what was trained is in a checkpoint."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.nodes.coordinator import controller
from shadowsync.nodes.coordinator.shutdown import JobFinalizer
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.faults.conftest import AnyClusterMaker
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise

pytestmark = pytest.mark.no_kill

# An idle machine needs less than 10 s; a busy one may take longer.
STOP_SECONDS = 60.0


def check_interrupted(run: RunFolder) -> None:
    """The ledger of an interrupted run: everything that was read is trained or in flight, and saved."""
    report = run.report
    assert report.outcome == "interrupted"
    assert report.exit_code == 130
    counted = report.examples
    assert counted.trained == counted.distinct > 0
    # Usually some batches are in flight, but not where the reader is between two spans at that moment.
    assert counted.read - counted.trained == counted.in_flight
    assert report.ledger.adds_up, report.ledger.identities
    assert report.eval is None
    _, manifest = open_checkpoint(run.folder, verify=True)
    assert manifest.examples_trained == counted.distinct
    assert {entry.role.partition("-")[0] for entry in manifest.files} >= {"dense", "embedding", "trainer"}


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a stopped process has been sent a signal that it has not seen."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in status if line.startswith("ShdPnd:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_ctrl_c_in_training(supervise: Supervise) -> None:
    job = supervise()
    job.wait_for_batches(30)
    job.process.signal(signal.SIGINT)
    wait_until(lambda: job.process.poll() is not None, "the job stops", STOP_SECONDS)
    assert job.process.code == 130, job.process.text()
    said = "shadowsync run: interrupted; continue from its last checkpoint with `shadowsync resume "
    assert job.last_line().startswith(said)
    check_interrupted(job.run)


def test_ctrl_c_twice_stops_at_once(supervise: Supervise) -> None:
    job = supervise()
    job.wait_for_batches(5)
    # A coordinator that hangs: the first interrupt does nothing to it.
    (coordinator,) = job.nodes("coordinator")
    coordinator.suspend()
    wait_until(lambda: coordinator.status() == psutil.STATUS_STOPPED, "the coordinator hangs")
    job.process.signal(signal.SIGINT)
    wait_until(lambda: is_pending(coordinator.pid, signal.SIGTERM), "the supervisor asks it to stop")
    job.process.signal(signal.SIGINT)
    wait_until(lambda: job.process.poll() is not None, "the job stops", STOP_SECONDS)
    assert job.process.code == 130, job.process.text()
    assert "no checkpoint was written" in job.last_line()
    assert "Traceback" not in job.process.text()


@pytest.mark.matrix
def test_sigterm_before_training(supervise: Supervise) -> None:
    job = supervise()
    wait_until(lambda: job.nodes("coordinator"), "the coordinator is started")
    job.process.signal(signal.SIGTERM)
    wait_until(lambda: job.process.poll() is not None, "the job stops", STOP_SECONDS)
    assert job.process.code == 130, job.process.text()
    assert "interrupted" in job.last_line()
    assert "Traceback" not in job.process.text()


@pytest.mark.matrix
def test_sigterm_while_nodes_are_starting(supervise: Supervise) -> None:
    job = supervise()
    wait_until(lambda: job.run.logged("reader-0 joined"), "the reader joins")
    job.process.signal(signal.SIGTERM)
    wait_until(lambda: job.process.poll() is not None, "the job stops", STOP_SECONDS)
    assert job.process.code == 130, job.process.text()
    assert "interrupted" in job.last_line()
    assert "Traceback" not in job.process.text()


def test_sigterm_of_the_coordinator_in_training(cluster: AnyClusterMaker) -> None:
    own = cluster({"data": {"epochs": 10_000}}).start()
    own.wait_for_batches(30)
    own.coordinator.interrupt()
    assert own.wait(STOP_SECONDS) == 130, own.coordinator.text()
    check_interrupted(own.run)
    assert own.run.report.model_saved == "the center (easgd)"
    for process in own.everyone():
        assert process.code == 130


def test_sigterm_of_one_node_stops_the_job_and_says_which(cluster: AnyClusterMaker) -> None:
    own = cluster({"data": {"epochs": 10_000}}).start()
    own.wait_for_batches(30)
    own.nodes["embedding"][0].interrupt()
    assert own.wait(STOP_SECONDS) == 130, own.coordinator.text()
    check_interrupted(own.run)
    assert own.run.logged("embedding-0 was interrupted")


@pytest.mark.parametrize(
    ("owner", "step"),
    [(controller, "drain"), (JobFinalizer, "finalize_trainers"), (JobFinalizer, "checkpoint")],
    ids=["drain", "closing round", "checkpoint"],
)
def test_ctrl_c_after_training_cuts_off_what_takes_long(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, owner: Any, step: str
) -> None:
    """After nine seconds the supervisor would kill it: no report, and no last checkpoint."""
    work, begun = getattr(owner, step), threading.Event()

    async def never_ends_at_first(*arguments: Any, **options: Any) -> Any:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return await work(*arguments, **options)

    monkeypatch.setattr(owner, step, never_ends_at_first)
    own = in_process().start()
    wait_until(begun.is_set, "the step is under way")
    own.coordinator.interrupt()
    assert own.wait(STOP_SECONDS) == 130, own.coordinator.text()
    check_interrupted(own.run)
    assert own.run.report.examples.distinct == EXAMPLES
