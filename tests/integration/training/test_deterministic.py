"""Deterministic mode: the same job gives the same bytes, whatever else the machine does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.deterministic import STEPS, deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished
from shadowsync.tests.support.jobs.node_faults import lose_push_replies
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import JobMaker, RunFolder, Settings

FIXED = {"sync": {"mode": "fixed", "every": 7}}
NONE = {"sync": {"algorithm": "none"}}


@contextmanager
def load() -> Iterator[None]:
    """Keeps one core busy."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def test_two_runs_are_alike_and_another_seed_is_not(cluster: ClusterMaker) -> None:
    first = finished(cluster, deterministic(FIXED, 1, "first"))
    with load():
        second = finished(cluster, deterministic(FIXED, 1, "second"))
    other = finished(cluster, deterministic(FIXED, 2, "other"))
    assert was_trained(first)
    assert first.batches() == STEPS >= 150
    assert digests(first) == digests(second)
    assert digests(first).keys() == digests(other).keys()
    assert not set(digests(first).values()) & set(digests(other).values())
    assert first.report.eval is not None
    assert second.report.eval is not None
    assert first.report.eval.ne == pytest.approx(second.report.eval.ne, abs=1e-12)
    assert first.report.train.ne_progressive == second.report.train.ne_progressive


@pytest.mark.matrix
def test_a_push_that_comes_twice_changes_the_rows_once(cluster: ClusterMaker) -> None:
    """To the bit: a count of what was applied would not show a push that was applied again."""
    unharmed = finished(cluster, deterministic(NONE, 1, "unharmed"))
    own = cluster(deterministic(NONE, 1, "repeated"), faults=(lose_push_replies,)).start()
    assert own.wait() == 0, own.coordinator.text()
    assert own.run.logged("a pushed was lost", ["embedding-0"])
    ((repeated,),) = own.run.query("SELECT repeated FROM shards")
    # More if the machine stood still so long that it was sent once more.
    assert repeated >= 1
    assert digests(own.run) == digests(unharmed)


@pytest.mark.matrix
def test_shared_memory_changes_no_byte(cluster: ClusterMaker) -> None:
    """Neither in training nor in scoring, and whichever way a batch's rows took."""
    runs = []
    for shared in (True, False):
        changes: Settings = {**FIXED, "network": {"shared_memory": shared}}
        own = cluster(deterministic(changes, 1, str(shared))).start()
        assert own.wait() == 0, own.coordinator.text()
        runs.append(RunFolder(own.run.folder.resolve()))
        assert runs[-1].logged("of memory with worker", ["embedding-0"]) == shared
    first, *others = runs
    assert was_trained(first)
    for other in others:
        assert digests(first) == digests(other)
        assert other.report.eval is not None
        assert first.report.eval is not None
        assert other.report.eval.ne == pytest.approx(first.report.eval.ne, abs=1e-12)


@pytest.mark.matrix
def test_processes_of_their_own_start_give_the_same_bytes(
    cluster: ClusterMaker, starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    """Forked nodes share what a process draws at its start, for example the seed of its hashes."""
    forked = finished(cluster, deterministic(NONE, 1, "forked"))
    job = job_file(deterministic(NONE, 1, "spawned"), "spawned.toml")
    process = starter.spawn("run", str(job), environment={"PYTHONHASHSEED": "4711"})
    assert process.wait() == 0, process.text()
    assert digests(forked) == digests(RunFolder(tmp_path / "runs" / "spawned"))
