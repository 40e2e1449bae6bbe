"""What is kept while a job trains: the best checkpoint, whatever fails or is cancelled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import cached_property
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
from shadowsync.tests.support.expected import present
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


class Managed:
    """A job of one trainer and one embedding node, and the manager of its checkpoints. No time passes."""

    def __init__(
        self, folder: Path, *, wait: bool = False, priority: str = "low", resumed: Path | None = None
    ) -> None:
        self._looks = 0
        self.c = FakeServer(
            folder,
            [member("trainer", 0), member("embedding", 0)],
            run={"background_priority": priority},
            validation={"every_examples": 10, "metric": "logloss", "wait": wait},
            start={} if resumed is None else {"checkpoint": str(resumed), "resume": True},
            clock=self._look,
        )
        # Those of the best one that it may take over.
        self.c.state.ledger.restored_examples = 10 if resumed is not None else 0

    @cached_property
    def manager(self) -> CheckpointManager:
        """Made when it is first asked for, of what its job's state is then."""
        model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
        return CheckpointManager(self.c, model, SPANS)

    @asynccontextmanager
    async def training(self) -> AsyncIterator[asyncio.Task[None]]:
        """Its loop, which has looked at what is trained already, and is cancelled in the end."""
        before = self._looks
        running = asyncio.ensure_future(self.manager.run())
        await until(lambda: self._looks > before, "it has looked")
        yield running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()

    def train(self, number: int) -> None:
        """Train the batch of this number."""
        self.c.state.ledger.acknowledge("trainer-0", batch_id(number), 10)

    async def validated(self, number: int) -> None:
        """Train this batch, and wait until a checkpoint with it is validated, or cannot be."""
        validation = self.manager.validation
        tried = len(validation.points) + validation.failed
        self.train(number)
        await until(lambda: len(validation.points) + validation.failed > tried, "it is validated")

    def _look(self) -> float:
        self._looks += 1
        return 0.0


@pytest.fixture
def scores(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointScore]:
    """Of the next checkpoints."""
    coming = [score(GOOD), score(BETTER)]

    async def next_score(_: CheckpointScorer, __: Path, spans: list[Span]) -> CheckpointScore:
        assert spans == SPANS
        return coming.pop(0)

    monkeypatch.setattr(CheckpointScorer, "score", next_score)
    return coming


@run_by(run_in_real_time)
async def test_one_that_cannot_be_kept_leaves_the_best_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scores: list[CheckpointScore]
) -> None:
    job = Managed(tmp_path)
    validation = job.manager.validation

    def full(candidate: Path, note: BestNote) -> Path:
        raise ResourceError(f"{candidate.name} of {note.examples} cannot be written")

    async with job.training():
        await job.validated(1)
        best = validation.best
        monkeypatch.setattr(run_checkpoints, "promote", full)
        await job.validated(2)
        assert validation.best is best
        assert validation.failed == 1
        assert [text for _, text in job.c.reports] == [
            "a validation failed: best.candidate-2 of 10 cannot be written"
        ]
    await job.manager.cancel()
    assert scores == []
    assert open_checkpoint(tmp_path, verify=True, which="best")[1].examples_trained == 20
    assert names(tmp_path) == ["best", "checkpoint"]


@run_by(run_in_real_time)
async def test_those_that_are_due_while_one_is_scored_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is faster: the best model of all is an early one, and it is found."""
    begun, go_on = list[int](), asyncio.Event()

    async def score_when_ordered(_: CheckpointScorer, candidate: str, __: list[Span]) -> CheckpointScore:
        examples = open_checkpoint(Path(candidate))[1].examples_trained
        begun.append(examples)
        await go_on.wait()
        return replace(score(BETTER if examples == 40 else GOOD), examples_trained=examples)

    monkeypatch.setattr(CheckpointScorer, "score", score_when_ordered)
    job = Managed(tmp_path)
    validation = job.manager.validation
    async with job.training():
        for number in range(1, MOST_WAITING + 4):
            job.train(number)
            pinned = [f"{CANDIDATE}-{at + 1}" for at in range(min(number, MOST_WAITING + 1))]
            skipped = max(0, number - MOST_WAITING - 1)
            await until(
                lambda pinned=pinned, skipped=skipped: (  # type: ignore[misc]
                    all((tmp_path / name / "manifest.json").exists() for name in pinned)
                    and validation.skipped == skipped
                ),
                f"checkpoint {number} waits, or is skipped",
            )
        await until(lambda: begun, "the first is scored")
        assert begun == [20]
        go_on.set()
        await until(lambda: len(validation.points) == MOST_WAITING + 1, "all are scored")
    await job.manager.cancel()
    assert begun == [20 + 10 * at for at in range(MOST_WAITING + 1)]
    assert present(validation.best).examples == 40
    assert validation.skipped == 2
    assert [text for _, text in job.c.reports] == [
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

    job = Managed(tmp_path)
    monkeypatch.setattr(run_checkpoints, "promote", slow)
    async with job.training():
        job.train(1)
        await asyncio.to_thread(begun.wait, 60.0)
    ending = asyncio.ensure_future(job.manager.cancel())
    await asyncio.wait({ending}, timeout=0.05)
    assert not ending.done()
    go_on.set()
    await ending
    # The report names what the folder has.
    note = present(read_note(tmp_path / "best"))
    scored = [(point.examples, point.value) for point in job.c.state.checkpointing.scored]
    assert scored == [(note.examples, note.value)]
    assert len(scores) == 1
    assert open_checkpoint(tmp_path, verify=True, which="best")[1].examples_trained == 20
    assert names(tmp_path) == ["best", "checkpoint"]


@run_by(run_in_real_time)
async def test_training_goes_on_where_an_event_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = Managed(tmp_path)
    manager = job.manager

    def full(*event: object) -> None:
        raise ResourceError(f"the ledger cannot be written, {event}")

    def refuse(*requested: object) -> Reply:
        raise ResourceError(f"no space for {len(requested)}")

    monkeypatch.setattr(LedgerStore, "event", full)
    job.c.reply = refuse
    async with job.training() as running:
        for number in (1, 2):
            job.train(number)
            await until(
                lambda count=number: manager.failed >= count or running.done(),  # type: ignore[misc]
                "it has failed once more",
            )
    await job.c.store.flush()
    assert manager.failed == 2
    assert len(job.c.reports) == 2
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
@run_by(run_in_real_time)
async def test_what_training_waits_for_does_not_yield(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, priority: str, yields: bool
) -> None:
    """Nor what the end of the job waits for."""
    nices = noted_nices(monkeypatch)
    job = Managed(tmp_path, wait=wait, priority=priority)
    c = job.c
    c.reply = lambda node, request: Done() if isinstance(request, PauseTraining) else c.written(node, request)
    async with job.training():
        await job.validated(1)
    await job.manager.finish()
    await job.manager.cancel()
    asked = [part.yields for _, part, _ in c.requested if isinstance(part, WriteCheckpoint)]
    assert asked == [yields] * 2
    assert nices == [BACKGROUND_NICE if yields else 0, 0]


@run_by(run_in_real_time)
async def test_the_held_out_items_are_ranked_at_the_usual_priority_without_validations_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nices = noted_nices(monkeypatch)
    job = Managed(tmp_path)
    async with job.training():
        await job.validated(1)
    assert nices == [BACKGROUND_NICE], "the control"
    await job.manager.score_last(SPANS)
    await job.manager.cancel()
    assert nices == [BACKGROUND_NICE, 0]


@pytest.mark.parametrize("first", [GOOD, BETTER], ids=["no better", "the best"])
@run_by(run_in_real_time)
async def test_the_last_checkpoint_is_scored_once(
    tmp_path: Path, scores: list[CheckpointScore], first: float
) -> None:
    """After a pause that ended training the last checkpoint has the model that was scored in it."""

    async def finished(*, same: bool) -> CheckpointManager:
        job = Managed(tmp_path)
        async with job.training():
            await job.validated(1)
            await job.validated(2)
        _, last = open_checkpoint(tmp_path, which="last")
        more = last if same else last.model_copy(update={"examples_trained": last.examples_trained + 1})
        await job.manager.finish(more)
        await job.manager.cancel()
        return job.manager

    scores[:] = [score(GOOD if first == BETTER else BETTER), score(first), score(0.7)]
    manager = await finished(same=True)
    assert (len(manager.validation.points), len(scores)) == (2, 1)
    assert manager.best_is_last == (first == BETTER)
    # The control: something was trained after it.
    scores[:] = [score(GOOD), score(BETTER), score(0.7)]
    manager = await finished(same=False)
    assert (len(manager.validation.points), len(scores)) == (3, 0)


@pytest.mark.parametrize("second", [BETTER, GOOD], ids=["its own is best", "the resumed is best"])
@run_by(run_in_real_time)
async def test_a_coordinator_that_takes_over_a_resumed_run_keeps_its_best(
    tmp_path: Path, scores: list[CheckpointScore], second: float
) -> None:
    """The best of the resumed run was taken over once; a second time it would replace a better one."""
    before, folder = tmp_path / "before", tmp_path / "run"
    folder.mkdir()
    first = GOOD if second == BETTER else BETTER
    scores[:] = [score(first), replace(score(second), examples_trained=20), score(0.7)]

    async def train(job: Managed) -> None:
        async with job.training():
            await job.validated(1)
        await job.manager.cancel()

    await train(Managed(before))
    dead = Managed(folder, resumed=before)
    await train(dead)
    job = Managed(folder, resumed=before)
    await dead.c.store.flush()
    for entry in await dead.c.store.run(lambda store: list(store.entries())):
        change = RECORDS.decode_values(entry.kind, msgpack.unpackb(entry.body))
        DECISIONS[type(change)](job.c.state, change)
    job.c.state.lifecycle.replace_coordinator()
    best = present(read_note(folder / "best"))
    await train(job)
    assert job.manager.validation.without_improvement == (1 if second == BETTER else 2)
    assert read_note(folder / "best") == best
    assert present(job.manager.validation.best).value == best.value
    assert scores == []


@pytest.mark.parametrize("change", ["later", "metric", "data", ""])
@run_by(run_in_real_time)
async def test_the_best_of_the_resumed_run_is_taken_over_only_where_it_is_one_of_this_run(
    tmp_path: Path, scores: list[CheckpointScore], change: str
) -> None:
    before, folder = Managed(tmp_path / "before"), tmp_path / "run"
    folder.mkdir()
    scores[:] = [score(BETTER), score(GOOD)]
    async with before.training():
        await before.validated(1)
    await before.manager.cancel()
    note = present(read_note(before.c.state.folder / "best"))
    note = {
        "later": replace(note, examples=11),
        "metric": replace(note, metric="auc"),
        "data": replace(note, input_digest="other"),
    }.get(change, note)
    (before.c.state.folder / "best" / "validation.json").write_text(json.dumps(asdict(note)))
    job = Managed(folder, resumed=before.c.state.folder)
    async with job.training():
        await job.validated(1)
    await job.manager.cancel()
    assert present(job.manager.validation.best).value == (present(read_note(folder / "best"))).value
    assert (present(job.manager.validation.best).value == note.value) is not bool(change)


@run_by(asyncio.run)
async def test_of_many_that_fail_in_a_row_few_are_events(tmp_path: Path) -> None:
    job = Managed(tmp_path)
    c, manager = job.c, job.manager

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
