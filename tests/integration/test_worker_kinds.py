"""Whole jobs whose workers are processes over shared memory, beside the same with threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.tests.support.deterministic import deterministic, digests, was_trained
from shadowsync.tests.support.in_process_cluster import InProcessCluster
from shadowsync.tests.support.runs import EXAMPLES, RunFolder

Changes = Mapping[str, Mapping[str, Any]]
Clusters = Callable[..., InProcessCluster]

# What training does to NE at the least, however workers race; it does 0.2 and more.
LEARNED = 0.1


def run(cluster: Clusters, kind: str, changes: Changes, name: str) -> RunFolder:
    """A finished job with workers of this kind."""
    trainer = {**changes.get("trainer", {}), "worker_kind": kind}
    own = cluster({**changes, "trainer": trainer, "run": {"name": name, **changes.get("run", {})}}).start()
    assert own.wait(90.0) == 0, own.coordinator.text() + own.nodes["trainer"][0].text()
    return RunFolder(own.run.folder.resolve())


def worker_iterations(run: RunFolder, trainer: str) -> list[int]:
    """Steps of each worker of a trainer, as its checkpoint has them."""
    folder, manifest = open_checkpoint(run.folder, verify=True)
    (entry,) = (entry for entry in manifest.files if entry.role == trainer)
    return [
        int(count) for count in TensorReader(folder, [entry]).metadata[entry.name]["iterations"].split(",")
    ]


def test_the_same_ledger_and_both_learn(cluster: Clusters) -> None:
    changes = {"trainer": {"count": 1, "workers": 2}}
    threads = run(cluster, "thread", changes, "threads")
    processes = run(cluster, "process", changes, "processes")
    nothing = {"trainer": {"count": 1, "workers": 2, "lr": 1e-9}, "embedding": {"lr": 1e-9}}
    untrained = run(cluster, "thread", nothing, "untrained")
    for one in (threads, processes):
        assert one.report.ledger.adds_up
        assert one.report.examples.distinct == one.report.examples.trained == EXAMPLES
        assert one.report.ledger.shard_applied == {"embedding-0": one.batches()}
        assert one.report.sync.rounds > 0
    scores = [one.report.eval for one in (threads, processes, untrained)]
    ne = [score.ne for score in scores if score is not None and score.ne is not None]
    assert min(ne[2] - ne[0], ne[2] - ne[1]) > LEARNED
    # Both workers have worked on the replica.
    assert min(worker_iterations(processes, "trainer-0")) > 10


@pytest.mark.matrix
@pytest.mark.parametrize(
    "sync",
    [
        {"algorithm": "easgd", "mode": "fixed", "every": 7},
        {"algorithm": "ma", "mode": "fixed", "every": 7},
        {"algorithm": "downpour", "mode": "fixed", "every": 7},
    ],
    ids=["own rounds with the center", "rounds at the gate", "rounds with the center at the gate"],
)
def test_a_deterministic_job_gives_the_same_bytes(cluster: Clusters, sync: dict[str, Any]) -> None:
    thread = run(cluster, "thread", deterministic({"sync": sync}, 1, "thread"), "thread")
    process = run(cluster, "process", deterministic({"sync": sync}, 1, "process"), "process")
    # That another seed gives other bytes is in `test_deterministic`.
    assert was_trained(process)
    assert digests(thread) == digests(process)
    counted = [(one.report.sync.rounds, one.report.sync.gap_mean) for one in (thread, process)]
    assert counted[0] == counted[1]
    assert counted[1][0] > 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("algorithm", "trainers"),
    [("easgd", 1), ("easgd", 2), ("ma", 2), ("downpour", 2)],
)
def test_a_fixed_rate_with_several_workers(cluster: Clusters, algorithm: str, trainers: int) -> None:
    sync = {"algorithm": algorithm, "mode": "fixed", "every": 5}
    done = run(cluster, "process", {"trainer": {"count": trainers, "workers": 2}, "sync": sync}, "fixed")
    report = done.report
    assert report.ledger.adds_up
    assert report.examples.distinct == EXAMPLES
    steps = sum(sum(worker_iterations(done, f"trainer-{index}")) for index in range(trainers))
    assert steps == done.batches()
    # Each worker runs its own rounds with a center; all workers of a trainer share those with other trainers,
    # and those with a center that sums deltas.
    own_rounds = steps // 5 - 4
    assert report.sync.rounds >= (own_rounds if algorithm == "easgd" else steps // 20)
    assert (report.sync.rounds >= own_rounds) is (algorithm == "easgd")
    assert report.sync.bytes > 0
