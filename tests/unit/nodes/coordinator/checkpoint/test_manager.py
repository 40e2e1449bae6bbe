"""What is kept while a job trains: the best checkpoint, whatever fails or is cancelled."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.checkpoint.manager import MOST_WAITING, CheckpointManager
from shadowsync.nodes.coordinator.ledger.store import LedgerStore
from shadowsync.nodes.coordinator.state.changes import DECISIONS, RECORDS
from shadowsync.nodes.coordinator.state.outcome import FinalModel
from shadowsync.nodes.coordinator.validation.scoring import CheckpointScore, CheckpointScorer
from shadowsync.pipeline.checkpoint import run_checkpoints
from shadowsync.pipeline.checkpoint.best import CANDIDATE, promote, read_note
from shadowsync.pipeline.checkpoint.best_note import BestNote
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.performance.priority import BACKGROUND_NICE
from shadowsync.pipeline.wire.control.base import Done, Reply, Request
from shadowsync.pipeline.wire.control.orders import PauseTraining, WriteCheckpoint
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coordinator.fake_coordinator import ELEMENTS, FakeServer, member
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.jobs.processes import until
from shadowsync.tests.support.real_time import run_in_real_time

SPANS = [Span(0, "held-out", "bytes", 0, 100)]
# The probability of the label, of each checkpoint in turn.
GOOD, BETTER = 0.6, 0.9


def score(probability: float) -> CheckpointScore:
    """Of two examples, one of each label."""
    sums = QualitySums()
    logit = np.log(probability / (1 - probability))
    sums.add(np.array([logit, -logit], np.float32), np.array([1, 0], np.float32))
    return CheckpointScore("m", 10, 0, sums)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def manager_of(c: FakeServer) -> CheckpointManager:
    model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
    return CheckpointManager(c, model, SPANS)


class Clock:
    """No time passes; counts how often it is looked at."""

    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return 0.0


def job(
    folder: Path, clock: Clock, *, wait: bool = False, priority: str = "low", resumed: Path | None = None
) -> FakeServer:
    members = [member("trainer", 0), member("embedding", 0)]
    validation = {"every_examples": 10, "metric": "logloss", "wait": wait}
    run = {"background_priority": priority}
    start = {} if resumed is None else {"checkpoint": str(resumed), "resume": True}
    return FakeServer(folder, members, run=run, validation=validation, start=start, clock=clock)


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointScore]:
    """Of the next checkpoints."""
    coming = [score(GOOD), score(BETTER)]

    async def next_score(_: CheckpointScorer, __: Path, spans: list[Span]) -> CheckpointScore:
        assert spans == SPANS
        return coming.pop(0)

    monkeypatch.setattr(CheckpointScorer, "score", next_score)
    return coming


async def started(clock: Clock, manager: CheckpointManager) -> asyncio.Task[None]:
    """The manager, which has looked at what is trained already."""
    before = clock.looks
    running = asyncio.ensure_future(manager.run())
    await until(lambda: clock.looks > before, "it has looked")
    return running


async def validated(c: FakeServer, manager: CheckpointManager, number: int) -> None:
    """Trains the batch of this number, and waits until a checkpoint with it is validated, or cannot be."""
    tried = len(manager.validation.points) + manager.validation.failed
    c.state.ledger.acknowledge("trainer-0", batch_id(number), 10)
    await until(lambda: len(manager.validation.points) + manager.validation.failed > tried, "it is validated")


async def ended(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


@run_by(run_in_real_time)
async def test_one_that_cannot_be_kept_leaves_the_best_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[CheckpointScore]
) -> None:
    clock = Clock()
    c = job(tmp_path, clock)
    manager = manager_of(c)
    running = await started(clock, manager)
    await validated(c, manager, 1)
    best = manager.validation.best

    def full(candidate: Path, note: BestNote) -> Path:
        raise ResourceError(f"{candidate.name} of {note.examples} cannot be written")

    monkeypatch.setattr(run_checkpoints, "promote", full)
    await validated(c, manager, 2)
    assert manager.validation.best is best
    assert manager.validation.failed == 1
    assert [text for _, text in c.reports] == [
        "a validation failed: best.candidate-2 of 10 cannot be written"
    ]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await manager.cancel()
    assert scores == []
    assert open_checkpoint(tmp_path, verify=True, which="best")[1].examples_trained == 20
    assert names(tmp_path) == ["best", "checkpoint"]


def test_those_that_are_due_while_one_is_scored_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is faster: the best model of all is an early one, and it is found."""
    begun: list[int] = []

    async def body() -> tuple[CheckpointManager, list[str]]:
        go_on = asyncio.Event()

        async def score_when_ordered(_: CheckpointScorer, candidate: str, __: list[Span]) -> CheckpointScore:
            examples = open_checkpoint(Path(candidate))[1].examples_trained
            begun.append(examples)
            await go_on.wait()
            return replace(score(BETTER if examples == 40 else GOOD), examples_trained=examples)

        monkeypatch.setattr(CheckpointScorer, "score", score_when_ordered)
        clock = Clock()
        c = job(tmp_path, clock)
        manager = manager_of(c)
        running = await started(clock, manager)
        for number in range(1, MOST_WAITING + 4):
            c.state.ledger.acknowledge("trainer-0", batch_id(number), 10)
            pinned = [f"{CANDIDATE}-{at + 1}" for at in range(min(number, MOST_WAITING + 1))]
            skipped = max(0, number - MOST_WAITING - 1)
            await until(
                lambda pinned=pinned, skipped=skipped: (  # type: ignore[misc]
                    all((tmp_path / name / "manifest.json").exists() for name in pinned)
                    and manager.validation.skipped == skipped
                ),
                f"checkpoint {number} waits, or is skipped",
            )
        await until(lambda: begun, "the first is scored")
        assert begun == [20]
        go_on.set()
        await until(lambda: len(manager.validation.points) == MOST_WAITING + 1, "all are scored")
        await ended(running)
        await manager.cancel()
        return manager, [text for _, text in c.reports]

    manager, reports = asyncio.run(asyncio.wait_for(body(), 60.0))
    assert begun == [20 + 10 * at for at in range(MOST_WAITING + 1)]
    assert manager.validation.best is not None
    assert manager.validation.best.examples == 40
    assert manager.validation.skipped == 2
    assert reports == [
        "the validation at 110 examples is skipped, since 8 others wait: training is faster than scoring"
    ]
    assert open_checkpoint(tmp_path, verify=True, which="auto")[1].examples_trained == 40
    assert open_checkpoint(tmp_path, verify=True)[1].examples_trained == 100
    assert names(tmp_path) == ["best", "checkpoint"]


@run_by(run_in_real_time)
async def test_cancelled_while_it_keeps_the_best_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[CheckpointScore]
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(candidate: Path, note: BestNote) -> Path:
        begun.set()
        assert go_on.wait(60.0)
        assert candidate.is_dir()
        return promote(candidate, note)

    clock = Clock()
    c = job(tmp_path, clock)
    manager = manager_of(c)
    monkeypatch.setattr(run_checkpoints, "promote", slow)
    running = await started(clock, manager)
    c.state.ledger.acknowledge("trainer-0", batch_id(1), 10)
    await asyncio.to_thread(begun.wait, 60.0)
    await ended(running)
    ending = asyncio.ensure_future(manager.cancel())
    await asyncio.wait({ending}, timeout=0.05)
    assert not ending.done()
    go_on.set()
    await ending
    # The report names what the folder has.
    note = read_note(tmp_path / "best")
    assert note is not None
    assert [(point.examples, point.value) for point in c.state.checkpointing.scored] == [
        (note.examples, note.value)
    ]
    assert len(scores) == 1
    assert open_checkpoint(tmp_path, verify=True, which="best")[1].examples_trained == 20
    assert names(tmp_path) == ["best", "checkpoint"]


@run_by(run_in_real_time)
async def test_training_goes_on_where_an_event_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    c = job(tmp_path, clock)
    manager = manager_of(c)

    def full(*event: object) -> None:
        raise ResourceError(f"the ledger cannot be written, {event}")

    def refuse(*requested: object) -> Reply:
        raise ResourceError(f"no space for {len(requested)}")

    monkeypatch.setattr(LedgerStore, "event", full)
    c.reply = refuse
    running = await started(clock, manager)
    for number in (1, 2):
        c.state.ledger.acknowledge("trainer-0", batch_id(number), 10)
        await until(
            lambda count=number: manager.failed >= count or running.done(),  # type: ignore[misc]
            "it has failed once more",
        )
    await ended(running)
    await c.store.flush()
    assert manager.failed == 2
    assert len(c.reports) == 2
    assert caplog.text.count("an event could not be stored in the ledger's file") == 2


def noted_nices(patch: pytest.MonkeyPatch) -> list[int]:
    """Score all checkpoints as GOOD; return by how much the priority of each score is lower, as they come."""
    nices: list[int] = []

    async def noted(scorer: CheckpointScorer, _: Path, __: list[Span]) -> CheckpointScore:
        nices.append(scorer._nice)
        return score(GOOD)

    patch.setattr(CheckpointScorer, "score", noted)
    return nices


@pytest.mark.parametrize(
    ("wait", "priority", "yields"), [(False, "low", True), (True, "low", False), (False, "normal", False)]
)
def test_what_training_waits_for_does_not_yield(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, priority: str, yields: bool
) -> None:
    """Nor what the end of the job waits for."""
    nices = noted_nices(monkeypatch)

    async def body() -> list[bool]:
        clock = Clock()
        c = job(tmp_path, clock, wait=wait, priority=priority)
        c.reply = lambda node, request: (
            Done() if isinstance(request, PauseTraining) else c.written(node, request)
        )
        manager = manager_of(c)
        running = await started(clock, manager)
        await validated(c, manager, 1)
        await ended(running)
        await manager.finish()
        await manager.cancel()
        return [part.yields for _, part, _ in c.requested if isinstance(part, WriteCheckpoint)]

    asked = asyncio.run(asyncio.wait_for(body(), 60.0))
    assert asked == [yields] * 2
    assert nices == [BACKGROUND_NICE if yields else 0, 0]


@run_by(run_in_real_time)
async def test_the_held_out_items_are_ranked_at_the_usual_priority_without_validations_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nices = noted_nices(monkeypatch)

    clock = Clock()
    c = job(tmp_path, clock)
    manager = manager_of(c)
    running = await started(clock, manager)
    await validated(c, manager, 1)
    await ended(running)
    assert nices == [BACKGROUND_NICE], "the control"
    await manager.score_last(SPANS)
    await manager.cancel()
    assert nices == [BACKGROUND_NICE, 0]


@pytest.mark.parametrize("first", [GOOD, BETTER], ids=["no better", "the best"])
def test_the_last_checkpoint_is_scored_once(
    tmp_path: Path, scores: list[CheckpointScore], first: float
) -> None:
    """After a pause that ended training the last checkpoint has the model that was scored in it."""
    scores[:] = [score(GOOD if first == BETTER else BETTER), score(first), score(0.7)]

    async def body(*, same: bool) -> CheckpointManager:
        clock = Clock()
        c = job(tmp_path, clock)
        manager = manager_of(c)
        running = await started(clock, manager)
        await validated(c, manager, 1)
        await validated(c, manager, 2)
        await ended(running)
        _, last = open_checkpoint(tmp_path, which="last")
        more = last if same else last.model_copy(update={"examples_trained": last.examples_trained + 1})
        await manager.finish(more)
        await manager.cancel()
        return manager

    manager = asyncio.run(asyncio.wait_for(body(same=True), 60.0))
    assert (len(manager.validation.points), len(scores)) == (2, 1)
    assert manager.best_is_last == (first == BETTER)
    # The control: something was trained after it.
    scores[:] = [score(GOOD), score(BETTER), score(0.7)]
    manager = asyncio.run(asyncio.wait_for(body(same=False), 60.0))
    assert (len(manager.validation.points), len(scores)) == (3, 0)


@pytest.mark.parametrize("second", [BETTER, GOOD], ids=["its own is best", "the resumed is best"])
@run_by(run_in_real_time)
async def test_a_coordinator_that_takes_over_a_resumed_run_keeps_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: float
) -> None:
    """The best of the resumed run was taken over once; a second time it would replace a better one."""
    before, folder = tmp_path / "before", tmp_path / "run"
    folder.mkdir()
    first = GOOD if second == BETTER else BETTER
    coming = [score(first), replace(score(second), examples_trained=20), score(0.7)]

    async def next_score(_: CheckpointScorer, __: Path, ___: list[Span]) -> CheckpointScore:
        return coming.pop(0)

    monkeypatch.setattr(CheckpointScorer, "score", next_score)

    async def train(c: FakeServer, clock: Clock) -> CheckpointManager:
        manager = manager_of(c)
        running = await started(clock, manager)
        await validated(c, manager, 1)
        await ended(running)
        await manager.cancel()
        return manager

    clock = Clock()
    await train(job(before, clock), clock)
    dead = job(folder, clock, resumed=before)
    await train(dead, clock)
    c = job(folder, clock, resumed=before)
    await dead.store.flush()
    for entry in await dead.store.run(lambda store: list(store.entries())):
        change = RECORDS.decode_values(entry.kind, msgpack.unpackb(entry.body))
        DECISIONS[type(change)](c.state, change)
    c.state.lifecycle.replace_coordinator()
    best = read_note(folder / "best")
    manager = await train(c, clock)
    assert manager.validation.without_improvement == (1 if second == BETTER else 2)
    assert read_note(folder / "best") == best
    assert manager.validation.best is not None
    assert best is not None
    assert manager.validation.best.value == best.value
    assert coming == []


@run_by(asyncio.run)
async def test_of_many_that_fail_in_a_row_few_are_events(tmp_path: Path) -> None:
    c = job(tmp_path, Clock())
    manager = manager_of(c)

    def refuse(node: Member, _: Request[Any]) -> Reply:
        raise ResourceError(f"{node.info.name} has no room")

    def events() -> list[str]:
        return [what for _, what in c.reports]

    for _ in range(2):
        c.state.events.clear()
        c.reply, written = refuse, c.reply
        for _ in range(20):
            assert await manager._take(yields=False) is None
        said = ["", " (2 in a row)", " (4 in a row)", " (8 in a row)", " (16 in a row)"]
        failed = "a checkpoint could not be written during training"
        assert [what.partition(":")[0] for what in events()] == [failed + one for one in said]
        assert all("has no room" in what for what in events())
        c.reply = written
        for _ in range(2):
            assert await manager._take(yields=False) is not None
        assert events()[5:] == ["a checkpoint was written again, after 20 that failed"]
    assert manager.failed == 40
