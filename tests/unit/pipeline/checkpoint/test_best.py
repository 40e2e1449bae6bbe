"""The best checkpoint keeps its files when the next one takes the place of the last."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint.best import adopt_best, drop, pin, promote
from shadowsync.pipeline.checkpoint.best_note import BestNote
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.manifest import begin, commit, open_checkpoint
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.checkpoint.saved import best_note_at
from shadowsync.pipeline.errors import CheckpointError, ResourceError
from shadowsync.tests.support.synced import Synced
from shadowsync.tests.support.tables.saved_shards import manifest_of_files

NOTE = BestNote("ne", 0.75, 123, "input")


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume that has no hard links."""

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, f"no links from {source} to {target}")

    monkeypatch.setattr(os, "link", link)


def save(run: Path, value: float) -> Path:
    """A checkpoint full of `value`."""
    partial = begin(run)
    files = write_tensors(partial, "dense", {"t": np.full(50, value, np.float32)}, {})
    return commit(partial, manifest_of_files(files))


def value_of(run: Path, which: str) -> float:
    folder, manifest = open_checkpoint(run, verify=True, which="best" if which == "best" else "last")
    return float(TensorReader(folder, manifest.files).read("t")[0])


@pytest.mark.parametrize("links", [True, False])
def test_the_best_stays(tmp_path: Path, request: pytest.FixtureRequest, links: bool) -> None:
    if not links:
        request.getfixturevalue("no_links")
    with pytest.raises(CheckpointError, match="no best checkpoint was kept"):
        open_checkpoint(tmp_path, which="best") if save(tmp_path, 1.0) else None
    promote(pin(save(tmp_path, 2.0)), NOTE)
    assert (
        os.path.samefile(tmp_path / "checkpoint" / "manifest.json", tmp_path / "best" / "manifest.json")
        is links
    )
    save(tmp_path, 3.0)
    assert (value_of(tmp_path, "last"), value_of(tmp_path, "best")) == (3.0, 2.0)
    # One that is not the best is dropped, and its checkpoint is still whole.
    drop(pin(tmp_path / "checkpoint"))
    assert (value_of(tmp_path, "last"), value_of(tmp_path, "best")) == (3.0, 2.0)
    promote(pin(tmp_path / "checkpoint"), NOTE)
    assert value_of(tmp_path, "best") == 3.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "checkpoint"]


def test_what_an_earlier_one_left_is_replaced(tmp_path: Path) -> None:
    pin(save(tmp_path, 1.0))
    candidate = pin(save(tmp_path, 2.0))
    promote(candidate, NOTE)
    assert value_of(tmp_path, "best") == 2.0


def test_a_run_that_goes_on_begins_with_the_best_of_the_one_before(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    promote(pin(save(old, 1.0)), NOTE)
    new.mkdir()
    assert adopt_best(old, new, lambda note: note != NOTE) is None
    assert list(new.iterdir()) == []
    assert adopt_best(old, new, lambda note: note == NOTE) == NOTE
    assert value_of(new, "best") == 1.0
    promote(pin(save(new, 2.0)), BestNote("ne", 0.5, 456, "input"))
    assert (value_of(new, "best"), value_of(old, "best")) == (2.0, 1.0)
    (old / "best" / "validation.json").write_text("{")
    assert adopt_best(old, tmp_path, lambda _: True) is None


def between_the_renames(run: Path) -> None:
    """Leave the run as a process does that is killed while a better checkpoint is put in place."""
    promote(pin(save(run, 1.0)), NOTE)
    save(run, 2.0)
    (run / "best").rename(run / "best.old")


def test_the_best_is_found_between_the_two_renames(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    between_the_renames(old)
    for which in ("auto", "best"):
        assert open_checkpoint(old, which=which)[0] == old / "best.old"
    assert best_note_at(old) == NOTE
    new.mkdir()
    assert adopt_best(old, new, lambda note: note == NOTE) == NOTE
    assert value_of(new, "best") == 1.0
    # The controls: the last one is another, and without a best one "auto" is that.
    assert value_of(old, "last") == 2.0
    shutil.rmtree(old / "best.old")
    assert open_checkpoint(old, which="auto")[0] == old / "checkpoint"
    assert best_note_at(old) is None


@pytest.mark.parametrize("which", ["auto", "best"])
def test_the_better_one_comes_while_the_best_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    between_the_renames(tmp_path)
    is_file = Path.is_file

    def replaced_before_it_is_found(path: Path) -> bool:
        if path.parent.name == "best.old" and is_file(path):
            promote(pin(tmp_path / "checkpoint"), NOTE)
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", replaced_before_it_is_found)
    assert open_checkpoint(tmp_path, which=which)[0] == tmp_path / "best"
    assert not (tmp_path / "best.old").exists()


@pytest.mark.usefixtures("no_links")
def test_a_full_volume_without_links_leaves_no_part_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, copy = save(tmp_path, 1.0), shutil.copyfile
    copied: list[Path] = []

    def full(source: Path, target: Path) -> None:
        if copied:
            raise OSError(errno.ENOSPC, "no space left on device")
        copied.append(copy(source, target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ResourceError, match="no space left"):
        pin(checkpoint)
    # The control: a file was there already.
    assert copied == [tmp_path / "best.candidate-0" / "dense-00000.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@pytest.mark.usefixtures("no_links")
def test_a_copy_is_synced_before_the_old_best_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save(tmp_path, 1.0)
    synced = Synced(monkeypatch)
    assert all(synced.has(path) for path in pin(checkpoint).iterdir())
