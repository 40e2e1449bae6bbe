"""Input by URL: the same spans and examples as from a file of this machine."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.files.paths import is_url, match_files, suffix_of
from shadowsync.pipeline.data.schema import Examples
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import HEADER, assert_same_examples, read_all, schema_job
from shadowsync.tests.support.outside.http_files import http_files

ROWS = 3000


def _text() -> bytes:
    lines = [f"{at % 6},{at},user {at % 97},{'|'.join('abc'[: at % 4])},{at},1" for at in range(ROWS)]
    return "".join(f"{line}\n" for line in (HEADER, *lines)).encode()


def _parquet(path: Path) -> bytes:
    columns = {
        "y": pa.array([at % 6 for at in range(ROWS)]),
        "age": pa.array(range(ROWS)),
        "user": pa.array([f"user {at % 97}" for at in range(ROWS)]),
        "tags": pa.array([list("abc"[: at % 4]) for at in range(ROWS)]),
        "at": pa.array(range(ROWS)),
        "w": pa.array([1] * ROWS),
    }
    pq.write_table(pa.table(columns), path, row_group_size=1000)
    return path.read_bytes()


@pytest.fixture
def local(tmp_path: Path) -> Examples:
    path = tmp_path / "local.csv"
    path.write_bytes(_text())
    found = read_all(schema_job(path))
    assert len(found) == ROWS
    return found


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """fsspec's file system in this process's memory."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def test_byte_ranges_from_memory(memory: fsspec.AbstractFileSystem, local: Examples) -> None:
    memory.pipe("/in/a.csv", _text())
    job = schema_job("memory://in/*.csv", span_bytes=1 << 16)
    spans = JobInput(job).plan(job.data.path)
    assert len(spans) > 1
    assert {span.kind for span in spans} == {"bytes"}
    assert {span.path for span in spans} == {"memory:///in/a.csv"}
    assert_same_examples(read_all(job), local)


@pytest.mark.parametrize("name", ["a.csv.gz", "a.parquet"])
def test_whole_files_from_memory(
    memory: fsspec.AbstractFileSystem, local: Examples, tmp_path: Path, name: str
) -> None:
    parquet = name.endswith("parquet")
    memory.pipe(f"/in/{name}", _parquet(tmp_path / "x") if parquet else gzip.compress(_text()))
    assert_same_examples(read_all(schema_job(f"memory://in/{name}", "parquet" if parquet else "csv")), local)


def test_criteos_text_from_memory(memory: fsspec.AbstractFileSystem, log: Path) -> None:
    memory.pipe("/in/log.tsv", log.read_bytes())
    shape = {"dense_features": 2, "categorical_features": 3}
    here = read_all(schema_job(log, "criteo_tsv", {}, **shape))
    there = read_all(schema_job("memory://in/log.tsv", "criteo_tsv", {}, **shape))
    assert_same_examples(there, here)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_http(local: Examples, name: str, ranges: bool) -> None:
    """A server that serves no ranges has each file read as one stream."""
    content = _text() if name == "a.csv" else gzip.compress(_text())
    with http_files({name: content}, ranges=ranges) as url:
        job = schema_job(f"{url}/{name}", span_bytes=1 << 16)
        kinds = {span.kind for span in JobInput(job).plan(job.data.path)}
        assert kinds == ({"bytes"} if ranges and name == "a.csv" else {"stream"})
        assert_same_examples(read_all(job), local)


def test_a_large_file_from_a_server_without_ranges() -> None:
    """fsspec reads ahead by 5 MB, and for what follows it would need a range."""
    line = f"5,1,{'u' * 60_000},a,1,1\n"
    content = f"{HEADER}\n{line * 200}".encode()
    with http_files({"a.csv": content}, ranges=False) as url:
        assert len(read_all(schema_job(f"{url}/a.csv"))) == 200


def test_parquet_by_http(local: Examples, tmp_path: Path) -> None:
    with http_files({"a.parquet": _parquet(tmp_path / "x")}, ranges=True) as url:
        assert_same_examples(read_all(schema_job(f"{url}/a.parquet", "parquet")), local)


def test_patterns_by_http() -> None:
    with http_files({"a.csv": b"", "b.csv": b"", "c.txt": b""}, ranges=True) as url:
        assert match_files([f"{url}/*.csv"]) == [f"{url}/a.csv", f"{url}/b.csv"]
        with pytest.raises(DataError, match=r"/none\.csv: matches no file; check the path"):
            match_files([f"{url}/none.csv"])


def test_a_server_that_goes_away_is_told() -> None:
    with http_files({"a.csv": _text()}, ranges=True) as url:
        job = schema_job(f"{url}/a.csv")
        spans = JobInput(job).plan(job.data.path)
    with pytest.raises(DataError, match=rf"{url}/a\.csv: cannot be read \(.+\); check its path"):
        list(JobInput(job).chunks(spans[0], BadRows(0)))


def test_names() -> None:
    assert [is_url(path) for path in ("s3://a/b", "/a/b", "file:///a", "C1")] == [True, False, False, False]
    assert suffix_of("http://host/a.csv.GZ?token=b.zst") == ".gz"
    assert suffix_of("/a/b.c/d") == ""


def test_file_urls_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    assert match_files([f"file://{tmp_path}/*.csv"]) == [f"{tmp_path}/a.csv"]


def test_patterns_in_memory(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/in/b.csv", b"x")
    memory.pipe("/in/a.csv", b"x")
    assert match_files(["memory://in/*.csv", "memory:///in/a.csv"]) == [
        "memory:///in/a.csv",
        "memory:///in/b.csv",
    ]
    for pattern in ("memory://in/c*", "memory://none.csv"):
        with pytest.raises(DataError, match=r"matches no file; check the path or pattern"):
            match_files([pattern])
    with pytest.raises(DataError, match=r"is a folder; name its files"):
        match_files(["memory://in"])


def test_a_file_system_that_there_is_not() -> None:
    with pytest.raises(
        DataError, match=r"nosuch://a: the file system of this URL cannot be used \(.*nosuch.*\); install the"
    ):
        match_files(["nosuch://a"])
