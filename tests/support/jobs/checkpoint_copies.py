"""Copies of a job's checkpoints, and how one of them takes the place of another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint import manifest as manifest_module
from shadowsync.pipeline.checkpoint import run_checkpoints
from shadowsync.pipeline.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    begin,
    commit,
    open_checkpoint,
)


@contextmanager
def kept_checkpoints(folder: Path) -> Iterator[Callable[[], list[Path]]]:
    """Copies every checkpoint of the jobs in this process; yields what returns those there are, in order."""
    commit = manifest_module.commit

    def kept(partial: Path, manifest: CheckpointManifest) -> Path:
        current = commit(partial, manifest)
        shutil.copytree(current, folder / f"copy-{len(found()):03d}")
        return current

    def found() -> list[Path]:
        return sorted(folder.glob("copy-*"))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_checkpoints, "commit", kept)
        yield found


def replace_checkpoint(run: Path, copy: Path) -> None:
    """As a job does, with the files of a checkpoint."""
    unfinished = begin(run)
    for file in copy.iterdir():
        shutil.copy(file, unfinished / file.name)
    (unfinished / MANIFEST_NAME).unlink()
    commit(unfinished, open_checkpoint(copy)[1])
