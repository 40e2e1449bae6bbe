"""Files and folders that appear completely or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from shadowsync.pipeline import atomic_file as atomic
from shadowsync.pipeline.atomic_file import atomic_file, atomic_folder
from shadowsync.pipeline.errors import ResourceError
from shadowsync.tests.support.synced import Synced

Opened = Callable[[Path], AbstractContextManager[object]]
BOTH = pytest.mark.parametrize("opened", [atomic_file, atomic_folder])


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


@BOTH
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file/there", r"Not a directory\); remove or move the file or folder that is in its way"),
        ("a" * 300, r"File name too long\); give a shorter path"),
    ],
)
def test_the_remedy_is_one_for_the_path_that_was_given(
    tmp_path: Path, opened: Opened, name: str, says: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match=says), opened(tmp_path / name):
        raise AssertionError("it could not be made")


def test_a_folder_in_the_way_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResourceError, match="remove or move"), atomic_file(tmp_path / "folder"):
        pass
    with (
        pytest.raises(ResourceError, match=r"No such file.*; make the folder"),
        atomic_file(tmp_path / "a/b"),
    ):
        pass


@BOTH
def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, opened: Opened) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(ResourceError, match=r"No space left on device\); free space"),
        opened(tmp_path / "new"),
    ):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_folder_is_on_the_disk_before_it_has_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    synced, rename = Synced(monkeypatch), Path.rename
    before: dict[str, bool] = {}

    def renamed(source: Path, target: Path) -> Path:
        paths = [source, *source.rglob("*")]
        before.update({path.relative_to(source).as_posix(): synced.has(path) for path in paths})
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", renamed)
    with atomic_folder(tmp_path / "export") as folder:
        (folder / "tables").mkdir()
        for name in ("tables/user.parquet", "manifest.json"):
            (folder / name).write_text("{}")
    assert before == dict.fromkeys((".", "tables", "tables/user.parquet", "manifest.json"), True)


def test_two_writers_whose_process_ids_are_the_same_share_no_temporary_name(tmp_path: Path) -> None:
    """As in two containers with a common volume."""
    path = tmp_path / "address.json"
    with atomic_file(path) as late:
        late.write(b"late")
        with atomic_file(path) as early:
            early.write(b"early")
        assert path.read_bytes() == b"early"
    assert path.read_bytes() == b"late"
    folder = tmp_path / "export"
    with pytest.raises(ResourceError, match="not empty"), atomic_folder(folder):  # noqa: SIM117
        with atomic_folder(folder) as first:
            (first / "manifest.json").write_text("{}")
    assert [path.name for path in folder.iterdir()] == ["manifest.json"]
    assert len([*tmp_path.iterdir()]) == 2
