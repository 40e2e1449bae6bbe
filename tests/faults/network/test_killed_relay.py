"""The relay of an emulated network is killed: the job cannot go on, stops with a checkpoint, and says why."""

from __future__ import annotations

import psutil
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.supervised import Supervise, Supervised

pytestmark = pytest.mark.matrix


@pytest.fixture
def slow_job(supervise: Supervise) -> Supervised:
    """A job that trains across a relay."""
    job = supervise({"network": {"delay": "5ms"}})
    job.wait_for_batches(10)
    return job


def relay_of(job: Supervised) -> psutil.Process:
    """The job's relay."""
    (relay,) = (
        child for child in job.process.offspring() if "shadowsync.lab.network.relay" in child.cmdline()
    )
    return relay


def test_a_killed_relay_stops_the_job(slow_job: Supervised) -> None:
    relay_of(slow_job).kill()
    report = slow_job.ended(6)
    died = "the relay of the slow network died (killed by SIGKILL)"
    assert slow_job.last_line().startswith(f"shadowsync run: {died}; continue from its last checkpoint with ")
    assert (report.exit_code, report.outcome) == (6, f"stopped: {died}")
    network = present(report.network)
    assert (network.means, network.relay_cpu_seconds) == ("relay", None)
    _, manifest = open_checkpoint(slow_job.run.folder, verify=True)
    assert manifest.examples_trained == report.examples.distinct


def test_no_coordinator_takes_over_without_the_relay(slow_job: Supervised) -> None:
    relay = relay_of(slow_job)
    slow_job.node("coordinator").kill()
    relay.kill()
    assert slow_job.process.wait() == 6, slow_job.process.text()
    assert "shadowsync run: the relay of the slow network died (killed by SIGKILL)" in slow_job.last_line()
