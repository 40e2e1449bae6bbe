"""Deterministic mode: the same job gives the same bytes, whatever else the machine does."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.tests.support.cluster import Cluster
from shadowsync.tests.support.processes import Starter, wait_until
from shadowsync.tests.support.runs import EXAMPLES, JobMaker, RunFolder, Settings

STEPS = 2 * 2 * -(-EXAMPLES // 2 // 128)
FIXED = {"sync": {"mode": "fixed", "every": 7}}
NONE = {"sync": {"algorithm": "none"}}


def deterministic(changes: Settings, seed: int, name: str) -> Settings:
    """A deterministic job of STEPS steps: two epochs of two files, each cut by itself."""
    return {
        **changes,
        "run": {"deterministic": True, "seed": seed, "name": name},
        "trainer": {"count": 1},
        "data": {"epochs": 2},
    }


def digests(run: RunFolder) -> dict[str, str]:
    """SHA-256 of each tensor file of the checkpoint."""
    folder, manifest = open_checkpoint(run.folder, verify=True)
    names = [entry.name for entry in manifest.files]
    assert names
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}


@contextmanager
def load() -> Iterator[None]:
    """Keeps every core busy."""
    spin = "while True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run_forked(cluster: Callable[..., Cluster], changes: Settings) -> RunFolder:
    own = cluster(changes).start()
    assert own.wait(90.0) == 0, own.coordinator.text()
    return RunFolder(own.run.folder.resolve())


def was_trained(run: RunFolder) -> bool:
    """Whether the optimizers have seen gradients of most elements: equal bytes mean nothing without that."""
    folder, manifest = open_checkpoint(run.folder)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "trainer-0"])
    return bool((reader.read("optimizer.sum") > 0).mean() > 0.5)


def test_two_runs_are_alike_and_another_seed_is_not(cluster: Callable[..., Cluster]) -> None:
    first = run_forked(cluster, deterministic(FIXED, 1, "first"))
    with load():
        second = run_forked(cluster, deterministic(FIXED, 1, "second"))
    other = run_forked(cluster, deterministic(FIXED, 2, "other"))
    assert was_trained(first)
    assert first.batches() == STEPS >= 200
    assert digests(first) == digests(second)
    assert digests(first).keys() == digests(other).keys()
    assert not set(digests(first).values()) & set(digests(other).values())
    assert first.report.eval is not None
    assert second.report.eval is not None
    assert first.report.eval.ne == pytest.approx(second.report.eval.ne, abs=1e-12)
    assert first.report.train.ne_progressive == second.report.train.ne_progressive


def test_a_push_that_comes_twice_changes_the_rows_once(cluster: Callable[..., Cluster]) -> None:
    """To the bit: a count of what was applied would not show a push that was applied again."""
    unharmed = run_forked(cluster, deterministic(NONE, 1, "unharmed"))
    own = cluster(deterministic(NONE, 1, "repeated"), faults={"embedding": "drop answers"}).start()
    assert own.wait(90.0) == 0, own.coordinator.text()
    assert own.run.logged("a pushed was lost", ["embedding-0"])
    ((repeated,),) = own.run.query("SELECT repeated FROM shards")
    assert repeated == 1
    assert digests(own.run) == digests(unharmed)


def test_processes_of_their_own_start_give_the_same_bytes(
    cluster: Callable[..., Cluster], starter: Starter, job_file: JobMaker, tmp_path: Path
) -> None:
    """Forked nodes share what a process draws at its start, for example the seed of its hashes."""
    forked = run_forked(cluster, deterministic(NONE, 1, "forked"))
    job = job_file(deterministic(NONE, 1, "spawned"), "spawned.toml")
    process = starter.spawn("run", str(job), environment={"PYTHONHASHSEED": "4711"})
    wait_until(lambda: process.poll() is not None, "the spawned job ends", 90.0)
    assert process.code == 0, process.text()
    assert digests(forked) == digests(RunFolder(tmp_path / "runs" / "spawned"))
