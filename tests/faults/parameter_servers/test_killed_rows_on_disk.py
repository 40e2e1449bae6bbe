"""An embedding node with rows on disk is killed by SIGKILL at each point of its work, and nothing is lost.

By hand at more moments of each point: SHADOWSYNC_DISK_KILL_ROUNDS=4, and SHADOWSYNC_DISK_KILL_LOG for a file
with a line about each job.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from shadowsync.lab.chaos.ledger_check import problems_of
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.tests.faults.conftest import ENDLESS, FEW_NODES
from shadowsync.tests.support.jobs import self_killed
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run
from shadowsync.tests.support.jobs.node_faults import Slowed
from shadowsync.tests.support.jobs.processes import Process, Starter, is_alive, wait_until
from shadowsync.tests.support.jobs.resumed import going_on
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder, Settings
from shadowsync.tests.support.jobs.supervised import Supervise

pytestmark = pytest.mark.matrix

ROUNDS: Final = int(os.environ.get("SHADOWSYNC_DISK_KILL_ROUNDS", "1"))
LOG: Final = os.environ.get("SHADOWSYNC_DISK_KILL_LOG")
KINDS: Final = ("hashed", "growing")
# A quarter to two thirds of the rows have places in memory. Of growing tables the search for ids takes most
# of it, and ids lose their rows.
TABLE_ROWS: Final = {"hashed": 2000, "growing": 600}
MEMORY_BYTES: Final = {"hashed": 350_000, "growing": 560_000}
# Up to which time of passing a point the node may be killed there.
LATEST: Final = {"restore": 20, "read": 60, "write": 200, "score": 10}
# What a job that scores as chance does: its bias is drawn, so one whose rows are those of the start is worse.
CHANCE: Final = 1.0


def settings_of(kind: str, folder: Path, **changes: dict[str, Any]) -> Settings:
    """Two embedding nodes, of which each has rows on disk."""
    embedding = {"nodes": 2, "memory_bytes": MEMORY_BYTES[kind], "folder": str(folder)}
    return FEW_NODES | {
        "run": {"node_timeout_seconds": 2.0},
        "model": {"table_kind": kind, "table_rows": TABLE_ROWS[kind]},
        "embedding": embedding,
        "checkpoint": {"every_examples": EXAMPLES // 10},
        **changes,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """That of the files of rows, in which nothing is left however nodes end."""
    rows = tmp_path / "rows"
    rows.mkdir()
    yield rows
    assert list(rows.iterdir()) == []


def join_doomed(own: Cluster, point: str, nth: int) -> Process:
    """Have an embedding node join that dies at this point."""
    script = Path(self_killed.__file__)
    given = ("embedding", point, str(nth), str(own.job_file), "--join", own.endpoint)
    node = own.starter.fork(*given, script=script)
    own.nodes.setdefault("embedding", []).append(node)
    return node


def start_doomed(own: Cluster, point: str, nth: int) -> Process:
    """Start a job one of whose embedding nodes dies at this point."""
    own.start_coordinator()
    doomed = join_doomed(own, point, nth)
    for role, count in own.job.expected.items():
        for _ in range(count - (role == "embedding")):
            own.join(role)
    return doomed


def died(own: Cluster, doomed: Process) -> None:
    """Wait for the end that is meant: the control of everything else."""
    wait_until(lambda: doomed.poll() is not None or own.coordinator.poll() is not None, "it dies")
    assert doomed.wait() == -9, (doomed.text(), own.coordinator.text())


def require_whole(run: RunFolder, met: str, restored: int = 0) -> None:
    """Each example was trained once, the model has all rows of all nodes, and both come from the disk."""
    report = run.report
    assert problems_of(run.folder, EXAMPLES) == []
    assert report.ledger.adds_up, report.ledger.identities
    assert report.examples.distinct + report.restored_examples == EXAMPLES
    assert report.restored_examples == restored
    require_disk_used(report, writes=0 if restored else 100)
    (held_out,) = json.loads((run.folder / "job.json").read_text())["data"]["eval_path"]
    assert evaluate_run(run.folder, [held_out])["ne"] == pytest.approx(run.ne, rel=1e-5)
    log(met, [report.exit_code], run.ne)
    assert run.ne < CHANCE


def require_disk_used(report: Report, *, writes: int = 100) -> None:
    """The control: both nodes that were there at the end read and wrote rows."""
    assert len(report.disk_rows) == 2
    assert all(node.reads > 100 and node.writes >= writes for node in report.disk_rows), report.disk_rows


def log(met: str, codes: list[int], ne: float) -> None:
    """Note a job for the record."""
    if LOG is not None:
        with Path(LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"killed": met, "exit_codes": codes, "ne": ne}) + "\n")


def moments_of(point: str) -> list[Any]:
    """Which of the times that a node passes the point, with which kind of tables."""
    draw, shift = random.Random(point), len(point)
    return [
        (point, KINDS[(number + shift) % 2], draw.randint(1, LATEST.get(point, 1)))
        for number in range(ROUNDS)
    ]


@pytest.mark.parametrize(
    ("point", "kind", "nth"),
    [
        moment
        for point in ("reserve", "read", "write", "save_whole", "save_changes")
        for moment in moments_of(point)
    ],
)
def test_another_one_takes_its_place(
    processes: Callable[..., Cluster], folder: Path, point: str, kind: str, nth: int
) -> None:
    slowed = Slowed(12)
    own = processes(settings_of(kind, folder), faults=(slowed,))
    died(own, start_doomed(own, point, nth))
    slowed.release()
    own.join("embedding")
    before_it_started = point == "reserve"
    expected = ExitCode.OK if before_it_started else ExitCode.FINISHED_WITH_DEATHS
    assert own.wait() == expected, own.coordinator.text()
    require_whole(own.run, f"{point} {nth}, {kind}")


@pytest.mark.parametrize(("point", "kind", "nth"), moments_of("restore"))
def test_its_replacement_dies_as_it_restores(
    processes: Callable[..., Cluster], folder: Path, point: str, kind: str, nth: int
) -> None:
    slowed = Slowed(12)
    own = processes(settings_of(kind, folder), faults=(slowed,))
    died(own, start_doomed(own, "save_changes", 1))
    slowed.release()
    died(own, join_doomed(own, point, nth))
    own.join("embedding")
    assert own.wait() == ExitCode.FINISHED_WITH_DEATHS, own.coordinator.text()
    assert own.run.logged("joined the running job with the rows of a checkpoint")
    require_whole(own.run, f"save_changes 1, and its replacement: {point} {nth}, {kind}")


@pytest.mark.parametrize(("point", "kind", "nth"), moments_of("save_last"))
def test_the_job_that_it_ends_is_resumed_and_it_dies_again(
    processes: Callable[..., Cluster], folder: Path, point: str, kind: str, nth: int
) -> None:
    """Within the last checkpoint, and then as the tables are restored, before the job begins."""
    settings = settings_of(kind, folder)
    own = processes(settings)
    died(own, start_doomed(own, point, nth))
    report = own.ended(ExitCode.STOPPED_BY_DEATH)
    first = RunFolder(own.run.folder.resolve())
    saved = open_checkpoint(first.folder, verify=True)[1].examples_trained
    assert 0 < saved < EXAMPLES
    assert any(node.writes > 100 for node in report.disk_rows)
    again = processes(going_on(settings, first))
    died(again, start_doomed(again, "restore", nth))
    again.join("embedding")
    again.ended()
    require_whole(
        RunFolder(again.run.folder.resolve()), f"{point} {nth}, and resumed: restore {nth}, {kind}", saved
    )


@pytest.mark.parametrize(("point", "kind", "nth"), moments_of("score"))
def test_the_last_checkpoint_is_scored_without_it(
    processes: Callable[..., Cluster], folder: Path, point: str, kind: str, nth: int
) -> None:
    own = processes(settings_of(kind, folder))
    died(own, start_doomed(own, point, nth))
    report, run = own.ended(ExitCode.STOPPED_BY_DEATH), own.run.folder
    assert open_checkpoint(run, verify=True)[1].examples_trained == EXAMPLES
    (held_out,) = json.loads((run / "job.json").read_text())["data"]["eval_path"]
    ne = evaluate_run(run, [held_out])["ne"]
    log(f"{point} {nth}, {kind}", [report.exit_code], ne)
    assert ne < CHANCE


def test_all_processes_at_once(supervise: Supervise, starter: Starter, folder: Path) -> None:
    """With the coordinator and the supervisor; `shadowsync resume` goes on."""
    settings = settings_of("growing", folder, data=ENDLESS)
    job = supervise(dict(settings))
    checkpoint = job.run.folder / "checkpoint"
    wait_until(lambda: checkpoint.exists() and job.run.batches() > 100, "there is a checkpoint")
    first = RunFolder(job.run.folder.resolve())
    everyone = [psutil.Process(job.process.pid), *job.process.offspring()]
    for process in everyone:
        process.kill()
    job.process.wait()
    wait_until(lambda: not any(map(is_alive, everyone)), "they are gone")
    assert list(folder.iterdir()) == []
    saved = open_checkpoint(first.folder, verify=True)[1].examples_trained
    epochs = 2 + saved // EXAMPLES
    starter.ended("resume", str(first.folder), "--set", f"data.epochs={epochs}")
    run = job.run
    assert run.folder.resolve() != first.folder
    report = run.report
    assert problems_of(run.folder.resolve(), epochs * EXAMPLES) == []
    assert report.restored_examples == saved
    require_disk_used(report)
    log("all processes, growing", [report.exit_code], run.ne)
    assert run.ne < CHANCE
