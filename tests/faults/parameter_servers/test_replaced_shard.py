"""An embedding node is killed while the job trains: another one takes its place and gets what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.ledger.owed_batches import OwedBatches
from shadowsync.nodes.coordinator.shutdown import JobFinalizer
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.faults.conftest import (
    ENDLESS,
    dead_embedding_nodes,
    goes_on_with_another,
    replace_embedding_nodes,
)
from shadowsync.tests.support.jobs.in_process_cluster import (
    ClusterMaker,
    InProcessCluster,
    finished,
    slowed_at,
)
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise

CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"span_bytes": 1 << 16},
    "embedding": {"nodes": 2},
}


def _changed(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: CHANGES.get(name, {}) | sections.get(name, {}) for name in {**CHANGES, **sections}}


def _ended_whole(own: InProcessCluster) -> Report:
    """Waits for the end: every shard has every batch, and no identity is unknown."""
    report = own.ended_whole()
    assert report.examples.replayed > 0, "the control: something was lost"
    assert len(report.ledger.shard_applied) == 2
    assert not report.ledger.shard_applied.keys() & dead_embedding_nodes(own.run)
    assert len(set(report.ledger.shard_applied.values())) == 1
    return report


@pytest.mark.parametrize(
    "embedding",
    [
        {},
        pytest.param({"threads": 3, "storage": "bfloat16"}, marks=pytest.mark.matrix),
        # Rows on disk, of which a third have places in memory.
        pytest.param({"threads": 2, "memory_bytes": 400_000}, marks=pytest.mark.matrix),
    ],
)
def test_another_one_gets_every_batch(in_process: ClusterMaker, embedding: dict[str, Any]) -> None:
    changes = _changed(embedding=CHANGES["embedding"] | embedding)
    own, slowed = slowed_at(30, in_process, changes)
    replace_embedding_nodes(own)
    slowed.release()
    events = [event.what for event in _ended_whole(own).events if event.node == "embedding-2"]
    assert events[0] == "joined the running job with newly initialized rows"
    assert "batches that it lacks will be trained again" in events[1]
    # The others knew these batches.
    ((again,),) = own.run.query("SELECT sum(acknowledgements - 1) FROM batches")
    assert events[1].startswith(f"{again:,} batches")


def test_it_goes_on_from_the_last_checkpoint(in_process: ClusterMaker) -> None:
    slowed = Slowed(60)
    # The next one is due when twice as many batches are trained.
    changes = _changed(checkpoint={"every_examples": 6_000})
    own = in_process(changes, faults=(slowed,)).start()
    wait_until(lambda: (own.run.folder / "checkpoint").exists(), "a checkpoint is written")
    # Batches that its rows lack, beside those that the ledger did not have yet.
    own.wait_for_batches(own.run.batches() + 16)
    replace_embedding_nodes(own)
    slowed.release()
    joined = next(event.what for event in _ended_whole(own).events if event.node == "embedding-2")
    assert "with the rows of a checkpoint" in joined


@pytest.mark.matrix
def test_all_of_them_die_at_once(in_process: ClusterMaker) -> None:
    own, slowed = slowed_at(30, in_process, CHANGES)
    replace_embedding_nodes(own, 2)
    slowed.release()
    _ended_whole(own)


@pytest.mark.matrix
def test_a_trainer_dies_meanwhile(in_process: ClusterMaker) -> None:
    """What it had of the batches that are trained again, others train."""
    own, slowed = slowed_at(30, in_process, CHANGES)
    own.nodes["trainer"][0].kill()
    replace_embedding_nodes(own)
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert len(set(report.ledger.shard_applied.values())) == 1


@pytest.mark.matrix
def test_it_dies_in_the_only_span(in_process: ClusterMaker, click_log: Path) -> None:
    """What it had applied can be read again when the span is complete; its reader waits for more by then."""
    file = sorted(click_log.glob("train-*.parquet"))[0]
    own, slowed = slowed_at(20, in_process, _changed(data={"path": str(file), "epochs": 1}))
    replace_embedding_nodes(own)
    slowed.release()
    report = own.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert report.examples.distinct == EXAMPLES // 2
    assert report.examples.replayed > 0


@pytest.mark.matrix
def test_it_dies_when_training_has_ended(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes its place any more: the job stops, and says so in its report."""
    own = in_process(CHANGES)
    measure = JobFinalizer.measure_divergence

    async def measure_while_it_dies(self: JobFinalizer) -> None:
        own.nodes["embedding"][0].kill()
        await measure(self)
        await self._server.wait_for(lambda: bool(self._state.vacancies.empty_shards()))

    monkeypatch.setattr(JobFinalizer, "measure_divergence", measure_while_it_dies)
    own.start()
    report = own.ended(ExitCode.STOPPED_BY_DEATH, distinct=EXAMPLES)
    assert "rows are lost" in own.coordinator.text()
    assert report.model_saved is None


@pytest.mark.matrix
def test_a_shard_that_is_not_asked_what_it_lacks_is_red(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the batches of the dead one are in no row any more, and the ledger says so."""
    restore = OwedBatches.restore_shard
    monkeypatch.setattr(OwedBatches, "restore_shard", lambda self, number, _: restore(self, number, ()))
    own, slowed = slowed_at(30, in_process, CHANGES)
    replace_embedding_nodes(own)
    slowed.release()
    assert own.wait() == ExitCode.LEDGER, own.coordinator.text()
    red = [one.name for one in own.run.report.ledger.identities if one.holds is False]
    assert red == ["batches applied by embedding-2 = distinct batches"]


def test_nobody_takes_its_place(in_process: ClusterMaker) -> None:
    own = in_process(_changed(run=CHANGES["run"] | {"rejoin_seconds": 0.5}, data=ENDLESS)).start()
    own.wait_for_batches(30)
    own.nodes["embedding"][0].kill()
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    assert report.model_saved is None
    assert "it died" in {one.unknown for one in report.ledger.identities if one.holds is None}


@pytest.mark.matrix
def test_a_job_that_is_stopped_meanwhile_is_resumed_whole(in_process: ClusterMaker) -> None:
    """What the new shard lacks is not in the checkpoint's ledger, so the next run trains it."""
    own, slowed = slowed_at(30, in_process, CHANGES)
    replace_embedding_nodes(own)
    wait_until(lambda: own.run.logged("batches that it lacks will be trained again"), "it is known")
    own.interrupted()
    slowed.release()
    first = RunFolder(own.run.folder.resolve())
    report = finished(in_process, going_on(CHANGES, first)).report
    assert report.restored_examples < first.report.examples.distinct, "the control: something was owed"
    assert report.restored_examples + report.examples.distinct == EXAMPLES


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    job = supervise()
    goes_on_with_another(job, "embedding", "batches that it lacks will be trained again")
    job.interrupted()
