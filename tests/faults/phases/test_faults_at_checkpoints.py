"""What dies, or is full, while checkpoints are taken and validated: training goes on, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from shadowsync.nodes.coordinator.checkpoint.running import RESERVE_BYTES
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.tests.faults.conftest import (
    ENDLESS,
    FEW_NODES,
    AnyCluster,
    AnyClusterMaker,
    replace_embedding_nodes,
)
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, finished, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import is_alive, wait_until
from shadowsync.tests.support.jobs.resumed import Changed, going_on, trained_batches
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise

Validating = Callable[..., tuple[AnyCluster, psutil.Process]]
SCORING = "shadowsync.nodes.coordinator.validation.process"
STOPS_ITSELF = f"""
import os, signal, sys

if "{SCORING}" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""
# Of a volume with room for two checkpoints of LARGE and for what is to be left beside them, and of what is
# left of it when it is said to be full: less than one takes, and more than the ledger needs.
VOLUME_BYTES = (64 << 20) + RESERVE_BYTES
LEFT_BYTES = 8 << 20
# Of few rows, most of which change between two checkpoints: every one has all rows.
LARGE = {"embedding_dim": 320, "table_rows": 400, "bottom": [32], "top": [32]}


def saved_examples(run: RunFolder) -> int:
    """Of the run's checkpoint, read whole; 0 before there is one."""
    if not (run.folder / "checkpoint").exists():
        return 0
    return open_checkpoint(run.folder)[1].examples_trained


def validated(run: RunFolder) -> int:
    """How many checkpoints were scored, by the coordinator's log."""
    return sum("validated at" in line["text"] for line in run.log("coordinator"))


def scorers(coordinator: int) -> list[psutil.Process]:
    """The processes that score for this coordinator."""
    found = []
    for process in psutil.Process(coordinator).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if SCORING in process.cmdline():
                found.append(process)
    return found


@pytest.fixture
def validating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, validation_file: str) -> Validating:
    """Starts an endless job; gives it, and the process that is to score its first checkpoint, stopped.

    It stops itself as its interpreter starts: before it was stopped from here it could have scored one, on a
    machine that keeps the test waiting. One that takes its place is not stopped.
    """
    stops = tmp_path / "stops" / "sitecustomize.py"
    stops.parent.mkdir()
    stops.write_text(STOPS_ITSELF, encoding="utf-8")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(stops.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    }

    def start(
        cluster: AnyClusterMaker, run: dict[str, float | str] | None = None, **changes: dict[str, Any]
    ) -> tuple[AnyCluster, psutil.Process]:
        own = cluster(
            {
                **changes,
                "run": run or {},
                "data": ENDLESS | {"validation_path": validation_file},
                "validation": {"every_examples": 5_000},
            }
        )
        if isinstance(own, Cluster):
            own.environment = environment
        else:
            monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        own.start()
        found: list[psutil.Process] = []

        def stopped() -> bool:
            found[:] = scorers(own.coordinator.pid)
            return [process.status() for process in found] == [psutil.STATUS_STOPPED]

        wait_until(stopped, "a checkpoint is scored")
        stops.unlink()
        (scorer,) = found
        return own, scorer

    return start


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    """The folder of the runs, on a volume of its own of VOLUME_BYTES."""
    runs = tmp_path / "runs"
    runs.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "shadowsync-test", str(runs)]
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("a volume can be mounted by root only")
    try:
        yield runs
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


def fill(volume: Path) -> Path:
    """Leaves LEFT_BYTES of it; gives the file to remove."""
    filler = volume / "filler"
    with filler.open("wb") as file:
        while shutil.disk_usage(volume).free > LEFT_BYTES:
            file.write(bytes(1 << 20))
            file.flush()
    return filler


def fill_in_the_middle(own: AnyCluster, volume: Path) -> tuple[Path, int] | None:
    """Fills the volume once a checkpoint is begun with room, so that the shard writes its part without.

    Gives the file to remove and the examples of the checkpoint before; nothing if the shard had written its
    part before it was stopped, or had so little to write that there was room.
    """
    (shard,) = own.nodes["embedding"]
    shard.suspend()
    wait_until(lambda: own.run.partial_checkpoint("ledger-*"), "the next one is begun")
    kept = saved_examples(own.run)
    filler = fill(volume)
    shard.resume()
    full = "No space left on device"
    wait_until(lambda: own.run.logged(full) or saved_examples(own.run) > kept, "it ends")
    if own.run.logged(full):
        return filler, kept
    filler.unlink()
    return None


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_full_volume_keeps_the_old_checkpoint_and_training_goes_on(
    volume: Path, in_process: AnyClusterMaker
) -> None:
    # Checkpoints with pauses, in which the volume is filled.
    often = {"every_seconds": 2.0}
    own = in_process({"data": ENDLESS, "model": LARGE, "checkpoint": often}).start()
    wait_until(lambda: saved_examples(own.run) > 0, "a checkpoint is written")
    filler = fill(volume)
    failed = "a checkpoint could not be written during training"
    # One that had begun is told of otherwise.
    wait_until(lambda: own.run.logged("are free; a checkpoint takes about"), "a checkpoint fails")
    kept = saved_examples(own.run)
    trained = own.run.batches()
    own.wait_for_batches(trained + 20)
    _, manifest = open_checkpoint(own.run.folder, verify=True)
    assert manifest.examples_trained >= kept
    filler.unlink()
    wait_until(lambda: saved_examples(own.run) > manifest.examples_trained, "the next one is written")
    report = own.interrupted()
    assert present(report.checkpoints).failed >= 1
    assert any(failed in event.what for event in report.events)
    assert not list(own.run.folder.glob("checkpoint.partial-*"))


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_volume_that_gets_full_while_a_checkpoint_is_written(
    volume: Path, in_process: AnyClusterMaker
) -> None:
    often = {"every_seconds": 2.0}
    own = in_process({"data": ENDLESS, "model": LARGE, "checkpoint": often}).start()
    wait_until(lambda: saved_examples(own.run) > 0, "a checkpoint is written")
    tries = (fill_in_the_middle(own, volume) for _ in range(10))
    filler, kept = next(found for found in tries if found is not None)
    own.wait_for_batches(own.run.batches() + 20)
    assert saved_examples(own.run) == kept
    wait_until(lambda: not own.run.partial_checkpoint("embedding-*"), "its files are removed")
    filler.unlink()
    wait_until(lambda: saved_examples(own.run) > kept, "the next one is written")
    report = own.interrupted()
    assert any("No space left on device" in event.what for event in report.events)
    assert not list(own.run.folder.glob("checkpoint.partial-*"))


@pytest.mark.matrix
@pytest.mark.no_kill
def test_a_volume_without_room_for_the_last_checkpoint(volume: Path, in_process: AnyClusterMaker) -> None:
    fill(volume)
    own = in_process({"data": {"epochs": 2}, "model": LARGE}).start()
    report = own.ended(8, distinct=2 * EXAMPLES)
    assert "No space left on device" in own.coordinator.text()
    assert report.exit_code == 8
    assert not list(own.run.folder.glob("checkpoint*"))


def test_a_trainer_that_dies_while_a_checkpoint_is_taken(cluster: AnyClusterMaker) -> None:
    run = {"node_timeout_seconds": 3.0}
    own, slowed = slowed_at(40, cluster, {"run": run, "checkpoint": {"every_examples": 1}})
    wait_until(own.run.partial_checkpoint, "one is being written")
    own.nodes["trainer"][1].kill()
    before = saved_examples(own.run)
    # Trainers are numbered as they join, so its name is not known here.
    wait_until(lambda: own.run.logged("was silent for 3 s"), "its death is known")
    wait_until(lambda: saved_examples(own.run) > before, "checkpoints go on without it")
    slowed.release()
    own.ended(5, distinct=EXAMPLES)
    open_checkpoint(own.run.folder, verify=True)
    assert not list(own.run.folder.glob("checkpoint.partial-*"))


@pytest.mark.matrix
def test_the_process_that_scores_is_killed(in_process: ClusterMaker, validating: Validating) -> None:
    # The next ones are scored beside training, which takes all of a busy machine.
    own, scorer = validating(in_process, {"background_priority": "normal"})
    scorer.kill()
    said = "the validation process ended with killed by SIGKILL; another one scores "
    wait_until(lambda: own.run.logged(said), "that is known")
    own.wait_for_batches(own.run.batches() + 20)
    # Of one alone it would be a matter of course that it is the best.
    wait_until(lambda: validated(own.run) >= 2, "the next ones are validated")
    report = own.interrupted()
    assert report.validation is not None
    assert report.validation.failed == 0
    best_at, best = min(report.curves.validation, key=lambda point: point[1])
    assert (report.validation.best_examples, report.validation.best) == (best_at, best)
    assert report.validation.count == len(report.curves.validation)


@pytest.mark.matrix
def test_an_embedding_node_dies_while_a_checkpoint_is_scored(
    in_process: ClusterMaker, validating: Validating, tmp_path: Path
) -> None:
    """Its rows are on disk, and so are those of the one that takes its place."""
    folder = tmp_path / "rows"
    folder.mkdir()
    embedding = {"nodes": 2, "memory_bytes": 350_000, "folder": str(folder)}
    run: dict[str, float | str] = {"background_priority": "normal", "node_timeout_seconds": 2.0}
    own, scorer = validating(in_process, run, embedding=embedding)
    replace_embedding_nodes(own)
    lacks = "batches that it lacks will be trained again"
    wait_until(lambda: own.run.logged(lacks), lacks)
    assert own.run.logged("with the rows of a checkpoint")
    before = validated(own.run)
    scorer.resume()
    own.wait_for_batches(own.run.batches() + 20)
    wait_until(lambda: validated(own.run) >= before + 2, "this one and the next are scored")
    report = own.interrupted()
    assert present(report.validation).failed == 0
    assert all(node.reads > 100 and node.writes > 100 for node in report.disk_rows), report.disk_rows
    open_checkpoint(own.run.folder, verify=True)
    assert list(folder.iterdir()) == []


@pytest.mark.no_kill
def test_ctrl_c_while_a_checkpoint_is_scored(in_process: ClusterMaker, validating: Validating) -> None:
    own, scorer = validating(in_process)
    own.interrupted()
    wait_until(lambda: not is_alive(scorer), "the process that scores has ended")
    assert sorted(path.name for path in own.run.folder.glob("*best*")) == []
    assert not list(own.run.folder.glob("checkpoint.partial-*"))
    open_checkpoint(own.run.folder, verify=True)


def test_the_process_that_scores_ends_with_its_coordinator(
    processes: Callable[..., Cluster], validating: Validating
) -> None:
    own, scorer = validating(processes, {"node_timeout_seconds": 2.0})
    own.coordinator.kill()
    scorer.resume()
    wait_until(lambda: not is_alive(scorer), "it ends")
    assert [process.wait(60.0) for process in own.everyone()] == [-9] + [6] * (len(own.everyone()) - 1)


@pytest.mark.matrix
def test_an_embedding_node_dies_and_the_run_goes_on_from_its_last_checkpoint(
    cluster: AnyClusterMaker,
) -> None:
    settings: Changed = {
        "run": {"node_timeout_seconds": 3.0, "rejoin_seconds": 0.5},
        "embedding": {"nodes": 2},
        "checkpoint": {"every_examples": 3_000},
    }
    slowed = Slowed(60)
    own = cluster(settings, faults=(slowed,)).start()

    def lacks_some() -> bool:
        saved = saved_examples(own.run)
        return saved >= 6_000 and own.run.batches() * own.job.trainer.batch > saved + 1_000

    wait_until(lacks_some, "checkpoints are written, and the last one lacks some")
    own.nodes["embedding"][1].kill()
    slowed.release()
    own.ended(6)
    first = RunFolder(own.run.folder.resolve())
    text = own.coordinator.text()
    # How much of what was trained it has.
    assert re.search(r"rows are lost; the .* has [a-z0-9, ]+ trained examples; continue from its last", text)
    # Processes that a test starts have no supervisor, which `resume` would be.
    alone = isinstance(own, Cluster)
    assert ("--set start.resume=true`" in text) == alone
    assert ("`shadowsync resume " in text) == (not alone)
    second = finished(cluster, going_on(settings, first))
    report = second.report
    assert 6_000 <= report.restored_examples < first.report.examples.distinct
    assert report.restored_examples + report.examples.distinct == EXAMPLES
    # What the first one trained after its checkpoint is trained again, and everything else once.
    restored = second.query("SELECT sum(examples) FROM restored_spans")[0][0] or 0
    restored += second.query("SELECT sum(examples) FROM restored_batches")[0][0] or 0
    assert restored == report.restored_examples
    assert trained_batches(first).keys() & trained_batches(second).keys()


@pytest.mark.matrix
def test_a_killed_coordinator_leaves_what_can_be_gone_on_with(
    supervise: Supervise, in_process: ClusterMaker
) -> None:
    """Here the coordinator's death ends the job."""
    job = supervise({"checkpoint": {"every_examples": 2_000}, "run": {"restarts": 0}})
    job.wait_for_batches(60)
    wait_until(lambda: saved_examples(job.run) > 0, "a checkpoint is written")
    (coordinator,) = job.nodes("coordinator")
    coordinator.kill()
    job.process.wait()
    first = RunFolder(job.run.folder.resolve())
    assert job.last_line().endswith("continue from its last checkpoint with `shadowsync resume runs/small`")
    # More than it had begun.
    epochs = 2 + saved_examples(first) // EXAMPLES
    settings: Changed = FEW_NODES | {"data": {"epochs": epochs}}
    report = finished(in_process, going_on(settings, first)).report
    assert report.restored_examples + report.examples.distinct == epochs * EXAMPLES
