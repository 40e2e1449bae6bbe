"""Deterministic mode: the same job gives the same bytes, whatever else the machine does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shadowsync.tests.support.jobs.deterministic import STEPS, deterministic, digests, was_trained
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, shared_run
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


@pytest.fixture(scope="module")
def first(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return shared_run(tmp_path_factory.mktemp("first"), click_log, deterministic(FIXED, 1, "first"))


@pytest.fixture(scope="module")
def unharmed(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return shared_run(tmp_path_factory.mktemp("unharmed"), click_log, deterministic(NONE, 1, "unharmed"))


def test_two_runs_are_alike_and_another_seed_is_not(cluster: ClusterMaker, first: RunFolder) -> None:
    with load():
        second = finished(cluster, deterministic(FIXED, 1, "second"))
    other = finished(cluster, deterministic(FIXED, 2, "other"))
    assert was_trained(first)
    assert first.batches() == STEPS >= 150
    assert digests(first) == digests(second)
    assert digests(first).keys() == digests(other).keys()
    assert not set(digests(first).values()) & set(digests(other).values())
    assert first.ne == pytest.approx(second.ne, abs=1e-12)
    assert first.report.train.ne_progressive == second.report.train.ne_progressive


@pytest.mark.matrix
def test_a_push_that_comes_twice_changes_the_rows_once(cluster: ClusterMaker, unharmed: RunFolder) -> None:
    """To the bit: a count of what was applied would not show a push that was applied again."""
    run = finished(cluster, deterministic(NONE, 1, "repeated"), faults=(lose_push_replies,))
    assert run.logged("a pushed was lost", ["embedding-0"])
    ((repeated,),) = run.query("SELECT repeated FROM shards")
    # More if the machine stood still so long that it was sent once more.
    assert repeated >= 1
    assert digests(run) == digests(unharmed)


@pytest.mark.matrix
def test_shared_memory_changes_no_byte(cluster: ClusterMaker, first: RunFolder) -> None:
    """Neither in training nor in scoring, and whichever way a batch's rows took."""
    changes: Settings = {**FIXED, "network": {"shared_memory": False}}
    other = finished(cluster, deterministic(changes, 1, "other"))
    for run in (first, other):
        assert run.logged("of memory with worker", ["embedding-0"]) == (run is first)
    assert digests(first) == digests(other)
    assert other.ne == pytest.approx(first.ne, abs=1e-12)


@pytest.mark.matrix
def test_processes_of_their_own_start_give_the_same_bytes(
    unharmed: RunFolder, starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    """Forked nodes share what a process draws at its start, for example the seed of its hashes."""
    job = job_file(deterministic(NONE, 1, "spawned"), "spawned.toml")
    process = starter.spawn("run", str(job), environment={"PYTHONHASHSEED": "4711"})
    assert process.wait() == 0, process.text()
    assert digests(unharmed) == digests(RunFolder(tmp_path / "runs" / "spawned"))
