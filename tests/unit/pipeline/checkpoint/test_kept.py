"""The last few checkpoints, by how many examples they have trained."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.manifest import open_checkpoint
from shadowsync.pipeline.checkpoint.run_checkpoints import FolderCheckpoints
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.tables.saved_shards import manifest_of_files


def write(checkpoints: FolderCheckpoints, examples: int) -> None:
    directory = checkpoints.begin()
    manifest = manifest_of_files(write_tensors(Path(directory), "dense", {}, {}))
    checkpoints.commit(directory, manifest.model_copy(update={"examples_trained": examples}))


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def examples_of(run: Path, which: str) -> int:
    return open_checkpoint(run, verify=True, which=which)[1].examples_trained


def test_the_newest_stay_by_their_examples(tmp_path: Path) -> None:
    """Not by their names, of which step-900 is the last; the control keeps one."""
    checkpoints = FolderCheckpoints(tmp_path, 3)
    for examples in (0, 800, 900, 1000, 1100):
        write(checkpoints, examples)
    assert names(tmp_path) == ["checkpoint", "step-1000", "step-1100", "step-900"]
    assert [examples_of(tmp_path, which) for which in ("last", "step-900", "step-1000")] == [1100, 900, 1000]
    assert examples_of(tmp_path / "step-900", "last") == 900
    assert os.path.samefile(tmp_path / "checkpoint/manifest.json", tmp_path / "step-1100/manifest.json")
    write(FolderCheckpoints(tmp_path / "other"), 1)
    assert names(tmp_path / "other") == ["checkpoint"]


def test_what_is_not_kept_is_refused_with_what_is(tmp_path: Path) -> None:
    checkpoints = FolderCheckpoints(tmp_path, 2)
    for examples in (10, 20):
        write(checkpoints, examples)
    for which in ("step-15", "newest", "step-010"):
        with pytest.raises(CheckpointError, match="take one of last, best, step-10, step-20"):
            open_checkpoint(tmp_path, which=which)
    write(FolderCheckpoints(tmp_path / "one"), 10)
    with pytest.raises(CheckpointError, match=r"a job keeps more by run\.keep_checkpoints"):
        open_checkpoint(tmp_path / "one", which="step-10")
    with pytest.raises(CheckpointError, match="there is no checkpoint 'step-1'"):
        open_checkpoint(tmp_path / "absent", which="step-1")


def test_one_that_was_cut_off_is_no_checkpoint_and_goes(tmp_path: Path) -> None:
    """Its process has died between two links, the manifest's the last."""
    checkpoints = FolderCheckpoints(tmp_path, 2)
    write(checkpoints, 10)
    shutil.copytree(tmp_path / "step-10", tmp_path / "step-20")
    (tmp_path / "step-20" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="take one of last, best, step-10"):
        open_checkpoint(tmp_path, which="step-20")
    for examples in (30, 30):
        write(checkpoints, examples)
    assert names(tmp_path) == ["checkpoint", "step-10", "step-30"]


def test_a_full_disk_costs_the_copy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_space(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, f"no space for {source} as {target}")

    checkpoints = FolderCheckpoints(tmp_path, 2)
    write(checkpoints, 10)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "link", no_space)
        patch.setattr(shutil, "copyfile", no_space)
        write(checkpoints, 20)
    assert "stays only until the next one" in caplog.text
    assert names(tmp_path) == ["checkpoint", "step-10"]
    assert examples_of(tmp_path, "last") == 20
