"""Somebody dies after training, or in any phase: exit code, report, hint and what `resume` does agree."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from shadowsync.nodes.coordinator import controller, main
from shadowsync.nodes.coordinator.checkpoint.manager import CheckpointManager
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.coordinator.evaluation import Evaluator
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.coordinator.shutdown import JobFinalizer
from shadowsync.nodes.coordinator.state.phases import JobLifecycle
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.errors import CheckpointError, ExitCode
from shadowsync.pipeline.performance.document import read_profile
from shadowsync.tests.support.jobs import in_process_node
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster
from shadowsync.tests.support.jobs.in_process_node import InProcessCoordinator
from shadowsync.tests.support.jobs.node_faults import Slowed, scored_on_a_thread
from shadowsync.tests.support.jobs.processes import until, wait_until
from shadowsync.tests.support.jobs.resumed import folder_of, going_on
from shadowsync.tests.support.jobs.runs import EVAL_EXAMPLES, EXAMPLES

CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"readers": 2, "span_bytes": 1 << 16},
}
# Each begins with the work of a function; of "training" see `dies_in`.
PHASES: dict[str, tuple[Any, str]] = {
    "gathering": (JobController, "_wait_for_nodes"),
    "starting": (JobController, "_connect_peers"),
    "closing": (controller, "drain"),
    "closing rounds": (JobFinalizer, "finalize_trainers"),
    "checkpoint": (JobFinalizer, "checkpoint"),
    "validation": (CheckpointManager, "finish"),
    "told to end": (JobController, "finish"),
    "evaluation": (Evaluator, "_deliver"),
}


def ends_without(own: InProcessCluster, patch: pytest.MonkeyPatch, phase: str, roles: Iterable[str]) -> None:
    """Starts the job, and kills a node of each of these roles as a phase of its end begins."""
    owner, name = PHASES[phase]
    work, due, done = getattr(owner, name), threading.Event(), threading.Event()

    async def lose_and_work(*arguments: Any, **options: Any) -> Any:
        due.set()
        await until(done.is_set, "they are dead")
        return await work(*arguments, **options)

    patch.setattr(owner, name, lose_and_work)
    own.start()
    wait_until(due.is_set, "the phase begins")
    # While a job starts, a report of a death is answered once it has started.
    kill(own, roles, done.set if phase == "starting" else lambda: None)
    done.set()
    own.wait()


def kill(own: InProcessCluster, roles: Iterable[str], unreported: Callable[[], None] = lambda: None) -> None:
    """Kill a node of each of these roles, once it has joined; `unreported` is called before it is known."""
    dying = [node for role, count in Counter(roles).items() for node in own.nodes[role][:count]]
    wait_until(lambda: all(node.name for node in dying), "they have joined")
    reports = [node.on_killed for node in dying]
    for node in dying:
        node.on_killed = lambda _: None
        node.kill()
    unreported()
    for node, report in zip(dying, reports, strict=True):
        report(node)


def dies_in(
    own: InProcessCluster, patch: pytest.MonkeyPatch, phase: str, roles: Iterable[str], slowed: Slowed
) -> None:
    """Kill nodes as a phase begins; of training once there is a checkpoint and the job is slowed."""
    if phase != "training":
        slowed.release()
        ends_without(own, patch, phase, roles)
        return
    own.start()
    manifest = own.run.folder / "checkpoint" / "manifest.json"
    wait_until(manifest.exists, "there is a checkpoint")
    kill(own, roles)
    wait_until(lambda: own.run.logged("died (killed by SIGKILL)"), "it is known")
    slowed.release()
    own.wait()


def test_a_trainer_while_the_held_out_files_are_scored(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = in_process(CHANGES, supervised=True)
    ends_without(own, monkeypatch, "evaluation", ["trainer"])
    own.ended(ExitCode.FINISHED_WITH_DEATHS, distinct=EXAMPLES)
    assert own.run.evaluation.examples == EVAL_EXAMPLES


@pytest.mark.parametrize("others", [(), pytest.param(("trainer",), marks=pytest.mark.matrix)])
def test_an_embedding_node_while_the_held_out_files_are_scored(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, others: tuple[str, ...]
) -> None:
    """With it a trainer, say, of the same machine."""
    own = in_process(CHANGES, supervised=True)
    ends_without(own, monkeypatch, "evaluation", ("embedding", *others))
    report = own.ended(ExitCode.STOPPED_BY_DEATH, distinct=EXAMPLES)
    assert report.eval is None
    # It was written before.
    assert open_checkpoint(own.run.folder, verify=True)[1].examples_trained == EXAMPLES


@pytest.mark.parametrize(
    ("phase", "dead"),
    [
        ("closing", 1),
        ("evaluation", 2),
        pytest.param("closing", 2, marks=pytest.mark.matrix),
        pytest.param("evaluation", 1, marks=pytest.mark.matrix),
    ],
)
def test_a_reader(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, phase: str, dead: int) -> None:
    own = in_process(CHANGES, supervised=True)
    ends_without(own, monkeypatch, phase, ["reader"] * dead)
    own.ended(ExitCode.FINISHED_WITH_DEATHS if dead == 1 else ExitCode.STOPPED_BY_DEATH, distinct=EXAMPLES)
    open_checkpoint(own.run.folder, verify=True)
    if dead == 1:
        assert own.run.evaluation.examples == EVAL_EXAMPLES
        return
    # Nobody can read the held-out files; what can be done is said.
    assert "the last reader died, and the held-out files were not scored" in own.coordinator.text()
    assert "score the checkpoint with `shadowsync eval " in own.coordinator.text()


@pytest.mark.matrix
def test_a_trainer_whose_replica_is_scored(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes the rest of its pass, which must not keep the readers from that of the other replica."""
    changes = CHANGES | {"sync": {"algorithm": "none"}, "trainer": {"count": 2, "batch": 64}}
    own = in_process(changes, supervised=True)
    deliver, due, dead = Evaluator._deliver, threading.Event(), threading.Event()

    async def lose_and_deliver(self: Evaluator, *arguments: Any) -> Any:
        due.set()
        await until(dead.is_set, "the trainer is dead")
        return await deliver(self, *arguments)

    monkeypatch.setattr(Evaluator, "_deliver", lose_and_deliver)
    own.start()
    wait_until(due.is_set, "the first replica is scored")
    own.nodes["trainer"][0].kill()
    dead.set()
    own.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert own.run.evaluation.examples == EVAL_EXAMPLES


def ends_agree(make: ClusterMaker, own: InProcessCluster, changes: Any) -> None:
    """What the process, its report and its checkpoint say of the end is one thing, and the hint works."""
    code, text, run = own.coordinator.poll(), own.coordinator.text(), folder_of(own)
    if not (run.folder / "report.json").exists():
        # It had not begun, so there is nothing to report or to go on from, and the line says who died.
        assert code == ExitCode.STOPPED_BY_DEATH
        assert "died before the job started" in text
        assert "`shadowsync" not in text
        return
    assert run.report.exit_code == code, (code, run.report.outcome)
    assert run.report.ledger.adds_up, run.report.ledger.identities
    try:
        saved = open_checkpoint(run.folder, verify=True)[1]
    except CheckpointError:
        assert "`shadowsync" not in text, "there is nothing to go on from"
        return
    hint = re.search(r"`shadowsync (resume|eval) ([^`]+)`", text)
    if code in (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS):
        assert hint is None, text
        assert saved.complete
        assert saved.examples_trained == EXAMPLES
        return
    assert hint is not None, text
    assert (hint[1] == "eval") == saved.complete, (text, saved.examples_trained)
    again = make(going_on(changes, run)).start()
    if hint[1] == "eval":
        assert saved.examples_trained == EXAMPLES
        assert again.coordinator.wait() == ExitCode.USAGE
        assert "has trained all of its input" in again.coordinator.text()
        return
    again.ended()
    assert saved.examples_trained + again.run.report.examples.distinct == EXAMPLES


# Whatever dies, and when. Those of one role, all of them: others take over what one of several did.
ROLES = {"reader": 2, "trainer": 2, "embedding": 1, "sync": 1}
FIRST = {("closing", "trainer"), ("told to end", "embedding"), ("training", "embedding")}
ENDS = [
    pytest.param(phase, role, marks=() if (phase, role) in FIRST else pytest.mark.matrix)
    for phase in (*PHASES, "training")
    for role in ROLES
]


@pytest.mark.parametrize(("phase", "role"), ENDS)
def test_code_report_hint_and_resume_agree(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, validation_file: str, phase: str, role: str
) -> None:
    """Also if the last checkpoint lacks some of what was trained."""
    validation = {"validation_path": validation_file}
    changes = CHANGES | {
        "data": CHANGES["data"] | (validation if phase in ("validation", "evaluation") else {}),
        "checkpoint": {"every_examples": 3_000},
        "trainer": {"count": 2, "batch": 256},
        "sync": {"algorithm": "easgd" if role == "sync" else "bmuf"},
    }
    slowed = Slowed(15)
    own = in_process(changes, faults=(slowed, scored_on_a_thread), supervised=True)
    dies_in(own, monkeypatch, phase, [role] * ROLES[role], slowed)
    ends_agree(in_process, own, changes)


def _end_and_take_over(
    own: InProcessCluster, patch: pytest.MonkeyPatch, *, told: bool = True, stopped: bool = False
) -> None:
    """The coordinator dies as it tells the nodes to end, or has told them, and another one is started."""
    finish, died = JobController.finish, list[bool]()

    async def finish_and_die(self: JobController, *arguments: Any) -> Any:
        result = await finish(self, *arguments) if told or died else set()
        if not died:
            died.append(True)
            own.coordinator.kill()
            await asyncio.Event().wait()
        return result

    patch.setattr(JobController, "finish", finish_and_die)
    own.start()
    if stopped:
        own.wait_for_batches(20)
        own.coordinator.interrupt()
    wait_until(lambda: bool(died), "it dies")
    if told:
        for node in own.everyone():
            node.wait()
    own.take_over()


@pytest.mark.parametrize("told", [pytest.param(False, marks=pytest.mark.matrix), True])
@pytest.mark.parametrize("stopped", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_coordinator_when_the_end_is_decided(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, *, told: bool, stopped: bool
) -> None:
    """Before or after the nodes hear of it: the next one writes the report, and waits for nobody."""
    own = in_process(CHANGES | {"data": CHANGES["data"] | ({"epochs": 10_000} if stopped else {})})
    _end_and_take_over(own, monkeypatch, told=told, stopped=stopped)
    report = own.ended(ExitCode.INTERRUPTED if stopped else ExitCode.OK)
    assert report.exit_code == own.coordinator.poll()
    assert [node.name for node in report.nodes if node.exit in (None, "killed by SIGKILL")] == []
    assert any("died; another one took over" in event.what for event in report.events)
    assert ("`shadowsync resume " in own.coordinator.text()) == stopped
    if not stopped:
        ends_agree(in_process, own, CHANGES)


@pytest.mark.matrix
@pytest.mark.parametrize("decided", [True, False])
def test_the_coordinator_of_a_profile(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, *, decided: bool
) -> None:
    """Once the end is decided the profile is there; before, the next coordinator says that it is lost."""
    make = InProcessCluster._make_coordinator

    def profiling(self: InProcessCluster, recover: Path | None) -> InProcessCoordinator:
        node = make(self, recover)
        node.settings = dataclasses.replace(node.settings, profile_seconds=0.5)
        return node

    monkeypatch.setattr(InProcessCluster, "_make_coordinator", profiling)
    if not decided:
        monkeypatch.setattr(JobLifecycle, "conclude", lambda *_: None)
        monkeypatch.setattr(main, "_write_profile", AsyncMock(return_value=None))
    own = in_process(CHANGES | {"data": CHANGES["data"] | {"epochs": 10_000}})
    _end_and_take_over(own, monkeypatch, told=decided)
    own.wait()
    report, wrote = own.run.report, own.run.folder / "profile.json"
    assert report.outcome.startswith("finished early: profiled for 500 ms")
    # Also if the trainers are asked a second time what they still had.
    assert report.ledger.adds_up, report.ledger.identities
    if decided:
        assert read_profile(wrote).measured.seconds > 0
    else:
        assert not wrote.exists()
        lost = "the coordinator that died had the profile, so there is none"
        assert lost in [event.what for event in report.events]


@pytest.mark.matrix
def test_without_the_decision_the_next_one_waits_for_nodes_that_are_gone(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: it takes them for dead, and their rows for lost."""
    monkeypatch.setattr(JobLifecycle, "conclude", lambda *_: None)
    own = in_process(CHANGES)
    _end_and_take_over(own, monkeypatch)
    assert own.wait() == ExitCode.STOPPED_BY_DEATH
    assert "rows are lost" in own.coordinator.text()


@pytest.mark.matrix
def test_the_coordinator_while_it_closes(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still to be closed is closed: the thread of its ledger would go on."""
    own, closed = in_process(CHANGES), list[bool]()
    close = LedgerStore.close

    async def die(_: CoordinatorServer) -> None:
        own.coordinator.kill()
        await asyncio.Event().wait()

    def noted(store: LedgerStore) -> None:
        closed.append(True)
        close(store)

    # Here nobody closes its sockets ever.
    monkeypatch.setattr(in_process_node, "LEFT_SECONDS", 2.0)
    monkeypatch.setattr(CoordinatorServer, "close", die)
    monkeypatch.setattr(LedgerStore, "close", noted)
    own.start()
    own.coordinator.wait()
    assert closed
