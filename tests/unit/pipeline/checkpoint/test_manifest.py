"""A checkpoint is the old one or the new one, never something between, and never something altered."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.checkpoint import manifest as manifest_module
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.checkpoint.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    CheckpointManifest,
    abandon,
    begin,
    commit,
    manifest_content,
    open_checkpoint,
    read_checkpoint,
)
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.errors import CheckpointError, ResourceError
from shadowsync.tests.support.jobs.processes import wait_until


def _written(folder: Path, value: float, files: int = 3) -> CheckpointManifest:
    """Tensors full of `value` in `folder`, and the manifest for them."""
    tensors = {f"t{number}": np.full(200, value, np.float32) for number in range(files)}
    return CheckpointManifest(
        created_at="2024-05-01T12:00:00+00:00",
        run="demo",
        job={"trainer": {"lr": 0.1, "count": 2}},
        job_digest="ab" * 32,
        model="the center (easgd)",
        examples_trained=int(value),
        files=write_tensors(folder, "dense", tensors, {}, limit_bytes=1300),
        plan={"shards": [[0, 10], [10, 20]]},
        ledger={"trained": 512, "exceptions": [1, 2]},
    )


def _save(run: Path, value: float) -> Path:
    partial = begin(run)
    return commit(partial, _written(partial, value))


def _value(path: Path) -> float:
    folder, manifest = open_checkpoint(path, verify=True)
    return float(TensorReader(folder, manifest.files).read("t1")[0])


def test_a_checkpoint_comes_back(tmp_path: Path) -> None:
    run = tmp_path / "demo"
    partial = begin(run)
    manifest = _written(partial, 5.0)
    folder = commit(partial, manifest)
    assert folder == run / "checkpoint"
    assert open_checkpoint(run, verify=True) == (folder, manifest)
    assert open_checkpoint(folder, verify=True) == (folder, manifest)
    assert [path.name for path in run.iterdir()] == ["checkpoint"]
    assert _value(run) == 5.0


def test_the_next_one_replaces_it(tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        _save(tmp_path, value)
        assert _value(tmp_path) == value
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_begin_removes_what_an_interrupted_one_left(tmp_path: Path) -> None:
    _save(tmp_path, 1.0)
    late = begin(tmp_path)
    _written(late, 2.0)
    partial = begin(tmp_path)
    assert list(partial.iterdir()) == []
    # Whoever is late with its part of the first finds no place for it.
    assert not late.exists()
    with pytest.raises(ResourceError):
        _written(late, 2.0)
    assert list(partial.iterdir()) == []
    assert _value(tmp_path) == 1.0


def test_an_abandoned_one_that_cannot_be_removed_now_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = begin(tmp_path)
    (partial / MANIFEST_NAME).write_text("{}")

    def refused(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        patch.setattr(Path, "unlink", refused)
        patch.setattr(os, "unlink", refused)
        abandon(partial)
    assert partial.exists()
    begin(tmp_path)
    assert not partial.exists()


def test_commit_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    partial = begin(tmp_path)
    manifest = _written(partial, 1.0)
    (partial / "dense-00009.safetensors.unfinished-77").write_bytes(b"half")
    folder = commit(partial, manifest)
    assert {path.name for path in folder.iterdir()} == {e.name for e in manifest.files} | {"manifest.json"}


class _KilledError(BaseException):
    """Stands for SIGKILL: nothing that handles errors may catch it."""


@pytest.mark.parametrize("survived", range(3))
def test_killed_between_any_two_renames_a_whole_checkpoint_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The renames of a commit: the old folder away, the new one in; then the old one is removed."""
    _save(tmp_path, 1.0)
    partial = begin(tmp_path)
    manifest = _written(partial, 2.0)
    calls = 0

    def killed_after(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal calls
            if calls == survived:
                raise _KilledError
            calls += 1
            return real(*given, **named)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed_after(Path.rename))
        patch.setattr(shutil, "rmtree", killed_after(shutil.rmtree))
        with pytest.raises(_KilledError):
            commit(partial, manifest)
    expected = 2.0 if survived == 2 else 1.0
    assert _value(tmp_path) == expected
    assert _value(tmp_path / "checkpoint") == expected
    # And the run goes on from there.
    begin(tmp_path)
    assert _value(tmp_path) == expected
    _save(tmp_path, 3.0)
    assert _value(tmp_path) == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_the_old_one_vanishes_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader finds the old checkpoint between the two renames, and the writer removes it just then."""
    _save(tmp_path, 1.0)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old")
    is_file = Path.is_file

    def replaced_once_found(path: Path) -> bool:
        found = is_file(path)
        if found and path.parent.name == "checkpoint.old":
            _save(tmp_path, 2.0)
        return found

    monkeypatch.setattr(Path, "is_file", replaced_once_found)
    assert _value(tmp_path) == 2.0


@pytest.mark.parametrize("times", [1, 7, 8])
def test_what_is_read_is_of_one_checkpoint(tmp_path: Path, times: int) -> None:
    """A job replaces the checkpoint between two tensors that are read of it."""
    _save(tmp_path, 1.0)
    found = list[tuple[float, float]]()

    def read(folder: Path, manifest: CheckpointManifest) -> tuple[float, float]:
        reader = TensorReader(folder, manifest.files)
        first = float(reader.read("t0")[0])
        if len(found) < times:
            _save(tmp_path, first + 1.0)
        found.append((first, float(reader.read("t2")[0])))
        return found[-1]

    if times == 8:
        with pytest.raises(CheckpointError, match="replaced 8 times while it was being read"):
            read_checkpoint(tmp_path, read)
    else:
        assert read_checkpoint(tmp_path, read) == (times + 1.0, times + 1.0)
    assert found[0] == (1.0, 2.0), "the control: the first reading was of two"


def test_a_disk_full_at_the_manifest_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1.0)
    partial = begin(tmp_path)
    manifest = _written(partial, 2.0)

    def replace(path: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, f"no space for {path.name} or {target.name}")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(ResourceError, match=r"manifest\.json: cannot be written"):
            commit(partial, manifest)
    assert _value(tmp_path) == 1.0


def test_commit_refuses_files_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    _save(tmp_path, 1.0)
    partial = begin(tmp_path)
    manifest = _written(partial, 2.0)
    path = partial / manifest.files[1].name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="its manifest states"):
        commit(partial, manifest)
    path.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        commit(partial, manifest)
    assert _value(tmp_path) == 1.0


def test_commit_refuses_a_manifest_that_could_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(tmp_path, 1.0)
    partial = begin(tmp_path)
    manifest = _written(partial, 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(manifest_module, "MANIFEST_LIMIT_BYTES", len(manifest_content(manifest)) - 1)
        with pytest.raises(CheckpointError, match=r"its manifest would have [\d,]+ bytes"):
            commit(partial, manifest)
    assert _value(tmp_path) == 1.0


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = _save(tmp_path, 1.0) / "dense-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"dense-00001\.safetensors: the file has \d+ bytes"):
        open_checkpoint(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (_save(tmp_path, 1.0) / "dense-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"dense-00002\.safetensors: the file is missing"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("place", [0, 50, -1])
def test_an_altered_byte_is_found(tmp_path: Path, place: int) -> None:
    path = _save(tmp_path, 1.0) / "dense-00000.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"dense-00000\.safetensors: the file was altered"):
        open_checkpoint(tmp_path, verify=True)


def _edit(run: Path, **changes: Any) -> None:
    path = run / "checkpoint" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_altered_manifest_is_found(tmp_path: Path) -> None:
    _save(tmp_path, 1.0)
    _edit(tmp_path)
    open_checkpoint(tmp_path)
    _edit(tmp_path, examples_trained=10**9)
    with pytest.raises(CheckpointError, match="the manifest was altered"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_told_before_anything_else(tmp_path: Path, version: int) -> None:
    _save(tmp_path, 1.0)
    _edit(tmp_path, format_version=version, files="in another way")
    reported = (
        f"has format {version}, this program reads format {FORMAT_VERSION}; use the shadowsync that wrote"
    )
    with pytest.raises(CheckpointError, match=reported):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_manifest_that_is_none_is_named(tmp_path: Path, content: bytes) -> None:
    (_save(tmp_path, 1.0) / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json: the manifest") as caught:
        open_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)


def test_absent_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="there is no such folder"):
        open_checkpoint(tmp_path / "absent")
    begin(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        open_checkpoint(tmp_path)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match=r"checkpoint\.partial: cannot be written"):
        begin(tmp_path / "file")


def test_a_node_that_still_writes_leaves_nothing_of_what_is_abandoned(tmp_path: Path) -> None:
    written: list[int] = []

    def write(partial: Path) -> None:
        with contextlib.suppress(OSError):
            for number in range(1_000_000):
                (partial / f"late-{number}").write_bytes(b"x")
                written.append(number)

    # Several times: it is a race.
    for _ in range(20):
        partial = begin(tmp_path)
        before = len(written)
        writer = threading.Thread(target=write, args=(partial,))
        writer.start()
        wait_until(lambda enough=before + 20: len(written) > enough, "it writes")  # type: ignore[misc]
        abandon(partial)
        assert not partial.exists(), "nobody can write into it any more"
        writer.join(60.0)
        assert not writer.is_alive()
    # A file that was being made just then is left for the next one to remove.
    abandon(begin(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_which_checkpoint_it_is_can_be_told(tmp_path: Path) -> None:
    _save(tmp_path, 1.0)
    first = open_checkpoint(tmp_path)[1].digest
    assert open_checkpoint(tmp_path)[1].digest == first
    assert first == json.loads((tmp_path / "checkpoint" / "manifest.json").read_text())["sha256"]
    _save(tmp_path, 2.0)
    assert open_checkpoint(tmp_path)[1].digest != first


def test_without_a_checkpoint_a_run_names_the_one_that_it_resumed(tmp_path: Path) -> None:
    job: dict[str, Any] = {"start": {"resume": True, "checkpoint": "/runs/before"}}
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    with pytest.raises(CheckpointError, match="had resumed /runs/before: give that"):
        open_checkpoint(tmp_path)
    job["start"]["resume"] = False
    (tmp_path / "job.json").write_text(json.dumps(job), encoding="utf-8")
    with pytest.raises(CheckpointError, match="there is no checkpoint; give the folder of a run that has"):
        open_checkpoint(tmp_path)
