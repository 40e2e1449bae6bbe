"""The relay of an emulated network is killed: the job cannot go on, stops with a checkpoint, and says why."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.support.processes import wait_until
from shadowsync.tests.support.supervised import Supervised


@pytest.mark.matrix
def test_a_killed_relay_stops_the_job(supervise: Callable[..., Supervised]) -> None:
    job = supervise({"network": {"delay": "5ms"}})
    job.wait_for_batches(10)
    (relay,) = (
        child
        for child in psutil.Process(job.process.pid).children(recursive=True)
        if "shadowsync.nodes.supervisor.network.relay" in child.cmdline()
    )
    relay.kill()
    wait_until(lambda: job.process.poll() is not None, "the job stops")
    assert job.process.code == 6, job.process.text()
    assert job.last_line() == "shadowsync run: the relay of the slow network died (killed by SIGKILL)"
    report = job.run.report
    assert report.ledger.adds_up
    assert report.network is not None
    assert (report.network.means, report.network.relay_cpu_seconds) == ("relay", None)
    _, manifest = open_checkpoint(job.run.folder, verify=True)
    assert manifest.examples_trained == report.examples.distinct
