"""Whole jobs over an emulated network: on every link, and on those of synchronization."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.support.processes import Starter
from shadowsync.tests.support.runs import EXAMPLES, JobMaker, RunFolder

RATE = 2.5e6
FIXED = {"sync": {"algorithm": "easgd", "nodes": 1, "mode": "fixed", "every": 10}}


@pytest.fixture
def report(starter: Starter, job_file: JobMaker, tmp_path: Path, request: pytest.FixtureRequest) -> Report:
    """Of a job that was run with these options."""
    process = starter.fork("run", str(job_file(FIXED)), *request.param)
    assert process.wait(100.0) == 0, process.text()
    found = RunFolder(tmp_path / "runs" / "small").report
    assert found.examples.distinct == EXAMPLES
    assert found.ledger.adds_up
    assert "Emulated network, by" in process.text()
    return found


ALL_BY_RELAY = [
    *("--delay", "5ms", "--delay-links", "all", "--emulation", "relay", "--set", "network.transport=tcp")
]


@pytest.mark.parametrize("report", [ALL_BY_RELAY], indirect=True)
def test_every_link_by_relay_over_tcp(report: Report) -> None:
    network = report.network
    assert network is not None
    assert (network.means, network.links) == ("relay", "all")
    assert network.relay_bytes is not None
    # Batches, lookups and pushes, which are far more than the replicas.
    assert network.relay_bytes > 3 * report.sync.bytes
    assert report.sync.seconds_mean is not None
    assert report.sync.seconds_mean >= 0.01


@pytest.mark.parametrize("report", [["--bandwidth", "20mbit"]], indirect=True)
def test_the_links_of_synchronization_at_a_rate(report: Report) -> None:
    network = report.network
    assert network is not None
    assert (network.means, network.links, network.delay_seconds) == ("relay", "sync", 0.0)
    assert report.sync.rounds > 0
    one_way = report.sync.bytes / report.sync.rounds / 2
    assert report.sync.seconds_mean is not None
    assert one_way > 40_000, "so that it takes 32 ms at least; loopback alone would take a few"
    assert report.sync.seconds_mean > 0.9 * 2 * one_way / RATE
