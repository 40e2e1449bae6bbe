"""Whole jobs whose rounds are due by iterations, and what the report says of the first ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from shadowsync.nodes.shadow import schedule
from shadowsync.tests.support.jobs.in_process_cluster import InProcessCluster, finished_run
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder

Clusters = Callable[..., InProcessCluster]

GAP = 10
TRAINERS = 2
# At most, of this job: the last one of each file has fewer examples.
BATCHES = EXAMPLES // 128 + 4


def most_rounds(run: RunFolder) -> int:
    """Every round but the first and the closing one needs GAP iterations of one of the trainers."""
    return TRAINERS * (run.batches() // GAP + 2)


@pytest.fixture
def finished(cluster: Clusters, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Runs a job to its end. A trainer without input begins no round by itself, however long that lasts."""
    monkeypatch.setattr(schedule, "STALLED_SECONDS", math.inf)

    def run(sync: dict[str, Any], epochs: int = 1, **trainer: Any) -> RunFolder:
        changes = {"data": {"epochs": epochs}, "sync": {"duty": 1.0} | sync, "trainer": trainer}
        return finished_run(cluster, changes)

    return run


@pytest.mark.parametrize("algorithm", ["easgd", pytest.param("ma", marks=pytest.mark.matrix)])
def test_a_gap_bounds_the_rounds(finished: Callable[..., RunFolder], algorithm: str) -> None:
    run = finished({"algorithm": algorithm, "gap": GAP})
    report = run.report
    assert report.ledger.adds_up
    # At the least the closing ones.
    assert TRAINERS <= report.sync.rounds <= most_rounds(run)
    assert set(report.sync.first_rounds) <= {"trainer-0", "trainer-1"}


def test_without_a_gap_there_are_more(cluster: Clusters) -> None:
    """The control, of a job that trains slowly until there were: which is faster is up to the machine."""
    slowed = Slowed(at=1)
    own = cluster({"sync": {"duty": 1.0}}, faults=(slowed,)).start()
    enough = TRAINERS * (BATCHES // GAP + 2)
    wait_until(lambda: own.status()["sync"]["rounds"] > enough, "there were more rounds")
    slowed.release()
    assert own.wait() == 0, own.coordinator.text()
    assert own.run.batches() <= BATCHES
    assert own.report.sync.rounds > most_rounds(own.run)


def test_few_rounds_at_the_start_are_told(finished: Callable[..., RunFolder]) -> None:
    # Long enough for a hundred iterations of each trainer, however unequal they are.
    report = finished({"mode": "fixed", "every": 50}, epochs=3).report
    # They began after 50 and 100 iterations.
    assert report.sync.first_rounds == {"trainer-0": 2, "trainer-1": 2}
    (text,) = [text for text in report.warnings if "synchronized" in text]
    assert text.startswith("trainer-0 synchronized 2 times in its first 100 iterations; 1 other trainer")
    assert "lower sync.every (50)" in text
