"""A reader is killed while the job trains: what it had read and nobody had trained is read again."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.model import Report
from shadowsync.tests.faults.conftest import ENDLESS, FEW_NODES, AnyClusterMaker
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES
from shadowsync.tests.support.jobs.supervised import Supervise

EPOCHS = 1
# Small spans, so that a reader has several of them in its life.
SMALL = {"epochs": EPOCHS, "span_bytes": 1 << 16, "readers": 2}
QUICK = {"node_timeout_seconds": 2.0}


def _require_whole(report: Report, epochs: int = EPOCHS) -> None:
    """Everything was read, trained once, and no identity is unknown."""
    assert report.ledger.adds_up, report.ledger.identities
    assert [one.name for one in report.ledger.identities if one.holds is None] == []
    assert report.examples.distinct == epochs * EXAMPLES
    assert report.examples.replayed == 0
    assert report.examples.read == report.examples.trained + report.examples.returned


def test_the_other_reader_reads_what_it_had(cluster: AnyClusterMaker) -> None:
    slowed = Slowed(20)
    own = cluster({"run": QUICK, "data": SMALL}, faults=(slowed,)).start()
    own.wait_for_batches(20)
    own.nodes["reader"][0].kill()
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS)
    _require_whole(report)
    said = [event.what for event in report.events if event.node.startswith("reader")]
    assert any("can be read again after" in what or "was trained" in what for what in said), said


@pytest.mark.matrix
def test_another_one_takes_the_place_of_the_only_one(in_process: ClusterMaker) -> None:
    """It joins the running job, under a name of its own."""
    slowed = Slowed(20)
    own = in_process({"run": QUICK, "data": SMALL | {"readers": 1}}, faults=(slowed,)).start()
    own.wait_for_batches(20)
    own.nodes["reader"][0].kill()
    own.join("reader")
    slowed.release()
    assert own.wait() == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    _require_whole(own.run.report)
    events = [(event.node, event.what) for event in own.run.report.events]
    assert ("reader-1", "joined the running job") in events


def test_nobody_takes_the_place_of_the_only_one(cluster: AnyClusterMaker) -> None:
    changes: dict[str, dict[str, Any]] = {"run": QUICK | {"rejoin_seconds": 0.5}, "data": ENDLESS}
    own = cluster(FEW_NODES | changes).start()
    own.wait_for_batches(20)
    own.nodes["reader"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    last = "reader-0, the last reader, died; its undelivered batches were not trained"
    assert last in own.coordinator.text()
    assert [one.name for one in report.ledger.identities if one.holds is None] == []


@pytest.mark.matrix
def test_a_trainer_dies_with_it(in_process: ClusterMaker) -> None:
    """What the one had sent to the other is known to neither, and read again all the same."""
    slowed = Slowed(20)
    own = in_process({"run": QUICK, "data": SMALL, "trainer": {"count": 2}}, faults=(slowed,)).start()
    own.wait_for_batches(20)
    own.nodes["trainer"][0].kill()
    own.nodes["reader"][0].kill()
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EPOCHS * EXAMPLES)
    assert [one.name for one in report.ledger.identities if one.holds is None] == []


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_reader_joins_though_none_has_died(in_process: ClusterMaker) -> None:
    slowed = Slowed(20)
    own = in_process({"run": QUICK, "data": SMALL | {"epochs": 2, "readers": 1}}, faults=(slowed,)).start()
    own.wait_for_batches(20)
    own.join("reader")
    wait_until(lambda: own.run.query("SELECT 1 FROM spans WHERE reader = 'reader-1'"), "it has a span")
    slowed.release()
    assert own.wait() == 0, own.coordinator.text()
    _require_whole(own.run.report, epochs=2)
    readers = own.run.query("SELECT DISTINCT reader FROM spans ORDER BY reader")
    assert readers == [("reader-0",), ("reader-1",)]


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    """Again and again, as often as the job file says."""
    job = supervise({"run": QUICK | {"restarts": 2}, "data": SMALL | {"readers": 1} | ENDLESS})
    for deaths in range(2):
        job.wait_for_batches(20)
        job.node("reader").kill()
        joined = f"reader-{deaths + 1}: joined the running job"
        wait_until(lambda said=joined: job.run.logged(said), joined)  # type: ignore[misc]
        trained = job.run.batches()
        job.wait_for_batches(trained + 100)
    job.node("reader").kill()
    assert job.process.wait() == ExitCode.STOPPED_BY_DEATH, job.process.text()
    assert "reader-2, the last reader, died" in job.last_line()
    assert job.run.report.ledger.adds_up, job.run.report.ledger.identities
