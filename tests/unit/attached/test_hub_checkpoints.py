"""Checkpoints of a hub: what is altered is refused, and what cannot be written ends no hub."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from shadowsync.attached.hub.checkpoint import FOLDER, TABLES, HubCheckpoints, SavedModel
from shadowsync.attached.hub.state import HubState
from shadowsync.attached.hub.table_checkpoints import SavedTables
from shadowsync.attached.job import loop_job
from shadowsync.nodes.control.server import ControlServer
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.manifest import begin, commit
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.control.loops import ParameterShape
from shadowsync.pipeline.wire.control.messages import Hello, NodeFacts
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

LAYOUT = (ParameterShape("w", (4, 8)),)


class OneCenter:
    """The checkpoints of a hub with one loop, whose model is a center."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.values: Float32Array = np.arange(32, dtype=np.float32)
        state = HubState(loop_job({}), folder)
        member = state.members.join(Hello("trainer", "1", "", "tcp://127.0.0.1:1", 1, "host"))
        state.offer(member, LAYOUT)
        state.get_ready(member, NodeFacts(dense_elements=32, model_origin="center"))
        state.begin(member)
        self._checkpoints = HubCheckpoints(cast(ControlServer, None), state, self._center)

    async def _center(self) -> Float32Array:
        return self.values

    def take(self) -> bool:
        return asyncio.run(self._checkpoints.take())


def alter(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)


def test_an_altered_model_is_not_resumed(tmp_path: Path) -> None:
    own = OneCenter(tmp_path / "a")
    assert own.take()
    assert (SavedModel.read(tmp_path / "a").values == own.values).all()
    (file,) = (tmp_path / "a" / FOLDER).glob("*.safetensors")
    alter(file)
    with pytest.raises(CheckpointError, match=f"{file.name}: the file was altered: its SHA-256 differs"):
        SavedModel.read(tmp_path / "a")


def test_altered_tables_are_not_resumed(tmp_path: Path) -> None:
    partial = begin(tmp_path / TABLES)
    files = write_tensors(partial, "dense", {"t": np.ones(50, np.float32)}, {})
    manifest = manifest_of_files(files)
    job = loop_job({}).model_dump(mode="json")
    place = commit(partial, manifest.model_copy(update={"job": job}))
    assert SavedTables.find(tmp_path, verify=True) is not None
    alter(place / files[0].name)
    with pytest.raises(CheckpointError, match="the file was altered"):
        SavedTables.find(tmp_path, verify=True)


def gone(folder: Path, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder.parent)


def a_file_in_its_place(folder: Path, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def full(_: Path, patch: pytest.MonkeyPatch) -> None:
    def mkdir(path: Path, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    patch.setattr(Path, "mkdir", mkdir)


@pytest.mark.parametrize("break_it", [gone, a_file_in_its_place, full])
def test_what_cannot_be_written_is_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    break_it: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    own = OneCenter(tmp_path / "a")
    assert own.take()
    with monkeypatch.context() as patch:
        break_it(tmp_path / "a" / FOLDER, patch)
        assert not own.take()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "no checkpoint was written: " in record.message
    assert str(tmp_path / "a" / FOLDER) in record.message


def test_what_is_not_of_the_checkpoint_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own = OneCenter(tmp_path / "a")
    assert own.take()
    folder = tmp_path / "a" / FOLDER
    (folder / "lost+found").mkdir()
    (folder / "model-new.safetensors").write_text("of somebody else")
    (folder / ".nfs0001").write_text("removed, and still open")
    unlink = Path.unlink

    def busy(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == ".nfs0001":
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", busy)
    own.values = own.values + 1
    assert own.take()
    # The control: what can be removed is.
    (file,) = folder.glob("*.safetensors")
    assert set(os.listdir(folder)) == {file.name, "lost+found", ".nfs0001", "checkpoint.json"}
    assert (SavedModel.read(tmp_path / "a").values == own.values).all()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_model_that_is_not_finite_is_logged_with_what_a_loop_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = OneCenter(tmp_path / "a")
    own.values[3] = np.nan
    assert not own.take()
    (record,) = caplog.records
    assert "tensor w has numbers that are not finite; lower the learning rates" in record.message
    assert "of attached loops" in record.message
