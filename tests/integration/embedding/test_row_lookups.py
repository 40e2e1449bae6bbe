"""How rows are looked up, in whole jobs: ahead, and each distinct one once."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.worker import Worker
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker, RunFolder, Settings

NONE = {"sync": {"algorithm": "none"}}
BATCHES = 2 * -(-EXAMPLES // 2 // 128)
"""Of the two files of the log."""


def waits_for_the_reader(patch: pytest.MonkeyPatch) -> None:
    """A worker that trains only when it looks as far ahead as it may, however slow its reader is."""
    next_ready = Worker._next_ready

    def patient(worker: Worker) -> InFlightBatch | None:
        left = BATCHES - int(worker._context.iterations[worker.index])
        return (
            next_ready(worker)
            if len(worker._batches) >= min(1 + worker._connections.prefetch.lookups_ahead, left)
            else None
        )

    patch.setattr(Worker, "_next_ready", patient)


@pytest.mark.parametrize("ahead", [4, *(pytest.param(count, marks=pytest.mark.matrix) for count in (0, 1))])
def test_staleness_is_by_how_many_batches_a_worker_looks_ahead(cluster: ClusterMaker, ahead: int) -> None:
    """Of one worker nobody else's pushes come between; each number is the control of the others."""
    trainer = {"count": 1, "lookups_ahead": ahead, "credit": 8, "exact_rows": False}
    run = finished(cluster, {**NONE, "trainer": trainer}, faults=(waits_for_the_reader,))
    assert run.batches() == BATCHES
    assert run.report.staleness.embedding_max == ahead
    # The first ones had nobody before them: 0, 1, ..., and all others as many as are looked ahead.
    pushes_between = sum(min(number, ahead) for number in range(BATCHES))
    assert run.report.staleness.embedding_mean == pytest.approx(pushes_between / BATCHES)


def test_a_trainer_adds_what_its_rows_lack(cluster: ClusterMaker) -> None:
    """The control is the test before."""
    trainer = {"count": 1, "lookups_ahead": 4, "credit": 8}
    run = finished(cluster, {**NONE, "trainer": trainer}, faults=(waits_for_the_reader,))
    assert run.batches() == BATCHES
    assert run.report.staleness.embedding_max == 0


@pytest.mark.parametrize("ahead", [1, pytest.param(0, marks=pytest.mark.matrix)])
def test_a_worker_does_not_wait_while_a_batch_is_there(cluster: ClusterMaker, ahead: int) -> None:
    waits: list[bool] = []

    def note_waits(patch: pytest.MonkeyPatch) -> None:
        receive = Worker._receive

        def noting(worker: Worker, milliseconds: int) -> None:
            if milliseconds and worker._drain is None:
                has_room = len(worker._batches) <= worker._connections.prefetch.lookups_ahead
                waits.append(has_room and any(batch.training for batch in worker._inbox))
            receive(worker, milliseconds)

        patch.setattr(Worker, "_receive", noting)

    trainer = {"count": 1, "lookups_ahead": ahead}
    finished(cluster, {**NONE, "trainer": trainer}, faults=(note_waits,))
    assert waits
    assert not any(waits), f"{sum(waits)} of {len(waits)} waits were for nothing"


def switches(run: RunFolder) -> int:
    """How often the trainer changes between a batch and the next one of its span."""
    rows = run.query("SELECT epoch, span, trainer FROM batches ORDER BY epoch, span, number")
    return sum(one[:2] == other[:2] and one[2] != other[2] for one, other in pairwise(rows))


def two_begin_together(patch: pytest.MonkeyPatch) -> None:
    """Two workers of which none trains before both have a batch: one could train all of them."""
    compute, together = Worker._compute, threading.Barrier(2)
    begun: set[Worker] = set()

    def patient(worker: Worker, batch: InFlightBatch) -> None:
        if worker not in begun:
            begun.add(worker)
            together.wait(ENOUGH_SECONDS)
        compute(worker, batch)

    patch.setattr(Worker, "_compute", patient)


@pytest.mark.matrix
def test_consecutive_batches_are_trained_by_one_trainer(cluster: ClusterMaker) -> None:
    def run(consecutive: int) -> RunFolder:
        trainer = {"count": 2, "batch": 32, "consecutive_batches": consecutive}
        return finished(cluster, {**NONE, "trainer": trainer}, faults=(two_begin_together,))

    together, apart = run(16), run(1)
    assert together.batches() == apart.batches()
    # A turn may begin in one span and end in the next.
    most = together.batches() // 16
    assert 1 <= switches(together) <= most
    assert switches(apart) > most, "the control"


def ended(cluster: ClusterMaker, name: str, **trainer: object) -> RunFolder:
    return finished(cluster, deterministic({**NONE, "trainer": trainer}, 1, name))


@pytest.mark.matrix
def test_asking_for_distinct_rows_changes_no_bit(cluster: ClusterMaker) -> None:
    plain, distinct = ended(cluster, "plain"), ended(cluster, "distinct", distinct_rows=True)
    assert was_trained(plain)
    assert digests(plain) == digests(distinct)
    assert plain.report.staleness.embedding_max == 0


@pytest.mark.parametrize("kind", ["categorical", "multi_hot"])
def test_every_node_knows_of_a_batch_that_has_no_row_there(
    cluster: ClusterMaker, tmp_path: Path, kind: str
) -> None:
    """The last batch is one example: its one row is on one of the nodes, its empty bag on none."""
    log = tmp_path / "log.csv"
    rows = [f"{number % 2},{number}.5,{number}" for number in range(64)]
    last = "1,0.5," + ("7" if kind == "categorical" else "")
    log.write_text("\n".join(["y,d,x", *rows, last]) + "\n", encoding="utf-8")
    data = {
        "format": "csv",
        "path": str(log),
        "eval_path": None,
        "columns": {"y": "label", "d": "dense", "x": kind},
        "shuffle_window": 0,
    }
    changes: Settings = {"data": data, "trainer": {"count": 1, "batch": 64}, "embedding": {"nodes": 2}}
    ended = finished(cluster, {**NONE, **changes})
    # The control: there was such a batch.
    assert ended.batches() == 2
    assert sorted(ended.report.ledger.shard_applied.values()) == [2, 2]


FAR: Settings = {
    "network": {"delay": "100ms", "delay_links": "all"},
    # So that the staleness tells how far it looked.
    "trainer": {"count": 1, "batch": 1024, "exact_rows": False},
    "data": {"epochs": 4},
    **NONE,
}


def test_a_worker_that_waits_for_far_rows_looks_further_ahead(
    starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    """A round trip of 0.2 s is several steps on any machine. The start has 50,000 examples."""
    starter.ended("run", str(job_file(FAR)))
    staleness = RunFolder(tmp_path / "runs" / "latest").report.staleness
    # That it looked further ahead; a machine that stands still in the next window lets it go back.
    assert present(staleness.embedding_max) > 1
    assert set(staleness.lookups_ahead) == {"trainer-0"}


@pytest.mark.parametrize("exact", [True, False])
def test_workers_of_a_job_that_warms_up_begin_one_after_the_other(cluster: ClusterMaker, exact: bool) -> None:
    """The first trains three times the warm-up alone; without exact rows one batch after the other."""
    alone, workers = 3 * 10, 3
    begun = [threading.Event() for _ in range(workers)]
    first: dict[int, int] = {}
    ahead: list[tuple[int, int]] = []

    def note(patch: pytest.MonkeyPatch) -> None:
        compute = Worker._compute

        def noting(worker: Worker, batch: InFlightBatch) -> None:
            context = worker._context
            before = int(context.iterations.sum())
            if batch.training and context.is_starting():
                ahead.append((worker.index, len(worker._batches)))
            if batch.training:
                first.setdefault(worker.index, before)
                begun[worker.index].set()
                # One worker could train all of the rest.
                for other in range(workers):
                    assert not context.has_begun(other) or begun[other].wait(ENOUGH_SECONDS)
            compute(worker, batch)

        patch.setattr("shadowsync.pipeline.config.job.LEAST_START_EXAMPLES", 0)
        patch.setattr(Worker, "_compute", noting)

    settings: Settings = {
        "trainer": {"count": 1, "workers": workers, "lookups_ahead": 4, "exact_rows": exact},
        "embedding": {"warmup_iterations": 10},
        **NONE,
    }
    run = finished(cluster, settings, faults=(note,))
    assert [worker for worker, _ in ahead] == [0] * alone
    assert (max(count for _, count in ahead) > 1) == exact
    assert set(first) == {0, 1, 2}
    assert all(first[worker] >= worker * alone for worker in first)
    assert run.batches() == BATCHES
