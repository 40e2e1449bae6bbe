"""Whole jobs over an emulated network: on every link, and on those of synchronization.

What the relay makes of a delay and a rate is tested on a clock that stands still, in its own tests.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder

RATE = 2.5e6
FIXED = {"sync": {"algorithm": "easgd", "nodes": 1, "mode": "fixed", "every": 10}}


@pytest.fixture
def report(starter: Starter, job_file: JobMaker, tmp_path: Path, request: pytest.FixtureRequest) -> Report:
    """Of a job that was run with these options."""
    text = starter.ended("run", str(job_file(FIXED)), *request.param)
    found = RunFolder(tmp_path / "runs" / "small").report
    assert found.examples.distinct == EXAMPLES
    assert found.ledger.adds_up
    assert "Emulated network, by" in text
    return found


ALL_BY_RELAY = [*("--delay", "5ms", "--delay-links", "all", "--set", "network.transport=tcp")]


@pytest.mark.parametrize("report", [ALL_BY_RELAY], indirect=True)
def test_every_link_by_relay_over_tcp(report: Report) -> None:
    network = present(report.network)
    assert (network.means, network.links, network.delay_seconds) == ("relay", "all", 0.005)
    # Batches, lookups and pushes, which are far more than the replicas.
    assert present(network.relay_bytes) > 3 * report.sync.bytes


@pytest.mark.matrix
@pytest.mark.parametrize("report", [["--bandwidth", "20mbit"]], indirect=True)
def test_the_links_of_synchronization_at_a_rate(report: Report) -> None:
    network = present(report.network)
    assert (network.means, network.links, network.delay_seconds) == ("relay", "sync", 0.0)
    assert report.sync.rounds > 0
    assert network.bytes_per_second == RATE
    assert network.relay_bytes is not None
    assert 0.9 * report.sync.bytes < network.relay_bytes < 3 * report.sync.bytes, "these links and no others"
