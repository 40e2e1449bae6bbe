"""The coordinator is killed: another one takes over from its ledger, and training goes on meanwhile."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shadowsync.lab.chaos.ledger_check import problems_of
from shadowsync.lab.network.proxy import unix_path
from shadowsync.nodes.coordinator import controller, journal, main
from shadowsync.nodes.coordinator.checkpoint.running import RunningCheckpoint
from shadowsync.nodes.coordinator.controller import JobController
from shadowsync.nodes.coordinator.evaluation import Evaluator
from shadowsync.nodes.coordinator.recovery import takeover
from shadowsync.nodes.coordinator.recovery.deaths import ShardRecovery
from shadowsync.nodes.coordinator.recovery.takeover import Takeover
from shadowsync.nodes.coordinator.requests import RequestHandler
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.coordinator.shutdown import JobFinalizer, drain
from shadowsync.nodes.coordinator.state.outcome import DrainedCounts
from shadowsync.nodes.coordinator.validation.scoring import CheckpointScore, CheckpointScorer
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.write import write_report
from shadowsync.pipeline.wire.control.messages import TrainedBatches
from shadowsync.tests.faults.conftest import ENDLESS, FOLLOWING, AnyCluster, finish_input
from shadowsync.tests.support.expected import present
from shadowsync.tests.support.jobs.cluster import Cluster
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker, InProcessCluster, slowed_at
from shadowsync.tests.support.jobs.node_faults import Slowed, scored_on_a_thread
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.jobs.resumed import going_on, interrupted
from shadowsync.tests.support.jobs.runs import EXAMPLES, RunFolder
from shadowsync.tests.support.jobs.supervised import Supervise

CHANGES: dict[str, dict[str, Any]] = {
    "run": {"node_timeout_seconds": 2.0},
    "data": {"span_bytes": 1 << 16},
    "embedding": {"nodes": 2},
}


def _changed(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: CHANGES.get(name, {}) | sections.get(name, {}) for name in {**CHANGES, **sections}}


def _ended_whole(own: AnyCluster, takeovers: int = 1, code: int = ExitCode.FINISHED_WITH_DEATHS) -> Report:
    """Waits for the end: every batch is accounted for, and no identity is unknown."""
    report = own.ended_whole(code)
    events = [event.what for event in report.events if event.node == "coordinator"]
    assert sum("died; another one took over" in what for what in events) == takeovers
    assert report.exit_code == ExitCode.FINISHED_WITH_DEATHS
    return report


def _changes_recorded(run: RunFolder, kind: str) -> int:
    try:
        return int(run.query(f"SELECT count(*) FROM journal WHERE kind = '{kind}'")[0][0])
    except sqlite3.OperationalError:
        return 0


async def _die(own: InProcessCluster, killed: list[bool]) -> None:
    """Kill the coordinator, whose loop this is, and do nothing more."""
    killed.append(True)
    own.coordinator.kill()
    await asyncio.Event().wait()


@pytest.mark.matrix
@pytest.mark.parametrize(
    "sync",
    [{}, {"algorithm": "ma", "mode": "fixed", "every": 5}, {"algorithm": "decoupled"}],
    ids=["default", "ma", "decoupled"],
)
def test_training_goes_on(in_process: ClusterMaker, sync: dict[str, Any]) -> None:
    own, slowed = slowed_at(30, in_process, _changed(sync=sync))
    own.coordinator.kill()
    own.take_over()
    slowed.release()
    assert _ended_whole(own).examples.replayed == 0


@pytest.mark.matrix
def test_it_is_started_again_by_the_same_command(processes: Callable[..., Cluster]) -> None:
    """As the engine of a cluster does it, and every process ends with 0."""
    # Nobody falls silent, and a busy machine may take seconds to start another one.
    slowed = Slowed(30)
    own = processes(_changed(run={"node_timeout_seconds": 15.0}), faults=(slowed,))
    options = "--restartable", "--exit-zero-on", "5"
    own.start_coordinator(*options)
    for role, count in own.job.expected.items():
        for _ in range(count):
            own.join(role, "--exit-zero-on", "5")
    own.wait_for_batches(30)
    own.coordinator.kill()
    own.coordinator.wait()
    own.start_coordinator(*options)
    slowed.release()
    _ended_whole(own, code=0)
    assert {process.code for process in own.everyone()} == {0}
    # It has ended, so the next one is another run.
    before = own.run.folder.resolve()
    own.start_coordinator(*options)
    assert own.run.folder.resolve() != before
    own.coordinator.kill()
    own.coordinator.wait()


def _die_at(in_process: ClusterMaker, moments: Sequence[int]) -> InProcessCluster:
    """The job, whose coordinator died after these numbers of batches, and whose accounts are whole."""
    # Nodes train meanwhile, and there is to be much left each time.
    slowed = Slowed(max(moments))
    own = in_process(CHANGES, faults=(slowed,)).start()
    for batches in moments:
        own.wait_for_batches(batches)
        own.coordinator.kill()
        own.take_over()
    slowed.release()
    assert _ended_whole(own, takeovers=len(moments)).examples.replayed == 0
    return own


@pytest.mark.matrix
def test_it_may_die_again_and_again(in_process: ClusterMaker) -> None:
    _die_at(in_process, (20, 40, 60))


@pytest.mark.matrix
def test_it_goes_on_from_a_snapshot(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads only the changes after it, and the few whose effect a snapshot has not."""
    replay, read = Takeover.replay, list[tuple[int, int]]()

    def replay_and_count(self: Takeover, state: Any) -> None:
        changes = sum(1 for _ in self.store.entries())
        replay(self, state)
        read.append((self.replayed, changes))

    for module in (journal, takeover):
        monkeypatch.setattr(module, "SNAPSHOT_CHANGES", 10)
    monkeypatch.setattr(Takeover, "replay", replay_and_count)
    own = _die_at(in_process, (40, 80))
    assert len(read) == 2
    assert all(some < every for some, every in read), read
    # The independent check needs all that the file had before.
    assert problems_of(own.run.folder, EXAMPLES) == []


@pytest.mark.matrix
def test_it_listens_before_it_reads_a_long_journal(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes wait for one that is silent six times as long as for one that is gone."""
    replay, listened = Takeover.replay, list[bool]()

    def replay_later(self: Takeover, state: Any) -> None:
        with socket.socket(socket.AF_UNIX) as node:
            listened.append(node.connect_ex(unix_path(self.began.bound)) == 0)
        replay(self, state)

    monkeypatch.setattr(Takeover, "replay", replay_later)
    own, slowed = slowed_at(20, in_process, CHANGES)
    own.coordinator.kill()
    own.take_over()
    slowed.release()
    _ended_whole(own)
    assert listened == [True]


@pytest.mark.matrix
@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_the_wall_clock_jumps_before_and_after_it_dies(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """Nothing is timed by the wall clock."""
    real, jumped = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + jumped[0])
    slowed = Slowed(60)
    own = in_process(CHANGES, faults=(slowed,)).start()
    own.wait_for_batches(20)
    jumped[0] = jump
    own.wait_for_batches(40)
    own.coordinator.kill()
    own.take_over()
    own.wait_for_batches(60)
    jumped[0] = -jump
    slowed.release()
    assert _ended_whole(own).examples.replayed == 0
    assert own.run.report.wall_seconds < 3600.0


@pytest.mark.matrix
def test_it_dies_while_training_waits_for_a_validation(
    in_process: ClusterMaker, validation_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has the trainers go on."""
    # So that another checkpoint is due while they train.
    slowed = Slowed(50)
    own = in_process(
        _changed(
            data=CHANGES["data"] | {"validation_path": validation_file},
            validation={"every_examples": 6_000, "wait": True},
        ),
        faults=(slowed, scored_on_a_thread),
    )
    score, killed, scored = CheckpointScorer.score, list[bool](), list[CheckpointScore]()

    async def score_or_die(scorer: CheckpointScorer, *arguments: Any) -> CheckpointScore:
        if not killed:
            await _die(own, killed)
        scored.append(await score(scorer, *arguments))
        return scored[-1]

    monkeypatch.setattr(CheckpointScorer, "score", score_or_die)
    own.start()
    wait_until(lambda: bool(killed), "a checkpoint is to be scored")
    own.take_over()
    wait_until(lambda: bool(scored), "another checkpoint is scored")
    slowed.release()
    _ended_whole(own)
    assert _changes_recorded(own.run, "TrainingPaused") >= 2
    assert present(own.run.report.validation).count >= 2


@pytest.mark.matrix
def test_without_the_replies_of_before_a_delivery_is_acknowledged_twice(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what was in the file when the coordinator died, and not replied to, is sent again."""
    replay = Takeover.replay

    def replay_and_forget(self: Takeover, state: Any) -> None:
        replay(self, state)
        self.replies = {token: {} for token in self.replies}

    monkeypatch.setattr(Takeover, "replay", replay_and_forget)
    own = _without_a_reply(in_process, monkeypatch)
    own.wait()
    said = [event.what for event in own.run.report.events if event.node.startswith("trainer-")]
    assert any("is acknowledged twice" in what for what in said), said


def test_a_reply_that_is_lost_is_given_again(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _ended_whole(_without_a_reply(in_process, monkeypatch)).examples.replayed == 0


def _without_a_reply(in_process: ClusterMaker, patch: pytest.MonkeyPatch) -> InProcessCluster:
    """A job whose first coordinator died when trained batches were in its file, before it replied."""
    own = in_process(_changed(run=CHANGES["run"] | {"rejoin_seconds": 1.0}))
    handle, killed = RequestHandler.handle, list[bool]()

    async def handle_and_die(handler: RequestHandler, token: str, request: Any, number: int) -> Any:
        reply = await handle(handler, token, request, number)
        if isinstance(request, TrainedBatches) and not killed and own.run.batches() > 20:
            await _die(own, killed)
        return reply

    patch.setattr(RequestHandler, "handle", handle_and_die)
    own.start()
    wait_until(lambda: bool(killed), "a reply is lost")
    own.take_over()
    return own


PHASES: dict[str, tuple[Any, str]] = {
    "introductions": (JobController, "_connect_peers"),
    "begin": (JobController, "_begin_training"),
    "drain": (controller, "drain"),
    "closing rounds": (JobFinalizer, "finalize_trainers"),
    "checkpoint": (JobFinalizer, "checkpoint"),
    "evaluation": (Evaluator, "run"),
    "running checkpoint": (RunningCheckpoint, "_write"),
}
# One before training and one after it; the others are left to `make faults`.
FIRST_PHASES = ("introductions", "checkpoint")
# The end of each of the others is the beginning of the next one.
WITH_AN_END = ("begin", "checkpoint", "evaluation", "running checkpoint")
MOMENTS = [
    *(pytest.param(one, False, marks=() if one in FIRST_PHASES else pytest.mark.matrix) for one in PHASES),
    *(pytest.param(one, True, marks=pytest.mark.matrix) for one in WITH_AN_END),
]


@pytest.mark.parametrize(("phase", "after"), MOMENTS)
def test_it_dies_in_every_phase(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch, phase: str, *, after: bool
) -> None:
    """At the beginning of the phase, or at its end."""
    # A checkpoint that is being written as training ends is given up, and would have no end.
    slowed = Slowed(60, 1.0)
    faults = (slowed,) if phase == "running checkpoint" else ()
    own = in_process(_changed(checkpoint={"every_examples": 8_000}), faults=faults)
    owner, name = PHASES[phase]
    work, killed = getattr(owner, name), list[bool]()

    async def work_and_die(self: Any, *arguments: Any, **options: Any) -> Any:
        if not after and not killed:
            await _die(own, killed)
        result = await work(self, *arguments, **options)
        if after and not killed:
            await _die(own, killed)
        return result

    monkeypatch.setattr(owner, name, work_and_die)
    own.start()
    wait_until(lambda: bool(killed), "it dies")
    slowed.release()
    own.take_over()
    assert _ended_whole(own).model_saved is not None
    assert own.run.report.eval is not None


@pytest.mark.matrix
@pytest.mark.parametrize("role", ["trainer", "reader", "embedding"])
def test_a_node_dies_with_it(in_process: ClusterMaker, role: str) -> None:
    """The next one finds out that it is silent, and recovers from it."""
    own, slowed = slowed_at(30, in_process, _changed(data=CHANGES["data"] | {"readers": 2}), seconds=1.0)
    node = own.nodes[role][0]
    own.coordinator.kill()
    node.kill()
    own.take_over()
    # After 4 s, since it might be still connecting; after 2 s if a heartbeat that it had queued before its
    # death reached the next one.
    wait_until(lambda: own.run.logged(f"{node.name}: was silent for "), "the next one knows")
    slowed.release()
    if role == "embedding":
        own.join("embedding")
    _ended_whole(own)


@pytest.mark.matrix
@pytest.mark.parametrize("role", ["trainer", "reader"])
def test_a_node_that_was_given_up_comes_back_to_the_next_one(in_process: ClusterMaker, role: str) -> None:
    """It stood still; what it sends to the new coordinator counts for nothing, and it joins again."""
    own, slowed = slowed_at(30, in_process, _changed(data=CHANGES["data"] | {"readers": 2}), seconds=1.0)
    node = own.nodes[role][0]
    name = node.name
    node.suspend()
    # The next coordinator knows what is in the ledger's file, which is written after the log.
    silent = f"SELECT count(*) FROM events WHERE node = '{name}' AND what = 'was silent for 2 s'"
    wait_until(lambda: own.run.query(silent) == [(1,)], "the coordinator has given it up")
    own.coordinator.kill()
    own.take_over()
    wait_until(lambda: own.run.logged("died; another one took over"), "another one takes over")
    node.resume()
    again = f"{role}-2: joined the running job"
    wait_until(lambda: own.run.logged(again), "it joins again, under another name")
    slowed.release()
    assert node.wait() == ExitCode.FINISHED_WITH_DEATHS, node.text()
    _ended_whole(own)
    said = [event.what for event in own.run.report.events if event.node == name]
    assert said.count("was silent for 2 s") == 1, "it is declared dead once"


@pytest.mark.matrix
def test_it_dies_while_a_shard_is_replaced(in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one asks the new shard what it lacks."""
    slowed = Slowed(30)
    own = in_process(CHANGES, faults=(slowed,))
    recover, killed = ShardRecovery._recover, list[bool]()

    async def die_first(self: ShardRecovery, node: Any) -> None:
        if not killed:
            await _die(own, killed)
        await recover(self, node)

    monkeypatch.setattr(ShardRecovery, "_recover", die_first)
    own.start()
    own.wait_for_batches(30)
    own.nodes["embedding"][0].kill()
    wait_until(lambda: own.run.logged("was silent for 2 s"), "the coordinator knows of it")
    own.join("embedding")
    wait_until(lambda: bool(killed), "the coordinator dies")
    own.take_over()
    slowed.release()
    assert _ended_whole(own).examples.replayed > 0


@pytest.mark.matrix
def test_it_dies_when_a_reader_has_died(in_process: ClusterMaker) -> None:
    """What the dead reader had cut is read again by the next one's order, or was by the first one's."""
    slowed, changes = Slowed(30), _changed(data=CHANGES["data"] | {"readers": 2})
    own = in_process(changes, supervised=True, faults=(slowed,)).start()
    own.wait_for_batches(30)
    own.nodes["reader"][0].kill()
    wait_until(lambda: _changes_recorded(own.run, "NodeDied") == 1, "the coordinator knows of it")
    own.coordinator.kill()
    own.take_over()
    slowed.release()
    _ended_whole(own)


@pytest.mark.matrix
def test_an_interrupted_job_ends_under_the_next_one(in_process: ClusterMaker) -> None:
    own = in_process(_changed(data=ENDLESS)).start()
    own.wait_for_batches(30)
    own.coordinator.kill()
    own.take_over().interrupt()
    report = own.ended(ExitCode.INTERRUPTED)
    assert report.model_saved is not None


@pytest.mark.matrix
def test_it_dies_as_the_job_stops_and_nobody_knows_of_a_dead_trainer(
    in_process: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one tells the readers, which return its batches before they are counted."""
    own = in_process(_changed(data=ENDLESS))
    notice, killed = CoordinatorServer._notice, list[bool]()

    async def notice_later(self: CoordinatorServer, *arguments: Any) -> None:
        if killed:
            await notice(self, *arguments)

    async def die_first(*arguments: Any, hurry: bool) -> DrainedCounts:
        if not killed:
            await _die(own, killed)
        return await drain(*arguments, hurry=hurry)

    monkeypatch.setattr(CoordinatorServer, "_notice", notice_later)
    monkeypatch.setattr(controller, "drain", die_first)
    own.start()
    own.wait_for_batches(30)
    own.nodes["trainer"][0].kill()
    wait_until(lambda: _changes_recorded(own.run, "NodeDied") == 1, "it is known that the trainer is dead")
    own.coordinator.interrupt()
    wait_until(lambda: bool(killed), "the coordinator dies")
    own.take_over()
    report = own.ended(ExitCode.INTERRUPTED)
    assert report.examples.returned > 0


@pytest.mark.matrix
def test_a_resumed_job_is_taken_over(in_process: ClusterMaker) -> None:
    first, slowed = interrupted(in_process, CHANGES, 30), Slowed(10)
    before = first.report.examples.distinct
    again = in_process(going_on(CHANGES, first), faults=(slowed,)).start()
    again.wait_for_batches(10)
    again.coordinator.kill()
    again.take_over()
    slowed.release()
    report = again.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert before + report.examples.distinct == EXAMPLES


@pytest.mark.matrix
def test_of_a_job_that_resumed_the_storage_that_it_writes_to(
    in_process: ClusterMaker, tmp_path: Path
) -> None:
    """By the URL of all its checkpoints, the last of which is the job's own when it is killed."""
    url = f"file://{tmp_path}/storage"
    changes = _changed(run=CHANGES["run"] | {"storage": url}, checkpoint={"every_examples": 2_000})
    first = interrupted(in_process, changes, 30)
    before, numbers = first.report.examples.distinct, CheckpointStorage.open(url).numbers()
    slowed = Slowed(40)
    again = in_process(changes | {"start": {"checkpoint": url, "resume": True}}, faults=(slowed,)).start()
    wait_until(lambda: CheckpointStorage.open(url).numbers()[-1] > numbers[-1], "it has one of its own")
    again.coordinator.kill()
    again.take_over()
    slowed.release()
    report = again.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert before + report.examples.distinct == EXAMPLES


@pytest.mark.matrix
def test_of_a_job_that_resumed_one_of_several_kept_checkpoints(
    in_process: ClusterMaker, tmp_path: Path
) -> None:
    """Later ones of the run before are still there, beside its own."""
    url = f"file://{tmp_path}/storage"
    run = CHANGES["run"] | {"storage": url, "keep_checkpoints": 3}
    changes = _changed(run=run, checkpoint={"every_examples": 2_000})
    interrupted(in_process, changes, 80)
    storage, slowed = CheckpointStorage.open(url), Slowed(20)
    first, *_, last = storage.numbers()
    examples = storage.read(first).examples_trained
    assert examples < storage.read(last).examples_trained
    start = {"checkpoint": url, "resume": True, "which": f"step-{examples}"}
    again = in_process(changes | {"start": start}, faults=(slowed,)).start()
    wait_until(lambda: storage.numbers()[-1] > last, "it has one of its own")
    again.coordinator.kill()
    again.take_over()
    slowed.release()
    report = again.ended(ExitCode.FINISHED_WITH_DEATHS)
    assert (report.restored_examples, examples + report.examples.distinct) == (examples, EXAMPLES)


@pytest.mark.matrix
def test_it_dies_before_the_report_of_a_job_that_resumed_a_storage(
    in_process: ClusterMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/storage"
    changes = _changed(run=CHANGES["run"] | {"storage": url})
    interrupted(in_process, changes, 30)
    resumed = CheckpointStorage.open(url).address(CheckpointStorage.open(url).numbers()[-1])
    own = in_process(changes | {"start": {"checkpoint": resumed, "resume": True}})
    killed = list[bool]()

    def die_and_write(folder: Path, report: Report) -> None:
        if not killed:
            killed.append(True)
            own.coordinator.kill()
            raise KeyboardInterrupt
        write_report(folder, report)

    monkeypatch.setattr(main, "write_report", die_and_write)
    own.start()
    wait_until(lambda: bool(killed), "it dies")
    own.take_over()
    assert own.wait() == ExitCode.OK, own.coordinator.text()
    assert own.run.report.model_saved is not None
    assert CheckpointStorage.open(url).address(CheckpointStorage.open(url).numbers()[0]) != resumed


def test_the_supervisor_starts_another(supervise: Supervise) -> None:
    job = supervise({"data": FOLLOWING})
    job.wait_for_batches(20)
    job.node("coordinator").kill()
    wait_until(lambda: job.run.logged("died; another one took over"), "another one takes over")
    finish_input(job)
    assert job.ended(ExitCode.FINISHED_WITH_DEATHS).examples.distinct == EXAMPLES
    assert "the coordinator was killed by SIGKILL; another one takes over" in job.process.text()


def test_the_supervisor_starts_another_if_it_had_not_begun(supervise: Supervise) -> None:
    """It dies as soon as its process is there; perhaps it has made its ledger by then."""
    job = supervise({"data": FOLLOWING})
    wait_until(lambda: job.nodes("coordinator"), "the coordinator is started")
    job.nodes("coordinator")[0].kill()
    said = "the coordinator was killed by SIGKILL; another one takes over"
    wait_until(lambda: said in job.process.text(), said)
    finish_input(job)
    assert job.ended(ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS).examples.distinct == EXAMPLES
