"""The last checkpoint of a job: what is left of one that fails, and how long nodes have for it."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.checkpoint.running import PART_SECONDS
from shadowsync.nodes.coordinator.server import HURRY_SECONDS
from shadowsync.nodes.coordinator.shutdown import JobFinalizer
from shadowsync.nodes.coordinator.state.outcome import (
    ClosingResult,
    DrainedCounts,
    FinalModel,
    Outcome,
)
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.errors import ClusterError, ExitCode, JobFileError, ResourceError
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.orders import (
    ComposeModel,
    Finalize,
    FinalizeReply,
    WriteCheckpoint,
    WriteCheckpointReply,
)
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coordinator.fake_coordinator import ELEMENTS, FakeServer, member
from shadowsync.tests.support.coroutines import run_by


def closing(c: FakeServer, *, hurry: bool = False) -> JobFinalizer:
    outcome = Outcome(drained=DrainedCounts(trainers={"trainer-0": {}}))
    model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
    return JobFinalizer(c, outcome, model, list[str]().append, hurry=hurry)


@run_by(asyncio.run)
async def test_of_one_that_fails_nothing_is_left_and_the_one_before_stays(tmp_path: Path) -> None:
    c = FakeServer(tmp_path, [member("trainer", 0), member("embedding", 0)])
    await closing(c).checkpoint()
    kept = open_checkpoint(tmp_path, verify=True)

    def full(node: Member, request: Request[Any]) -> Reply:
        reply = c.written(node, request)
        if node.info.role == "embedding":
            raise ResourceError("cannot be written (No space left on device)")
        return reply

    c.reply = full
    with pytest.raises(ClusterError, match="No space left") as raised:
        await closing(c).checkpoint()
    assert raised.value.exit_code == ExitCode.RESOURCES
    assert open_checkpoint(tmp_path, verify=True) == kept
    assert os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("merges", [True, False])
@run_by(asyncio.run)
async def test_the_last_rounds_of_a_merge_run_together(tmp_path: Path, merges: bool) -> None:
    """Alone, each trainer would be a merge of its own; the control runs them one after the other."""
    c = FakeServer(tmp_path, [member("trainer", index) for index in range(3)])
    under_way, all_under_way = set[str](), threading.Event()

    def finalized(node: Member, request: Request[Any]) -> Reply:
        if isinstance(request, Finalize):
            under_way.add(node.info.name)
            if len(under_way) == 3:
                all_under_way.set()
            if merges:
                assert all_under_way.wait(60.0)
            else:
                assert under_way == {node.info.name}
                under_way.clear()
        return FinalizeReply({}, complete=True, model_ready=False)

    c.reply = finalized
    outcome = Outcome(drained=DrainedCounts(trainers={f"trainer-{index}": {} for index in range(3)}))
    model = FinalModel(ModelOrigin.CENTER, "none", ELEMENTS, needs_peers=False, merges=merges)
    closed = await JobFinalizer(c, outcome, model, list[str]().append).finalize_trainers(closing_round=True)
    assert set(closed.trainers) == {"trainer-0", "trainer-1", "trainer-2"}


@pytest.mark.parametrize(("hurry", "seconds"), [(False, PART_SECONDS), (True, HURRY_SECONDS)])
@run_by(asyncio.run)
async def test_nodes_have_as_long_as_while_training_but_for_a_hurry(
    tmp_path: Path, hurry: bool, seconds: float
) -> None:
    c = FakeServer(tmp_path, [member("trainer", 0), member("embedding", 0)])
    await closing(c, hurry=hurry).checkpoint()
    assert [(name, limit) for name, _, limit in c.requested] == [
        ("trainer-0", seconds),
        ("embedding-0", seconds),
    ]
    # Rows that did not change since the last checkpoint may take more time than there is.
    changed_rows_only = [part.running for _, part, _ in c.requested if isinstance(part, WriteCheckpoint)]
    assert changed_rows_only == [False, hurry]


@pytest.mark.parametrize(
    ("refusing", "saver", "requested"),
    [
        (["trainer-0"], "trainer-1", [ModelOrigin.CENTER] * 2),
        (["trainer-0", "trainer-1"], "trainer-0", [*[ModelOrigin.CENTER] * 2, ModelOrigin.REPLICAS]),
    ],
)
@run_by(asyncio.run)
async def test_a_trainer_that_refuses_speaks_for_itself_and_the_next_one_saves_the_center(
    tmp_path: Path, refusing: list[str], saver: str, requested: list[ModelOrigin]
) -> None:
    """And where the center is not finite itself, which all of them say, a replica is saved."""
    c = FakeServer(tmp_path, [member("trainer", 0), member("trainer", 1), member("embedding", 0)])

    def reply(node: Member, request: Request[Any]) -> Reply:
        assert isinstance(request, WriteCheckpoint)
        if request.dense and request.model == ModelOrigin.CENTER and node.info.name in refusing:
            raise JobFileError("it has numbers that are not finite")
        return c.written(node, request)

    c.reply = reply
    outcome = Outcome(drained=DrainedCounts(trainers={"trainer-0": {}, "trainer-1": {}}))
    model, notes = FinalModel(ModelOrigin.CENTER, "easgd", ELEMENTS, needs_peers=False), list[str]()
    await JobFinalizer(c, outcome, model, notes.append).checkpoint()
    parts = [part for _, part, _ in c.requested if isinstance(part, WriteCheckpoint)]
    assert [part.model for part in parts if part.dense] == requested
    assert model.saved_by == saver
    lost = any("is lost; the saved model is trainer-0's replica" in note for note in notes)
    assert lost == bool(notes) == (len(refusing) == 2)


@pytest.mark.parametrize(
    ("unable", "hurry", "answered", "saver", "asked"),
    [
        # A link of one of them may be cut.
        (1, False, True, "trainer-1", 2),
        (1, True, True, "trainer-1", 2),
        (2, False, True, "trainer-2", 3),
        # Each takes its time, which an interrupt does not have.
        (2, True, True, "trainer-0", 2),
        # Where the sync node does not answer the coordinator, the next one cannot read it, either.
        (1, False, False, "trainer-0", 1),
    ],
)
@run_by(asyncio.run)
async def test_the_next_trainer_is_asked_for_a_center_that_one_cannot_read(
    tmp_path: Path, *, unable: int, hurry: bool, answered: bool, saver: str, asked: int
) -> None:
    cut = [f"trainer-{number}" for number in range(unable)]
    trainers, centers = [member("trainer", number) for number in range(3)], list[str]()
    c = FakeServer(tmp_path, [*trainers, member("sync", 0), member("embedding", 0)])

    def reply(node: Member, request: Request[Any]) -> Reply:
        assert isinstance(request, WriteCheckpoint)
        if request.dense and request.model == ModelOrigin.CENTER:
            centers.append(node.info.name)
            if node.info.name in cut:
                return WriteCheckpointReply((), ready=False)
        return c.written(node, request)

    c.reply = reply
    drained = DrainedCounts(trainers={node.info.name: {} for node in trainers})
    closed = ClosingResult(syncs={"sync-0": {}} if answered else {})
    model = FinalModel(ModelOrigin.CENTER, "easgd", ELEMENTS, needs_peers=False)
    outcome = Outcome(drained=drained, closed=closed)
    await JobFinalizer(c, outcome, model, list[str]().append, hurry=hurry).checkpoint()
    assert (model.saved_by, len(centers)) == (saver, asked)
    assert model.single == (saver not in cut)


def test_the_next_trainer_composes_the_moving_average_that_the_saver_cannot(tmp_path: Path) -> None:
    async def body(refusing: set[str]) -> list[str]:
        nodes = [member("trainer", 0), member("trainer", 1), member("embedding", 0)]
        c, asked = FakeServer(tmp_path, nodes), list[str]()

        def reply(node: Member, request: Request[Any]) -> Reply:
            if isinstance(request, WriteCheckpoint):
                role, values = node.info.name, {"t": np.ones(ELEMENTS, np.float32)}
                parts = write_tensors(Path(request.directory), role, values, {"role": role})
                return WriteCheckpointReply(tuple(parts))
            assert isinstance(request, ComposeModel)
            asked.append(node.info.name)
            assert {file.role for file in request.files} == {"trainer-0", "trainer-1"}
            if node.info.name in refusing:
                raise ResourceError("cannot be written (No space left on device)")
            return WriteCheckpointReply(())

        c.reply = reply
        outcome = Outcome(drained=DrainedCounts(trainers={"trainer-0": {}, "trainer-1": {}}))
        model = FinalModel(ModelOrigin.MEAN, "bmuf", ELEMENTS, needs_peers=False, ema=True)
        manifest = await JobFinalizer(c, outcome, model, list[str]().append).checkpoint()
        assert manifest is not None
        assert manifest.model == "the moving average of the replicas' mean (bmuf)"
        return asked

    assert asyncio.run(body(set())) == ["trainer-0"]
    assert asyncio.run(body({"trainer-0"})) == ["trainer-0", "trainer-1"]
    with pytest.raises(ClusterError, match=r"could not write the moving average: .*No space left"):
        asyncio.run(body({"trainer-0", "trainer-1"}))
