"""Tensor files: what goes in comes out, in bounded files, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file
from shadowsync.pipeline.atomic_file import atomic_file
from shadowsync.pipeline.checkpoint.files import TYPES, FileEntry, write_tensors
from shadowsync.pipeline.checkpoint.reader import TensorReader
from shadowsync.pipeline.checkpoint.store import local
from shadowsync.pipeline.errors import CheckpointError, JobFileError, ResourceError

LIMIT_BYTES = 4096


def _tensors() -> dict[str, NDArray[Any]]:
    generator = np.random.default_rng(0)
    return {
        "dense": generator.normal(size=300).astype(np.float32),
        "table/0": generator.normal(size=(700, 5)).astype(np.float32),
        "steps": np.array(7, np.int64),
        "empty": np.zeros((0, 16), np.float32),
        "table/1": generator.integers(0, 9, size=(3, 2, 2)).astype(np.int32),
        "transposed": generator.normal(size=(40, 60)).T,
        "flags": np.array([True, False, True]),
    }


def _assert_equal(first: NDArray[Any], second: NDArray[Any]) -> None:
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    assert np.array_equal(first, second)


def test_tensors_come_back_from_files_of_bounded_size(tmp_path: Path) -> None:
    tensors = _tensors()
    entries = write_tensors(tmp_path, "part", tensors, {"role": "trainer-0"}, LIMIT_BYTES)
    assert len(entries) > 4
    assert [entry.name for entry in entries] == [f"part-{n:05d}.safetensors" for n in range(len(entries))]
    assert sorted(path.name for path in tmp_path.iterdir()) == [entry.name for entry in entries]
    for entry in entries:
        content = (tmp_path / entry.name).read_bytes()
        assert len(content) == entry.bytes <= LIMIT_BYTES
        assert hashlib.sha256(content).hexdigest() == entry.sha256
        assert entry.role == "trainer-0"
    reader = TensorReader(tmp_path, entries)
    assert reader.names == sorted(tensors)
    for name, values in tensors.items():
        assert reader.shape(name) == values.shape
        _assert_equal(reader.read(name), values)
        _assert_equal(TensorReader(tmp_path, reversed(entries)).read(name), values)


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    """The format is written here by hand; the judge of it is the library's own loader."""
    tensors: dict[str, NDArray[Any]] = {
        f"of {name}": np.arange(6).reshape(2, 3).astype(name) for name in TYPES
    }
    tensors['a "quoted" näme'] = np.ones(3, np.float32)
    (entry,) = write_tensors(tmp_path, "all", tensors, {"note": 'of "two"\nlines'})
    loaded = load_file(tmp_path / entry.name)
    assert set(loaded) == set(tensors)
    for name, values in tensors.items():
        _assert_equal(loaded[name], values)
    assert TensorReader(tmp_path, [entry]).metadata == {entry.name: {"note": 'of "two"\nlines'}}
    assert entry.role == "all"


def test_no_tensors_still_keep_the_metadata(tmp_path: Path) -> None:
    entries = write_tensors(tmp_path, "part", {}, {"steps": "12"})
    reader = TensorReader(tmp_path, entries)
    assert reader.names == []
    assert reader.metadata["part-00000.safetensors"] == {"steps": "12"}


def test_the_same_tensors_make_the_same_bytes(tmp_path: Path) -> None:
    first = write_tensors(tmp_path, "part", _tensors(), {"a": "1", "b": "2"}, LIMIT_BYTES)
    assert write_tensors(tmp_path, "part", _tensors(), {"a": "1", "b": "2"}, LIMIT_BYTES) == first


@settings(max_examples=20)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 4)), max_size=6),
    limit=st.integers(600, 5000),
)
def test_any_sizes_fit_any_limit(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int]], limit: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    tensors = {f"t{n}": np.arange(r * c, dtype=np.int32).reshape(r, c) for n, (r, c) in enumerate(shapes)}
    entries = write_tensors(folder, "part", tensors, {}, limit)
    assert all(entry.bytes <= limit for entry in entries)
    reader = TensorReader(folder, entries)
    for name, values in tensors.items():
        _assert_equal(reader.read(name), values)


def test_any_rows_of_a_split_tensor(tmp_path: Path) -> None:
    table = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    entries = write_tensors(tmp_path, "part", {"table": table}, {}, LIMIT_BYTES)
    reader = TensorReader(tmp_path, entries)
    for start, stop in [(0, 1000), (0, 1), (999, 1000), (100, 700), (230, 231), (500, 500), (1000, 1000)]:
        _assert_equal(reader.read_rows("table", start, stop), table[start:stop])
    for start, stop in [(0, 1001), (-1, 5), (6, 5)]:
        with pytest.raises(ValueError, match="has no rows"):
            reader.read_rows("table", start, stop)


def test_only_the_files_of_the_rows_asked_for_are_read(tmp_path: Path) -> None:
    table = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    entries = write_tensors(tmp_path, "part", {"table": table}, {}, LIMIT_BYTES)
    reader = TensorReader(tmp_path, entries)
    (tmp_path / entries[-1].name).unlink()
    _assert_equal(reader.read_rows("table", 0, 10), table[:10])
    with pytest.raises(CheckpointError, match=entries[-1].name):
        reader.read("table")


class Table:
    """A view of numbers of which no array has all; says how many bytes were made an array at once.

    Its form in memory is another than that in the file, as that of rows of bfloat16.
    """

    dtype = np.dtype(np.float32)
    itemsize = 4
    ndim = 2

    def __init__(self, first: int, rows: int, taken_bytes: list[int]) -> None:
        self._first, self.taken_bytes = first, taken_bytes
        self.shape = (rows, 256)
        self.nbytes = rows * 1024

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Table:
        start, stop, _ = rows.indices(len(self))
        return Table(self._first + start, stop - start, self.taken_bytes)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self.taken_bytes.append(self.nbytes)
        first = self._first * 256
        return np.arange(first, first + len(self) * 256, dtype=np.float32).reshape(self.shape)


@pytest.mark.parametrize("kind", ["array", "view"])
def test_writing_takes_a_few_megabytes_however_large_a_tensor_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Counted where it is written; the control is a tensor that fits one piece."""
    written: list[int] = []

    class Counting:
        def __init__(self, file: BinaryIO) -> None:
            self._file = file

        def write(self, piece: bytes) -> int:
            written.append(len(piece))
            return self._file.write(piece)

    @contextmanager
    def counted(path: Path) -> Iterator[Counting]:
        with atomic_file(path) as file:
            yield Counting(file)

    monkeypatch.setattr(local, "atomic_file", counted)
    for rows in (4 << 10, 64 << 10):
        table = Table(0, rows, [])
        written.clear()
        tensor = table if kind == "view" else np.asarray(table)
        table.taken_bytes.clear()
        (entry,) = write_tensors(tmp_path, "part", {"large": tensor}, {})
        assert sum(written) == entry.bytes > rows << 10
        assert max([*written, *table.taken_bytes]) == 4 << 20
    assert len(written) == 1 + (64 << 20) // (4 << 20)
    _assert_equal(TensorReader(tmp_path, [entry]).read("large"), np.asarray(Table(0, 64 << 10, [])))


def _full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Lets `after` fsyncs succeed; the disk is full from then on."""
    done = 0
    real = os.fsync

    def fsync(descriptor: int) -> None:
        nonlocal done
        done += 1
        if done > after:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_is_named_and_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _full_disk(monkeypatch, after=2)
    with pytest.raises(ResourceError, match=r"part-00001\.safetensors: .*No space left on device"):
        write_tensors(tmp_path, "part", _tensors(), {}, LIMIT_BYTES)
    assert [path.name for path in tmp_path.iterdir()] == ["part-00000.safetensors"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_a_device_that_is_really_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode: real(Path("/dev/full") if mode == "wb" else path, mode)
    )
    with pytest.raises(ResourceError, match=r"part-00000\.safetensors: .*No space left on device"):
        write_tensors(tmp_path, "part", _tensors(), {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 699])
def test_a_number_that_is_not_finite_is_refused_where_it_must_be(
    tmp_path: Path, bad: float, place: int
) -> None:
    tensors = _tensors()
    # Each alone is finite, and their sum is not.
    tensors["dense"][:4] = 3e38
    assert write_tensors(tmp_path, "good", tensors, {}, LIMIT_BYTES, finite=True)
    tensors["table/0"][place, 4] = bad
    assert write_tensors(tmp_path, "any", tensors, {}, LIMIT_BYTES)
    with pytest.raises(JobFileError, match="tensor table/0 has numbers that are not finite"):
        write_tensors(tmp_path, "bad", tensors, {}, LIMIT_BYTES, finite=True)
    assert not list(tmp_path.glob("*.tmp*"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="No such file"):
        write_tensors(tmp_path / "absent", "part", _tensors(), {})


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be stored"):
        write_tensors(tmp_path, "part", {"words": np.array(["a"])}, {})
    with pytest.raises(ValueError, match="cannot be stored"):
        write_tensors(tmp_path, "part", {"swapped": np.zeros(2, ">f4")}, {})
    with pytest.raises(ValueError, match="cannot be called"):
        write_tensors(tmp_path, "part", {"__metadata__": np.zeros(2)}, {})
    with pytest.raises(ValueError, match="is taken"):
        write_tensors(tmp_path, "part", {}, {"shadowsync.rows": "{}"})
    with pytest.raises(ValueError, match="does not fit the limit"):
        write_tensors(tmp_path, "part", {"wide": np.zeros((2, 5000))}, {}, LIMIT_BYTES)
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    entries = write_tensors(tmp_path, "part", {"a": np.zeros(3)}, {})
    with pytest.raises(CheckpointError, match="no tensor b"):
        TensorReader(tmp_path, entries).read("b")


def test_a_truncated_or_missing_file_is_named(tmp_path: Path) -> None:
    entries = write_tensors(tmp_path, "part", _tensors(), {}, LIMIT_BYTES)
    path = tmp_path / entries[1].name
    content = path.read_bytes()
    for kept in (0, 4, 100, len(content) - 1):
        path.write_bytes(content[:kept])
        with pytest.raises(CheckpointError, match=rf"{entries[1].name}: the file cannot be read"):
            TensorReader(tmp_path, entries)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{entries[1].name}: the file is missing"):
        TensorReader(tmp_path, entries)


def test_parts_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    table = np.arange(4000, dtype=np.float32).reshape(1000, 4)
    entries = write_tensors(tmp_path, "part", {"table": table}, {}, LIMIT_BYTES)
    for chosen in ([*entries[:1], *entries[2:]], [*entries, entries[0]], entries[1:]):
        with pytest.raises(CheckpointError, match="parts of tensor table do not fit together"):
            TensorReader(tmp_path, chosen)
    whole = write_tensors(tmp_path, "twice", {"table": table}, {})
    with pytest.raises(CheckpointError, match="do not fit together"):
        TensorReader(tmp_path, whole + whole)


@pytest.mark.parametrize("name", ["../a", "a/b", "/a", "..", "", "a\n", ".hidden"])
def test_an_entry_has_a_bare_name(name: str) -> None:
    with pytest.raises(ValueError, match="bare name"):
        FileEntry(name, 1, "0" * 64, "role")


def test_an_entry_has_a_size_and_a_checksum() -> None:
    with pytest.raises(ValueError, match="SHA-256"):
        FileEntry("a", 1, "0" * 63, "role")
    with pytest.raises(ValueError, match="size"):
        FileEntry("a", -1, "0" * 64, "role")


def test_pieces_of_a_tensor_that_others_write_come_together(tmp_path: Path) -> None:
    table = np.arange(900 * 5, dtype=np.float32).reshape(900, 5)
    entries = []
    for number, (start, stop) in enumerate(((0, 40), (40, 740), (740, 900))):
        # The second piece is larger than a file may be.
        tensors = {"table": table[start:stop], f"own:{number}": np.array([number])}
        stem, metadata = f"node-{number}", {"role": "node"}
        first = {"table": start}
        entries += write_tensors(tmp_path, stem, tensors, metadata, LIMIT_BYTES, first_rows=first)
    assert len(entries) > 5
    reader = TensorReader(tmp_path, entries)
    _assert_equal(reader.read("table"), table)
    _assert_equal(reader.read_rows("table", 30, 745), table[30:745])
    _assert_equal(reader.read("own:1"), np.array([1]))
    missing = [entry for entry in entries if entry.name != "node-1-00000.safetensors"]
    with pytest.raises(CheckpointError, match="the parts of tensor table do not fit together"):
        TensorReader(tmp_path, missing)


def test_a_tensor_is_read_without_the_header_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of many tables would otherwise take the square of their number."""
    tensors = {f"t{number}": np.arange(6, dtype=np.float32).reshape(3, 2) + number for number in range(40)}
    tensors |= {"one": np.array(7.0), "none": np.empty((0, 4), np.int64)}
    entries = write_tensors(tmp_path, "dense", tensors, {})
    reader = TensorReader(tmp_path, entries)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the header is read again")

    monkeypatch.setattr("shadowsync.pipeline.checkpoint.reader.safe_open", refuse)
    for name, values in tensors.items():
        read = reader.read(name)
        assert np.array_equal(read, values)
        assert (read.shape, read.dtype) == (values.shape, values.dtype)
    assert np.array_equal(reader.read_rows("t3", 1, 3), tensors["t3"][1:])
    with pytest.raises(AssertionError, match="read again"):
        TensorReader(tmp_path, entries)
