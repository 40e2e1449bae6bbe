"""A schema that does not fit a file is told, with the column and what is in it, before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import COLUMNS, HEADER, read_all, schema_job, write_lines

GOOD = "5,30,ann,a|b,8,1"


def _refused(path: Path, data_format: str = "csv", columns: dict[str, Any] = COLUMNS, **data: Any) -> str:
    job = schema_job(path, data_format, columns, **data)
    with pytest.raises(DataError) as caught:
        JobInput(job).plan(job.data.path)
    said = str(caught.value)
    assert said.startswith(str(path))
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            ["5,abc,u,,8,1", "5,x,u,,8,1", "5,?,u,,8,1", "5,zzz,u,,8,1", GOOD],
            "column age: 'abc', 'x', '?' are not numeric; change its kind or options in [data.columns]",
        ),
        (["yes,1,u,,8,1", "no,1,u,,8,1", "yes,1,u,,8,1"], "column y: 'yes', 'no' are not numeric; change"),
        (["5,1,u,,soon,1"], "column at: 'soon' are not in seconds or ISO 8601; state"),
        (["5,1,u,,8,-1"], "column w: '-1' are below 0 or not numeric; change"),
        (
            ["5;30;ann;a;8;1", "5;30;ann;a;8;1"],
            "2 of its first 2 lines do not fit; the first has 1 columns, not 6: 5;30",
        ),
        (["5,1,u,,8,1,2"], "1 of its first 1 lines do not fit; the first has 7 columns, not 6: 5,1,u,,8,1,2"),
        ([], "has no rows; leave it out, or fill it"),
    ],
)
def test_text_that_does_not_fit(tmp_path: Path, lines: list[str], said: str) -> None:
    assert _refused(write_lines(tmp_path / "log.csv", *lines)).startswith(said)


def test_text_that_does_not_fit_and_is_no_utf8(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", "5,N,u,,8,1")
    path.write_bytes(path.read_bytes().replace(b"N", b"\xe9"))
    assert "the first has text in column age that is not UTF-8" in _refused(path)


def test_fewer_that_do_not_fit_are_bad_rows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", GOOD, GOOD, "5,abc,u,,8,1", "5,1")
    assert JobInput(schema_job(path)).plan([str(path)])


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            HEADER.replace("age", "ages"),
            "its header has no column 'age'; did you mean 'ages'?; name the columns",
        ),
        (
            HEADER.replace("age", "n"),
            "its header has no column 'age'; there are y, n, user, tags, at, w; name",
        ),
        (HEADER + ",age", "its header has column 'age' 2 times; name the columns"),
        (
            GOOD,
            "its header has no column 'y'; there are 5, 30, ann, a|b, 8, 1; name the columns of",
        ),
        ('y,"age', 'the header has quotes that do not match: y,"age'),
    ],
)
def test_a_header_that_does_not_match(tmp_path: Path, header: str, said: str) -> None:
    assert _refused(write_lines(tmp_path / "log.csv", GOOD, header=header)).startswith(said)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("")
    assert _refused(tmp_path / "log.csv").startswith("is empty; ")


def _parquet(path: Path, **changes: pa.Array) -> Path:
    columns = {
        name: pa.array([value]) for name, value in zip(COLUMNS, (5, 30, "ann", "a", 8, 1), strict=True)
    }
    columns |= changes
    pq.write_table(pa.table({name: column for name, column in columns.items() if column is not None}), path)
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": pa.array(["x"])}, "column age: 'x' are not numeric; change its kind"),
        ({"age": pa.array([[1]])}, "column age has type list<element: int64>; age needs numbers"),
        (
            {"tags": pa.array([7])},
            "column tags has type int64; tags needs lists of texts or integers, or delimited",
        ),
        (
            {"user": pa.array([7.5])},
            "column user has type double; user needs texts or integers; convert them to texts, or",
        ),
        (
            {"at": pa.array([[1]])},
            "column at has type list<element: int64>; at needs times, dates, numbers or texts",
        ),
        ({"age": None, "ages": pa.array([1])}, "has no column 'age'; did you mean 'ages'?"),
    ],
)
def test_parquet_that_does_not_fit(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert _refused(_parquet(tmp_path / "log.parquet", **changes), "parquet").startswith(said)


def test_parquet_that_fits(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "log.parquet", tags=pa.array([["a"]]), user=pa.array([7]))
    assert JobInput(schema_job(path, "parquet")).plan([str(path)])
    for kind in (pa.null(), pa.list_(pa.null())):
        _parquet(path, tags=pa.nulls(1, kind))
        job = schema_job(path, "parquet")
        assert read_all(job).bags.lengths.tolist() == [[0]]


def test_an_expression_that_cannot_be_used(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", GOOD)
    columns = COLUMNS | {"y": {"kind": "label", "expression": "y > avg(y)"}}
    with pytest.raises(JobFileError, match=r"data\.columns\.y\.expression: .* has the word 'avg'"):
        JobInput(schema_job(path, columns=columns))
