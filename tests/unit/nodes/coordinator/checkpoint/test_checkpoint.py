"""A checkpoint while training goes on: who writes what, and what is left of one that fails."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.checkpoint import running as checkpoint_room
from shadowsync.nodes.coordinator.checkpoint.running import RESERVE_BYTES, RunningCheckpoint
from shadowsync.nodes.coordinator.state.outcome import FinalModel
from shadowsync.pipeline.checkpoint import run_checkpoints
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest, commit, open_checkpoint
from shadowsync.pipeline.errors import ClusterError, ResourceError
from shadowsync.pipeline.text.format import data_size
from shadowsync.pipeline.wire.control.base import Reply, Request
from shadowsync.pipeline.wire.control.orders import ComposeModel, WriteCheckpoint
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coordinator.fake_coordinator import ELEMENTS, FakeServer, member
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.batches import batch_id


def taker(
    c: FakeServer, origin: ModelOrigin = ModelOrigin.REPLICAS, *, peers: bool = False
) -> RunningCheckpoint:
    return RunningCheckpoint(c, FinalModel(origin, "none", ELEMENTS, peers))


def job(folder: Path, **facts: Any) -> FakeServer:
    members = [member("trainer", 0), member("trainer", 1), member("embedding", 0, **facts)]
    return FakeServer(folder, members)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def partial_files(folder: Path) -> list[Path]:
    return list(folder.glob("checkpoint.partial-*/*"))


@run_by(asyncio.run)
async def test_cancelled_while_it_is_put_in_place_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(partial: Path, manifest: CheckpointManifest) -> Path:
        begun.set()
        assert go_on.wait(60.0)
        return commit(partial, manifest)

    c = job(tmp_path)
    keeps = taker(c)
    await keeps.take()
    monkeypatch.setattr(run_checkpoints, "commit", slow)
    c.state.ledger.acknowledge("trainer-0", batch_id(1), 10)
    task = asyncio.ensure_future(keeps.take())
    await asyncio.to_thread(begun.wait, 60.0)
    task.cancel()
    await asyncio.wait({task}, timeout=0.05)
    # Nothing of it is removed while it is put in its place.
    assert not task.done()
    assert len(partial_files(tmp_path)) == 4
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled()
    assert c.state.checkpointing.written == 2
    assert keeps.newest_examples == 20
    assert open_checkpoint(tmp_path, verify=True)[1].examples_trained == 20
    assert names(tmp_path) == ["checkpoint"]


@run_by(asyncio.run)
async def test_of_one_that_a_node_refuses_nothing_is_left(tmp_path: Path) -> None:
    c = job(tmp_path)
    keeps = taker(c)
    await keeps.take()
    kept = open_checkpoint(tmp_path, verify=True)

    def refuse(node: Member, request: Request[Any]) -> Reply:
        reply = c.written(node, request)
        if node.info.name == "trainer-1":
            raise ClusterError("no")
        return reply

    c.reply = refuse
    with pytest.raises(ClusterError, match="no"):
        await keeps.take()
    assert open_checkpoint(tmp_path, verify=True) == kept
    assert c.state.checkpointing.written == 1
    assert names(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("yields", [True, False])
def test_all_parts_yield_or_none(tmp_path: Path, yields: bool) -> None:
    async def body() -> list[bool]:
        c = job(tmp_path)
        await taker(c, ModelOrigin.MEAN).take(yields=yields)
        return [part.yields for _, part, _ in c.requested if isinstance(part, WriteCheckpoint | ComposeModel)]

    # Of the shard, two trainers, and the model of both.
    assert asyncio.run(body()) == [yields] * 4


@run_by(asyncio.run)
async def test_a_trainer_that_is_out_of_the_group_does_not_save_the_model(tmp_path: Path) -> None:
    def savers(c: FakeServer) -> list[str]:
        return [name for name, part, _ in c.requested if isinstance(part, WriteCheckpoint) and part.dense]

    for peers, saver in ((True, "trainer-1"), (False, "trainer-0")):
        c = job(tmp_path)
        c.state.group.lose(0)
        await taker(c, ModelOrigin.GLOBAL, peers=peers).take()
        assert savers(c) == [saver]
        # The other writes its replica all the same.
        assert [name for name, *_ in c.requested].count("trainer-0") == 1
        assert [name for name, *_ in c.requested].count("trainer-1") == 1


@run_by(asyncio.run)
async def test_the_first_one_is_not_tried_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 1 << 30
    needed = part + 4 * 4 * ELEMENTS + RESERVE_BYTES
    free = [needed - 1]
    usage = SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free[0]))
    monkeypatch.setattr(checkpoint_room, "shutil", usage)

    c = job(tmp_path, checkpoint_bytes=part)
    with pytest.raises(ResourceError, match=f"{data_size(needed - 1)} are free"):
        await taker(c).take()
    assert c.requested == []
    assert names(tmp_path) == []
    free[0] += 1
    await taker(c).take()
    assert names(tmp_path) == ["checkpoint"]


@run_by(asyncio.run)
async def test_a_long_pause_of_a_shard_is_told_once(tmp_path: Path) -> None:
    pause = [0.9]
    c = FakeServer(tmp_path, [member("trainer", 0), member("embedding", 0)])
    c.reply = lambda *requested: replace(c.written(*requested), pause_seconds=pause[0])
    keeps = taker(c)
    await keeps.take()
    assert c.reports == []
    pause[0] = 1.5
    for _ in range(2):
        await keeps.take()
    said = "pushes and lookups waited 1.5 s while a checkpoint copied the rows"
    assert sorted(c.reports) == [("embedding-0", said), ("trainer-0", said)]


@run_by(asyncio.run)
async def test_its_counts_are_of_the_moment_of_its_ledger(tmp_path: Path) -> None:
    c = job(tmp_path)

    def trains(node: Member, request: Request[Any]) -> Reply:
        if node.info.role == "embedding":
            c.state.ledger.acknowledge("trainer-0", batch_id(1), 10)
        return c.written(node, request)

    c.reply = trains
    manifest = await taker(c).take()
    assert manifest.examples_trained == manifest.ledger["distinct_examples"] == 10
    # The control: more is trained by now.
    assert c.state.ledger.totals.distinct_examples == 20


@run_by(asyncio.run)
async def test_the_files_of_the_input_are_not_looked_at_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be many, on a file system that takes its time."""
    sizes, loop = list[str](), threading.current_thread()

    def size(path: str) -> int:
        assert threading.current_thread() is not loop
        sizes.append(path)
        return 7

    monkeypatch.setattr(checkpoint_room, "_size", size)

    manifest = await taker(job(tmp_path)).take()
    assert manifest.ledger["input"]["files"] == {"x": {"spans": 1, "stop": 100, "bytes": 7}}
    assert sizes == ["x"]
