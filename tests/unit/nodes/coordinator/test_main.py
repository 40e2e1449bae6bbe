"""What the coordinator makes before any node joins is made off its loop."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shadowsync.nodes.coordinator.checkpoint.resume import RestoredRun
from shadowsync.nodes.coordinator.input import planning
from shadowsync.nodes.coordinator.main import LEDGER_FILE, make_run_folder, make_state, restored_before
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.data.formats.parquet import row_groups
from shadowsync.pipeline.data.generator.generator import generate_log
from shadowsync.pipeline.errors import CheckpointError, ResourceError
from shadowsync.pipeline.input.plan import plan_input
from shadowsync.pipeline.input.sample import take_sample
from shadowsync.tests.support.coroutines import run_by
from shadowsync.tests.support.data.plain_job import plain_job


@run_by(asyncio.run)
async def test_files_are_opened_on_other_threads_than_the_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate_log(tmp_path, examples=100, eval_examples=0, seed=1, data_format="parquet", files=1)
    model = {"table_rows": 10, "embedding_dim": 4}
    job = plain_job(13, 26, data={"path": [f"{tmp_path}/train-*"]}, model=model, embedding={"nodes": 2})
    threads: dict[str, int] = {}
    connect = sqlite3.connect

    def on(what: str, work: Any) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            threads[what] = threading.get_ident()
            return work(*args, **options)

        return noted

    monkeypatch.setattr(sqlite3, "connect", on("ledger", connect))
    monkeypatch.setattr(planning, "row_groups", on("size", row_groups))
    monkeypatch.setattr(planning, "take_sample", on("sample", take_sample))

    folder = tmp_path / "run"
    folder.mkdir()
    _, writer, _ = await make_state(NodeSettings(job=job, folder=folder), plan_input(job), None)
    await writer.close()
    assert (folder / LEDGER_FILE).exists()
    assert set(threads) == {"ledger", "size", "sample"}
    assert threading.get_ident() not in threads.values()


def test_one_that_takes_over_resumes_no_other_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that the job resumed may have been training still, or have gone."""
    place = cast("RestoredRun", SimpleNamespace(folder=tmp_path, manifest=SimpleNamespace(digest="first")))
    monkeypatch.setattr(RestoredRun, "open", lambda *_: place)
    job = plain_job(13, 26, start={"checkpoint": str(tmp_path), "resume": True})
    assert restored_before(job, "first") is place
    with pytest.raises(CheckpointError, match="is no more the checkpoint that the job resumed"):
        restored_before(job, "another")
    monkeypatch.delattr(RestoredRun, "open")
    assert restored_before(job, "") is None, "one that resumes nothing reads no checkpoint"


@pytest.mark.parametrize("written", ["job.json", "plan.json"])
def test_a_disk_that_is_full_when_the_job_begins_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """As a full disk is at any time later: with exit code 8, and without half a file."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(Path, "write_text", full)
    job = plain_job(13, 26, run={"directory": str(tmp_path)})
    write: dict[str, Callable[[], object]] = {
        "job.json": lambda: make_run_folder(NodeSettings(job=job, folder=tmp_path)),
        "plan.json": lambda: TablePlacement.by_rows(job).record().write(tmp_path),
    }
    with pytest.raises(ResourceError, match=rf"{written}: cannot be written \(No space left on device\)"):
        write[written]()
    assert list(tmp_path.iterdir()) == []
