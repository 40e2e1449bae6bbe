"""Calls of checkpoints end with their work, unless the storage is silent and the job in a hurry."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from shadowsync.nodes.coordinator import checkpoint_calls
from shadowsync.nodes.coordinator.checkpoint_calls import CheckpointCalls
from shadowsync.pipeline.checkpoint.run_checkpoints import (
    FolderCheckpoints,
    RunCheckpoints,
    StoredCheckpoints,
)
from shadowsync.pipeline.checkpoint.storage import CheckpointStorage
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.tests.support.coroutines import run_by


@pytest.fixture(params=["folder", "storage"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> RunCheckpoints:
    if request.param == "folder":
        return FolderCheckpoints(tmp_path)
    return stored(tmp_path)


def stored(folder: Path) -> StoredCheckpoints:
    return StoredCheckpoints(CheckpointStorage.open(f"file://{folder}/storage"))


class Slow:
    """Work that a test lets end, or fail."""

    def __init__(self, *, fails: bool = False) -> None:
        self._fails = fails
        self.began, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def __call__(self) -> str:
        self.began.set()
        self.may_end.wait(60)
        self.ended.set()
        if self._fails:
            raise KeyError("x")
        return "done"


@run_by(asyncio.run)
async def test_what_it_returns_and_raises(checkpoints: RunCheckpoints) -> None:
    def fail() -> None:
        raise StorageError("no")

    calls = CheckpointCalls(checkpoints)
    assert (await calls.run(checkpoints.begin)).startswith(("file://", "/"))
    with pytest.raises(StorageError, match="no"):
        await calls.run(fail)
    await calls.clean_up(fail)


@pytest.mark.parametrize("fails", [False, True])
@run_by(asyncio.run)
async def test_a_cancelled_call_ends_with_its_work(checkpoints: RunCheckpoints, fails: bool) -> None:
    work, calls = Slow(fails=fails), CheckpointCalls(checkpoints)
    calling = asyncio.create_task(calls.run(work))
    await asyncio.to_thread(work.began.wait, 60.0)
    for _ in range(2):
        calling.cancel()
        done, _ = await asyncio.wait({calling}, timeout=0.05)
        assert not done
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError) as raised:
        await calling
    assert work.ended.is_set()
    assert isinstance(raised.value.__cause__, KeyError) is fails, "without a cause it was done"


@run_by(asyncio.run)
async def test_a_job_in_a_hurry_gives_up_a_silent_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_calls, "HURRY_SECONDS", 0.2)
    work, calls = Slow(), CheckpointCalls(stored(tmp_path))
    calling = asyncio.create_task(calls.run(work))
    await asyncio.to_thread(work.began.wait)
    calls.hurry()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await calling
    assert not work.ended.is_set()
    assert isinstance(raised.value.__cause__, StorageError), "it was not done"
    later = Slow()
    with pytest.raises(StorageError, match="did not answer within 200 ms of the interrupt"):
        await calls.run(later)
    assert not later.began.is_set()
    await calls.clean_up(lambda: None)
    work.may_end.set()


@run_by(asyncio.run)
async def test_a_job_in_a_hurry_still_uses_a_storage_that_answers(checkpoints: RunCheckpoints) -> None:
    calls = CheckpointCalls(checkpoints)
    calls.hurry()
    work = Slow()
    work.may_end.set()
    assert await calls.run(work) == "done"
