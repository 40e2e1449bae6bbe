"""Whole jobs whose rounds are due by iterations, and what the report says of the first ones."""

from __future__ import annotations

import math
import threading
from collections import Counter

import pytest
from shadowsync.nodes.shadow import schedule
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.worker import Worker
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.in_process_node import current_node
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import ENOUGH_SECONDS, wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings

GAP = 10
TRAINERS = 2
# Of each trainer, in which the report counts the rounds.
FIRST = 100
# At most, of this job: the last one of each file has fewer examples.
BATCHES = EXAMPLES // 128 + 4


def most_rounds(run: RunFolder) -> int:
    """Every round but the first and the closing one needs GAP iterations of one of the trainers."""
    return TRAINERS * (run.batches() // GAP + 2)


@pytest.mark.parametrize("algorithm", ["easgd", pytest.param("ma", marks=pytest.mark.matrix)])
def test_a_gap_bounds_the_rounds(
    cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch, algorithm: str
) -> None:
    # A trainer without input begins no round by itself, however long that lasts.
    monkeypatch.setattr(schedule, "STALLED_SECONDS", math.inf)
    run = finished(cluster, {"sync": {"duty": 1.0, "algorithm": algorithm, "gap": GAP}})
    report = run.report
    # At the least the closing ones.
    assert TRAINERS <= report.sync.rounds <= most_rounds(run)
    assert set(report.sync.first_rounds) <= {"trainer-0", "trainer-1"}


def test_without_a_gap_there_are_more(cluster: ClusterMaker) -> None:
    """The control, of a job that trains slowly until there were: which is faster is up to the machine."""
    slowed = Slowed(at=1)
    own = cluster({"sync": {"duty": 1.0}}, faults=(slowed,)).start()
    enough = TRAINERS * (BATCHES // GAP + 2)
    wait_until(lambda: own.status()["sync"]["rounds"] > enough, "there were more rounds")
    slowed.release()
    own.ended()
    assert own.run.batches() <= BATCHES
    assert own.report.sync.rounds > most_rounds(own.run)


def each_has_its_first(patch: pytest.MonkeyPatch) -> None:
    """No fault, but a trainer that has done its first FIRST iterations waits until the other has, too."""
    compute, begun, together = Worker._compute, Counter[str](), threading.Barrier(TRAINERS)

    def patient(worker: Worker, batch: InFlightBatch) -> None:
        node = present(current_node())
        if batch.training:
            begun[node.name] += 1
            if begun[node.name] == FIRST + 1:
                together.wait(ENOUGH_SECONDS)
        compute(worker, batch)

    patch.setattr(Worker, "_compute", patient)


@pytest.mark.matrix
def test_few_rounds_at_the_start_are_told(cluster: ClusterMaker) -> None:
    changes: Settings = {"data": {"epochs": 2}, "sync": {"mode": "fixed", "every": 50}}
    report = finished(cluster, changes, faults=(each_has_its_first,)).report
    # They began after 50 and 100 iterations.
    assert report.sync.first_rounds == {"trainer-0": 2, "trainer-1": 2}
    (text,) = [text for text in report.warnings if "synchronized" in text]
    assert text.startswith("trainer-0 synchronized 2 times in its first 100 iterations; 1 other trainer")
    assert "lower sync.every (50)" in text
