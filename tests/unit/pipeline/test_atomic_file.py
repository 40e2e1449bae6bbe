"""Files that appear completely or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from shadowsync.pipeline import atomic_file as atomic
from shadowsync.pipeline.atomic_file import atomic_file
from shadowsync.pipeline.errors import ResourceError


def test_who_waited_for_a_file_may_remove_it_with_its_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At once: a supervisor does, with the address that its coordinator has written."""
    read: list[str] = []
    replace = Path.replace

    def replace_and_read(source: Path, target: Path) -> Path:
        there = replace(source, target)
        read.append(target.read_text())
        shutil.rmtree(target.parent)
        return there

    monkeypatch.setattr(Path, "replace", replace_and_read)
    folder = tmp_path / "scratch"
    folder.mkdir()
    with atomic_file(folder / "address.json") as file:
        file.write(b"{}")
    assert read == ["{}"]
    assert not folder.exists()


def test_names_that_cannot_be_kept_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The control: another error there is one."""

    def failing(_: Path) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(atomic, "sync_directory", failing)
    with (
        pytest.raises(ResourceError, match=r"address\.json: cannot be written"),
        atomic_file(tmp_path / "address.json") as file,
    ):
        file.write(b"{}")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "address.json"
    with pytest.raises(ResourceError, match="No such file"), atomic_file(path) as file:
        file.write(b"{}")
