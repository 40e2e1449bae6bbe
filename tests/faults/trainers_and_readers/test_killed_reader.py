"""A reader is killed while the job trains: what it had read and nobody had trained is read again."""

from __future__ import annotations

from typing import Any

import pytest
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.faults.conftest import (
    ENDLESS,
    FEW_NODES,
    AnyCluster,
    AnyClusterMaker,
    goes_on_with_another,
)
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, slowed_at
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.supervised import Supervise

# Small spans, so that a reader has several of them in its life.
SMALL = {"span_bytes": 1 << 16, "readers": 2}
QUICK = {"node_timeout_seconds": 2.0}


def _ended_whole(own: AnyCluster, code: ExitCode = ExitCode.FINISHED_WITH_DEATHS) -> Report:
    """Waits for the end: everything was read, trained once, and nothing for a dead node again."""
    report = own.ended_whole(code)
    assert report.examples.replayed == 0
    return report


def test_the_other_reader_reads_what_it_had(cluster: AnyClusterMaker) -> None:
    own, slowed = slowed_at(20, cluster, {"run": QUICK, "data": SMALL})
    own.nodes["reader"][0].kill()
    slowed.release()
    report = _ended_whole(own)
    said = [event.what for event in report.events if event.node.startswith("reader")]
    assert any("can be read again after" in what or "was trained" in what for what in said), said


@pytest.mark.matrix
def test_another_one_takes_the_place_of_the_only_one(in_process: ClusterMaker) -> None:
    """It joins the running job, under a name of its own."""
    own, slowed = slowed_at(20, in_process, {"run": QUICK, "data": SMALL | {"readers": 1}})
    own.nodes["reader"][0].kill()
    own.join("reader")
    slowed.release()
    events = [(event.node, event.what) for event in _ended_whole(own).events]
    assert ("reader-1", "joined the running job") in events


def test_nobody_takes_the_place_of_the_only_one(in_process: ClusterMaker) -> None:
    changes: dict[str, dict[str, Any]] = {"run": QUICK | {"rejoin_seconds": 0.5}, "data": ENDLESS}
    own = in_process(FEW_NODES | changes).start()
    own.wait_for_batches(20)
    own.nodes["reader"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    last = "reader-0, the last reader, died; its undelivered batches were not trained"
    assert last in own.coordinator.text()
    assert [one.name for one in report.ledger.identities if one.holds is None] == []


@pytest.mark.matrix
def test_a_trainer_dies_with_it(in_process: ClusterMaker) -> None:
    """What the one had sent to the other is known to neither, and read again all the same."""
    own, slowed = slowed_at(20, in_process, {"run": QUICK, "data": SMALL, "trainer": {"count": 2}})
    own.nodes["trainer"][0].kill()
    own.nodes["reader"][0].kill()
    slowed.release()
    own.ended_whole()


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_reader_joins_though_none_has_died(in_process: ClusterMaker) -> None:
    own, slowed = slowed_at(20, in_process, {"run": QUICK, "data": SMALL | {"readers": 1}})
    own.join("reader")
    wait_until(lambda: own.run.query("SELECT 1 FROM spans WHERE reader = 'reader-1'"), "it has a span")
    slowed.release()
    _ended_whole(own, ExitCode.OK)
    readers = own.run.query("SELECT DISTINCT reader FROM spans ORDER BY reader")
    assert readers == [("reader-0",), ("reader-1",)]


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    """Again and again, as often as the job file says."""
    job = supervise({"run": QUICK | {"restarts": 2}, "data": SMALL | {"readers": 1} | ENDLESS})
    for deaths in range(2):
        goes_on_with_another(job, "reader", f"reader-{deaths + 1}: joined the running job")
    job.node("reader").kill()
    job.ended(ExitCode.STOPPED_BY_DEATH)
    assert "reader-2, the last reader, died" in job.last_line()
