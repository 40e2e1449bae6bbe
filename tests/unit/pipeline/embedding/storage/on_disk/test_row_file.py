"""A file of records without a name."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.pipeline.embedding.storage.on_disk.row_file import READERS, RowFile
from shadowsync.pipeline.errors import ResourceError

RECORD = np.dtype([("weights", np.float32, (3,)), ("sums", np.float32)])


def records(count: int, first: int = 0) -> Any:
    values = np.zeros(count, RECORD)
    values["weights"] = np.arange(3 * count).reshape(count, 3) + first
    values["sums"] = -values["weights"][:, 0]
    return values


@pytest.mark.parametrize("count", [1, 31, 5000])
def test_what_was_written_is_read(count: int, tmp_path: Path) -> None:
    """Also by many threads, in any order."""
    file = RowFile(tmp_path, 10_000, RECORD)
    rows = np.random.default_rng(1).permutation(10_000)[:count].astype(np.int32)
    assert not file.has(rows).any()
    file.write(rows, records(count))
    assert file.has(rows).all()
    assert file.count == count
    order = np.random.default_rng(2).permutation(count)
    np.testing.assert_array_equal(file.read(rows[order]), records(count)[order])
    file.write(rows[: count // 2], records(count // 2, first=7))
    np.testing.assert_array_equal(file.read(rows[: count // 2]), records(count // 2, first=7))
    assert file.count == count
    assert file.counts.reads == count + count // 2
    assert file.counts.writes == count + count // 2


def test_a_forgotten_record_is_none(tmp_path: Path) -> None:
    file = RowFile(tmp_path, 20, RECORD)
    # Of one byte of the marks.
    file.write(np.arange(8, dtype=np.int32), records(8))
    file.forget(np.array([3, 5, 12], np.int32))
    assert np.flatnonzero(file.has(np.arange(20, dtype=np.int32))).tolist() == [0, 1, 2, 4, 6, 7]
    assert file.count == 6


def test_one_field_is_written(tmp_path: Path) -> None:
    file = RowFile(tmp_path, 20, RECORD)
    rows = np.array([4, 9], np.int32)
    file.write_field("sums", rows, np.array([1.0, 2.0], np.float32))
    found = file.read(rows)
    assert found["sums"].tolist() == [1.0, 2.0]
    assert not found["weights"].any()


def test_it_has_no_name_and_all_its_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, reserve = [], os.posix_fallocate

    def reserved(descriptor: int, start: int, size: int) -> None:
        reserve(descriptor, start, size)
        sizes.append((start, os.fstat(descriptor).st_blocks * 512))

    monkeypatch.setattr(os, "posix_fallocate", reserved)
    file = RowFile(tmp_path, 4_000, RECORD)
    assert not list(tmp_path.iterdir())
    ((start, size),) = sizes
    assert start == 0
    assert size >= 4_000 * RECORD.itemsize
    assert len(file._threads._threads) <= READERS


def test_a_file_system_without_nameless_files_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", refusing)
    file = RowFile(tmp_path, 20, RECORD)
    assert not list(tmp_path.iterdir())
    file.write(np.array([3], np.int32), records(1))
    np.testing.assert_array_equal(file.read(np.array([3], np.int32)), records(1))


def test_a_full_disk_is_said_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ResourceError, match=r"16\.0 kB for rows cannot be reserved in .*: No space left"):
        RowFile(tmp_path, 1000, RECORD)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ResourceError, match="Permission denied") as caught:
        RowFile(tmp_path, 1000, RECORD)
    assert "embedding.folder" in str(caught.value)
