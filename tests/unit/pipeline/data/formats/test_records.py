"""Rows of a schema: from text and from Parquet the same, and each bad one told."""

from __future__ import annotations

import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.columns.record_schema import RecordSchema
from shadowsync.pipeline.data.formats.records import read_records
from shadowsync.pipeline.data.schema import Examples, log_transform
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import (
    COLUMNS,
    HEADER,
    assert_same_examples,
    read_all,
    rows_of_ids,
    schema_job,
    write_lines,
)

LINES = ("5,30,ann,a|b,2026-01-01,1", '1,,"b,ob",,86400,0.5', "4,-2.5,,c,1970-01-01T00:00:09,2")


def test_every_kind_of_column(tmp_path: Path) -> None:
    got = read_all(schema_job(write_lines(tmp_path / "log.csv", *LINES)))
    assert got.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(got.dense[:, 0], log_transform(np.array([30, 0, -2.5])))
    assert got.rows.tolist() == [rows_of_ids("user", "ann", "b,ob", "")]
    assert got.weights.tolist() == [1, 0.5, 2]
    assert got.bags.lengths.tolist() == [[2, 0, 1]]
    assert got.bags.rows.tolist() == rows_of_ids("tags", "a", "b", "c")


def test_parquet_gives_the_same(tmp_path: Path) -> None:
    text = read_all(schema_job(write_lines(tmp_path / "log.csv", *LINES)))
    table = pa.table(
        {
            "at": pa.array([datetime(2026, 1, 1), datetime(1970, 1, 2), datetime(1970, 1, 1, 0, 0, 9)]),
            "tags": pa.array([["a", "b"], None, ["c"]]),
            "user": pa.array(["ann", "b,ob", None]).dictionary_encode(),
            "w": pa.array([1, 0.5, 2]),
            "age": pa.array([30, None, -2.5]),
            "y": pa.array([5, 1, 4]),
            "more": pa.array([1, 2, 3]),
        }
    )
    pq.write_table(table, tmp_path / "log.parquet", row_group_size=2)
    assert_same_examples(read_all(schema_job(tmp_path / "log.parquet", "parquet")), text)
    # Texts in Parquet are taken as those of a text file are.
    columns = {
        name: pa.array([line.split(",")[at] for line in (LINES[0], LINES[2])])
        for at, name in enumerate(COLUMNS)
    }
    pq.write_table(pa.table(columns), tmp_path / "text.parquet")
    assert_same_examples(
        read_all(schema_job(tmp_path / "text.parquet", "parquet")), text.take(np.array([0, 2]))
    )


def test_criteos_columns_by_a_schema(log: Path) -> None:
    """The same bytes are the same rows, whichever way they are read."""
    columns = {
        "label": "label",
        "I1": "dense",
        "I2": "dense",
        **dict.fromkeys(("C1", "C2", "C3"), "categorical"),
    }
    criteo = {"dense_features": 2, "categorical_features": 3}
    plain = schema_job(log, "criteo_tsv", {}, **criteo)
    own = schema_job(log, "tsv", columns, header=False)
    assert_same_examples(read_all(own), read_all(plain))
    assert own.tables[0] == plain.tables[0]


def test_columns_are_found_by_the_header(tmp_path: Path) -> None:
    want = read_all(schema_job(write_lines(tmp_path / "log.csv", *LINES)))
    order = [5, 3, 1, 0, 4, 2]
    rows = [HEADER.split(","), *(["4", "-2.5", "", "c", "9", "2"], ["5", "30", "ann", "a|b", "8", "1"])]
    lines = [";".join([*(row[at] for at in order), "more"]) for row in rows]
    path = write_lines(tmp_path / "other.csv", *lines[1:], header=lines[0])
    assert_same_examples(read_all(schema_job(path, delimiter=";")), want.take(np.array([2, 0])))


def test_a_header_in_every_file_and_compressed(tmp_path: Path) -> None:
    want = read_all(schema_job(write_lines(tmp_path / "log.csv", *LINES)))
    for at, lines in enumerate((LINES[:2], LINES[2:])):
        text = "".join(f"{line}\n" for line in (HEADER, *lines))
        (tmp_path / f"part-{at}.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert_same_examples(read_all(schema_job(tmp_path / "part-*.csv.gz")), want)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_spans_and_blocks_change_nothing(tmp_path: Path, end: str) -> None:
    rng = np.random.default_rng(1)
    tags = ["", "a", "a|b"]
    lines = [
        f'{rng.integers(6)},{rng.integers(100)},"u,{rng.integers(50)}",{tags[rng.integers(3)]},{at},1'
        for at in range(4000)
    ]
    lines[7] = "5,x,,,1,1"
    path = tmp_path / "log.csv"
    path.write_bytes("".join(f"{line}{end}" for line in (HEADER, *lines)).encode())
    want = read_all(schema_job(path), BadRows(1))
    assert len(want) == 3999
    bad = BadRows(1)
    job = schema_job(path, span_bytes=1 << 16)
    assert len(JobInput(job).plan(job.data.path)) > 1
    assert_same_examples(read_all(job, bad), want)
    assert [(row.line, row.why) for row in bad.first] == [(9, "age 'x' is not numeric")]
    # The bad line is among the first; a block is of a few lines only.
    start = tmp_path / "start.csv"
    start.write_bytes("".join(f"{line}{end}" for line in (HEADER, *lines[:500])).encode())
    schema = RecordSchema(job.data, job.column_rows)
    (span,) = JobInput(schema_job(start)).plan([str(start)])
    for block_bytes in (100, 1000):
        chunks = [chunk.examples for chunk in read_records(span, schema, BadRows(1), block_bytes)]
        assert len(chunks) > 5
        assert_same_examples(Examples.join(chunks), want.take(np.arange(499)))


BAD = [
    ("x,1,u,,1,1", "y 'x' is not numeric"),
    (",1,u,,1,1", "y '' is not numeric"),
    ("5,1e,u,,1,1", "age '1e' is not numeric"),
    ("5,nan,u,,1,1", "age 'nan' is not numeric"),
    ("5,1,u,,soon,1", "at 'soon' is not in seconds or ISO 8601"),
    ("5,1,u,,9x,1", "at '9x' is not in seconds or ISO 8601"),
    ("5,1,u,,1,-1", "w '-1' is below 0 or not numeric"),
    ("5,1,u,,1,inf", "w 'inf' is below 0 or not numeric"),
    ("5,1,u,,1,", "w '' is below 0 or not numeric"),
    ("5,1,u,,1,3e38", "w '3e38' is above 1e+30"),
    ("5,1,u,,1", "5 columns, not 6"),
    ('5,1,"u,,1,1', "quotes that do not match"),
]


@pytest.mark.parametrize(("line", "why"), BAD)
def test_bad_lines(tmp_path: Path, line: str, why: str) -> None:
    path = write_lines(tmp_path / "log.csv", *LINES, "", line, *LINES)
    bad = BadRows(1)
    got = read_all(schema_job(path), bad)
    assert len(got) == 6
    assert [(row.path, row.line, row.why, row.text) for row in bad.first] == [(str(path), 6, why, line)]
    with pytest.raises(
        DataError, match=r"1 malformed row, more than data.max_bad_rows = \d+; the first is .*log\.csv:6: "
    ):
        read_all(schema_job(path))


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        ("age", [1.0, np.inf, 2.0], "not numeric"),
        ("w", [1.0, -1.0, 2.0], "below 0 or not numeric"),
        ("y", [1.0, None, 2.0], "not numeric"),
    ],
)
def test_bad_rows_of_parquet(tmp_path: Path, column: str, values: list[Any], wanted: str) -> None:
    columns = {
        "y": [1.0] * 3,
        "age": [1.0] * 3,
        "user": ["a"] * 3,
        "tags": ["a"] * 3,
        "at": [1] * 3,
        "w": [1.0] * 3,
    }
    pq.write_table(pa.table(columns | {column: pa.array(values)}), tmp_path / "log.parquet")
    bad = BadRows(1)
    assert len(read_all(schema_job(tmp_path / "log.parquet", "parquet"), bad)) == 2
    assert bad.first[0].line == 2
    assert bad.first[0].why.startswith(f"{column} '")
    assert bad.first[0].why.endswith(wanted)


@pytest.mark.parametrize(
    ("label", "values", "labels"),
    [
        ("label", ["0", "1", "1.0"], [0, 1, 1]),
        ({"kind": "label", "positive": ["yes", "Yes"]}, ["yes", "no", "Yes"], [1, 0, 1]),
        ({"kind": "label", "positive": [1, 2]}, ["1", "2.0", "7"], [1, 1, 0]),
        ({"kind": "label", "expression": "y > 2 and y < 5"}, ["1", "3", "5"], [0, 1, 0]),
        ({"kind": "label", "expression": "y like 'a%'", "type": "text"}, ["ab", "ba", "a"], [1, 0, 1]),
    ],
)
def test_labels(tmp_path: Path, label: Any, values: list[str], labels: list[int]) -> None:
    path = write_lines(tmp_path / "log.csv", *(f"{value},u" for value in values), header="y,x")
    got = read_all(schema_job(path, columns={"y": label, "x": "categorical"}))
    assert got.labels.tolist() == labels


@pytest.mark.parametrize("transform", ["none", "time", "log"])
def test_a_number_that_float32_has_not_is_a_bad_row(tmp_path: Path, transform: str) -> None:
    """After shift and scale: what is seen by the model counts."""
    columns = {
        "y": "label",
        "u": "categorical",
        "n": {"kind": "dense", "transform": transform, "scale": 1e-9},
    }
    path = write_lines(tmp_path / "log.csv", "1,a,1", "0,b,1e30", "1,c,-1e300", "0,d,2", header="y,u,n")
    bad = BadRows(2)
    got = read_all(schema_job(path, columns=columns), bad)
    assert np.isfinite(got.dense).all()
    why = "not in seconds or ISO 8601" if transform == "time" else "beyond the range of float32"
    beyond = [(4, f"n '-1e300' is {why}")]
    if transform != "log":
        beyond.insert(0, (3, f"n '1e30' is {why}"))
    assert [(row.line, row.why) for row in bad.first] == beyond
    assert len(got) == 4 - len(beyond)


NO_UTF8 = b"\xff\xe9"


def test_bad_lines_that_are_no_utf8(tmp_path: Path) -> None:
    """Each is told, in the first column where that is so."""
    path = write_lines(tmp_path / "log.csv", *LINES, *LINES)
    lines = [b"5,%s,u,,1,1" % NO_UTF8, b"%s,1,u,,1,1" % NO_UTF8, b"5,1,u,,%s,1" % NO_UTF8]
    path.write_bytes(path.read_bytes() + b"\n".join([*lines, b"5,1,%s,a|%s,1,1\n" % (NO_UTF8, NO_UTF8)]))
    bad = BadRows(4)
    assert len(read_all(schema_job(path), bad)) == 6
    assert [(row.line, row.why) for row in bad.first] == [
        (line, f"text in column {name} that is not UTF-8")
        for line, name in ((8, "age"), (9, "y"), (10, "at"), (11, "user"))
    ]


@pytest.mark.parametrize("dictionary", [False, True])
def test_bad_rows_of_parquet_that_are_no_utf8(tmp_path: Path, dictionary: bool) -> None:
    ages = pa.array([b"1", NO_UTF8, b"2"]).view(pa.string())
    tags = pa.LargeListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int64()), ages)
    columns = {
        "y": pa.array([1.0] * 3),
        "age": ages.dictionary_encode() if dictionary else ages,
        "user": ages,
        "tags": tags,
        "at": pa.array([1] * 3),
        "w": pa.array([1.0] * 3),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    bad = BadRows(1)
    assert len(read_all(schema_job(tmp_path / "log.parquet", "parquet"), bad)) == 2
    assert bad.first[0].why == r"age '\\xff\\xe9' is not numeric"
    assert r"user=\\xff\\xe9, tags=[\\xff\\xe9]" in bad.first[0].text


def test_an_error_in_what_is_done_with_rows_is_not_said_to_be_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"y": [0, 1], "x": ["a", "b"]}), path)
    job = schema_job(path, "parquet", {"y": "label", "x": "categorical"})
    source = JobInput(job)
    spans = source.plan([str(path)])

    def failing(*_: Any) -> None:
        raise pa.ArrowInvalid("of the program's own")

    with monkeypatch.context() as patched:
        patched.setattr(RecordSchema, "records", failing)
        with pytest.raises(pa.ArrowInvalid, match="of the program's own"):
            list(source.chunks(spans[0], BadRows(0)))
    # The control: an error of reading is the file's.
    path.unlink()
    with pytest.raises(DataError, match=r"log\.parquet: cannot be read"):
        list(source.chunks(spans[0], BadRows(0)))


def test_a_column_used_twice(tmp_path: Path) -> None:
    columns = {
        "y": "label",
        "at": "categorical",
        "day": {"kind": "dense", "source": "at", "transform": "time", "shift": 86_400, "scale": 86_400},
        "raw": {"kind": "dense", "source": "at", "transform": "none"},
    }
    path = write_lines(tmp_path / "log.csv", "1,172800", "0,", header="y,at")
    got = read_all(schema_job(path, columns=columns))
    assert got.dense.tolist() == [[1.0, 172800.0], [0.0, 0.0]]
    assert got.rows.tolist() == [rows_of_ids("at", "172800", "")]
    path = write_lines(tmp_path / "plain.csv", "0,", header="1,172800")
    assert_same_examples(read_all(schema_job(path, columns=columns, header=False)), got)


def test_only_multi_hot(tmp_path: Path) -> None:
    columns = {"y": "label", "a": {"kind": "multi_hot"}, "b": {"kind": "multi_hot", "delimiter": " "}}
    path = write_lines(tmp_path / "log.csv", "1,x|y,p", "0,,q r s", header="y,a,b")
    got = read_all(schema_job(path, columns=columns))
    assert got.rows.shape == (0, 2)
    assert got.dense.shape == (2, 0)
    assert got.bags.lengths.tolist() == [[2, 0], [1, 3]]
    assert got.bags.rows.tolist() == [*rows_of_ids("a", "x", "y"), *rows_of_ids("b", "p", "q", "r", "s")]
