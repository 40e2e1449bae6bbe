"""Drafts for odd data: types that no table reads, gaps, blanks, and files that are no rows of fields."""

from __future__ import annotations

import math
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.jobfile.draft.draft import draft_job
from shadowsync.tests.unit.pipeline.config.jobfile.test_draft import draft, read, write

CLICKS: dict[str, Any] = {"click": [at % 2 for at in range(100)], "item": ["a", "b"] * 50}


def drafted_parquet(folder: Path, more: dict[str, Any]) -> tuple[str, Any]:
    """The draft of CLICKS and more columns, whose rows can all be read."""
    pq.write_table(pa.table(CLICKS | more), folder / "log.parquet")
    text, job = draft(folder / "log.parquet", "click")
    assert read(job) == 100, text
    return text, job


def test_booleans_and_decimals_of_parquet(tmp_path: Path) -> None:
    text, job = drafted_parquet(
        tmp_path,
        {
            "mobile": [True, False, None, True] * 25,
            "grade": [Decimal(at % 5) for at in range(100)],
            "price": [Decimal(at) / 4 for at in range(100)],
            "user_id": pa.array([Decimal(10_000 + at) for at in range(100)], pa.decimal128(38, 0)),
        },
    )
    kinds = {name: (column.kind, column.boundaries) for name, column in job.data.columns.items()}
    assert kinds["mobile"] == ("bucket", [1])
    assert kinds["grade"] == ("bucket", [1, 2, 3, 4])
    assert kinds["price"] == ("dense", [])
    assert "# user_id is left out: ids of type Decimal" in text


def test_a_label_of_decimals(tmp_path: Path) -> None:
    table = pa.table({"click": [Decimal(1 + at % 2) for at in range(100)], "item": ["a", "b"] * 50})
    pq.write_table(table, tmp_path / "log.parquet")
    _, job = draft(tmp_path / "log.parquet")
    assert job.data.columns["click"].positive == [2.0]
    assert read(job) == 100


def test_types_that_no_kind_can_read_are_left_out(tmp_path: Path) -> None:
    text, job = drafted_parquet(
        tmp_path,
        {
            "opened": [time(at % 24) for at in range(100)],
            "stay": [timedelta(seconds=at) for at in range(100)],
            "flags": [[at % 2 == 0] for at in range(100)],
            "nested": [[[at % 3]] for at in range(100)],
            "hash": [b"\xff" + bytes([at % 7]) for at in range(100)],
        },
    )
    assert list(job.data.columns) == ["click", "item", "hash"]
    assert job.data.columns["hash"].kind == "categorical"
    for name, of in (("opened", "Time"), ("stay", "Duration"), ("flags", "Boolean"), ("nested", "List")):
        (line,) = (line for line in text.splitlines() if line.startswith(f"# {name} is left out"))
        assert f"of type {of}" in line
        assert "which no kind can read" in line


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    frame = pl.DataFrame(CLICKS | {"x": [math.nan, *(at / 7 for at in range(99))]})
    frame.write_parquet(tmp_path / "log.parquet")
    _, job = draft(tmp_path / "log.parquet", "click")
    assert job.data.columns["x"].kind == "dense"
    assert 0 < job.data.columns["x"].shift < 14.2
    assert read(job) == 100
    # In text "inf" is no number, so the column has texts.
    _, job = draft(write(tmp_path / "log.csv", CLICKS | {"x": ["inf", *range(99)]}), "click")
    assert job.data.columns["x"].kind == "categorical"
    assert read(job) == 100


@pytest.mark.parametrize("gap", ["", "NULL"])
def test_rows_without_a_time_are_not_trained_in_its_order(tmp_path: Path, gap: str) -> None:
    times = [gap if at % 10 == 0 else f"2024-01-{1 + at % 28:02} 09:{at % 60:02}" for at in range(100)]
    text, job = draft(write(tmp_path / "log.csv", CLICKS | {"at": times}), "click")
    assert job.data.columns["at"].kind == "timestamp"
    assert (job.data.order, job.data.split.by) == ("file", "fraction")
    assert '# order = "time" would train in the order of time, but 10.0% of the rows have no time' in text
    assert read(job) == 100
    # The control: in the order of time these rows are malformed.
    timed = {"order": "time", "split": {"by": "time", "test": 0.1}}
    with pytest.raises(DataError, match="1 malformed row"):
        read(job.model_validate({"data": job.data.model_dump(exclude={"split", "order"}) | timed}))


def test_times_of_several_formats_are_no_times_of_the_first(tmp_path: Path) -> None:
    times = [f"{1 + at % 28:02}/03/2024" if at < 1100 else f"2024-03-{1 + at % 28:02}" for at in range(1200)]
    clicks: dict[str, Any] = {"click": [0, 1] * 600, "item": ["a", "b"] * 600}
    _, job = draft(write(tmp_path / "log.csv", clicks | {"day": times}), "click")
    assert job.data.columns["day"].kind == "categorical"
    assert read(job) == 1200


def test_milliseconds_since_1970(tmp_path: Path) -> None:
    times = [1_700_000_000_000 + 60_000 * at for at in range(100)]
    text, job = draft(write(tmp_path / "log.csv", CLICKS | {"ts": times}), "click")
    assert (job.data.columns["ts"].kind, job.data.columns["ts"].format) == ("timestamp", "ms")
    assert 'part = "hour", format = "ms"' in text
    assert read(job) == 100


def test_blanks_around_fields(tmp_path: Path) -> None:
    rows = "".join(f"u{at % 9}, {('yes', 'no')[at % 2]}, {at}, NULL\n" for at in range(100))
    (tmp_path / "log.csv").write_text("user, clicked, price, none\n" + rows)
    text, job = draft(tmp_path / "log.csv")
    assert job.data.strip
    assert list(job.data.columns) == ["user", "clicked"]
    assert job.data.columns["clicked"].positive == ["yes"]
    assert "# price is left out: the number of the row" in text
    assert read(job) == 100
    _, job = draft(write(tmp_path / "log.csv", CLICKS | {"x": [f"{at / 7} " for at in range(100)]}), "click")
    assert (job.data.strip, job.data.columns["x"].kind) == (True, "dense")
    assert read(job) == 100
    # A blank within a text is part of it.
    _, job = draft(write(tmp_path / "log.csv", CLICKS | {"place": ["New York", " Rome"] * 50}), "click")
    assert not job.data.strip


def test_names_and_texts_beyond_the_first_65536_characters(tmp_path: Path) -> None:
    thumbs = ["\U0001f44d", "\U0001f44e"]
    columns: dict[str, Any] = {"like": thumbs * 50, "how \U0001f600": ["a", "b"] * 50}
    _, job = draft(write(tmp_path / "log.csv", columns))
    label = job.data.columns["like"]
    assert sorted(str(value) for value in (*label.positive, *label.negative)) == thumbs
    assert job.data.columns["how \U0001f600"].kind == "categorical"
    assert read(job) == 100


def test_numbers_alone_get_a_table(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "click": [0, 1] * 50,
        "x": [at / 7 for at in range(100)],
        "zeros": [0.0] * 98 + [0.5, 0.25],
    }
    text, job = draft(write(tmp_path / "log.csv", columns), "click")
    bucket = job.data.columns["x_bucket"]
    assert (bucket.kind, bucket.source, len(bucket.boundaries)) == ("bucket", "x", 9)
    assert "x_bucket = " in text
    assert read(job) == 100
    # A bucket is a table, so there is no further one where there are some already.
    del columns["x"]
    _, job = draft(write(tmp_path / "log.csv", columns | {"c": list("xy") * 50}), "click")
    assert list(job.data.columns) == ["click", "zeros", "c"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"click,item\r0,a\r1,b\r", r"carriage returns within its first line; if lines end with these alone"),
        (b'click,item\n0,a\n0,"a\n1,b\n0,c\n', "cannot be read as rows of fields .*; correct its quotes"),
        (b'click,item\n0,a\n0,"x" y\n1,b\n0,c\n', "cannot be read as rows of fields .*; correct its quotes"),
        (
            b'click,"it""em,x\n0,a,b\n1,b,a\n',
            "its first line has quotes that do not match; correct its quotes",
        ),
        (b'click,"item" x\n0,a\n1,b\n', "its first line has quotes that do not match; correct its quotes"),
        (b"", "has no rows"),
        (b"click,item\n", "has no rows besides its header"),
        (b"click\n0\n1\n", "no delimiter splits its lines alike"),
    ],
)
def test_files_that_are_no_rows_of_fields(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "log.csv").write_bytes(data)
    with pytest.raises((DataError, JobFileError), match=said) as caught:
        draft(tmp_path / "log.csv")
    assert "log.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_there_twice_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("click,sex,sex\n" + "0,f,m\n1,m,m\n" * 20)
    with pytest.raises(JobFileError, match="line has 'sex' more than once, so it was taken for a row"):
        draft(tmp_path / "log.csv", "click")
    with pytest.raises(JobFileError, match=r"'sex' more than once, .* if it is a row, name the label"):
        draft(tmp_path / "log.csv")
    # It may be a row.
    (tmp_path / "log.csv").write_text("yes,m,m\n" + "no,f,m\nyes,m,m\n" * 20)
    text, job = draft(tmp_path / "log.csv", "column_1")
    assert "header = false  # the first line has 'm' more than once" in text
    assert read(job) == 41


@pytest.mark.parametrize(
    ("ending", "written", "name"),
    [
        ("csv", '"the ""item"""', 'the "item"'),
        ("csv", '"the """"item"', 'the ""item'),
        ("csv", 'item"', 'item"'),
        ("csv", 'the "item"', 'the "item"'),
        ("csv", '"item, shown"', "item, shown"),
        ("tsv", '5" pipe', '5" pipe'),
        ("tsv", '"item\tshown"', "item\tshown"),
    ],
)
def test_names_with_quotes_are_those_of_a_job(tmp_path: Path, ending: str, written: str, name: str) -> None:
    delimiter = {"csv": ",", "tsv": "\t"}[ending]
    lines = [f"click{delimiter}{written}", *(f"{at % 2}{delimiter}i{at % 3}" for at in range(100))]
    for number in range(2):
        (tmp_path / f"log{number}.{ending}").write_text("".join(f"{line}\n" for line in lines))
    _, job = draft(tmp_path / f"*.{ending}", "click")
    assert list(job.data.columns) == ["click", name]
    assert read(job) == 200


def test_names_and_values_with_line_breaks(tmp_path: Path) -> None:
    log = {
        "cl\nick": ["ye\ns", "no\r", "no\r", "ye\ns"] * 25,
        "it\nem": ["a\x00", "b\x7f", "c"] * 33 + ["c"],
        "al\nways": [1] * 100,
        "fl\nag": [0, 1] * 50,
    }
    pq.write_table(pa.table(log), tmp_path / "log.parquet")
    text, job = draft(tmp_path / "log.parquet", "cl\nick")
    assert list(job.data.columns) == ["cl\nick", "it\nem", "fl\nag"]
    assert "# QUESTION: cl\\nick: is " in text
    assert read(job) == 100


def test_a_name_that_is_twice_in_a_later_file_or_of_parquet_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("click,item\n" + "0,a\n1,b\n" * 20)
    (tmp_path / "b.csv").write_text('click,item,"item"\n' + "0,a,b\n1,b,a\n" * 20)
    with pytest.raises(DataError, match=r"b\.csv: has column 'item' more than once; give each column"):
        draft(tmp_path / "*.csv", "click")
    columns = [pa.array([0, 1] * 20), *[pa.array(["a", "b"] * 20)] * 2]
    pq.write_table(pa.Table.from_arrays(columns, ["click", "item", "item"]), tmp_path / "log.parquet")
    with pytest.raises(DataError, match=r"log\.parquet: has column 'item' more than once; give each column"):
        draft(tmp_path / "log.parquet", "click")


def test_a_label_without_a_value_is_told(tmp_path: Path) -> None:
    file = write(tmp_path / "log.csv", CLICKS | {"end": [""] * 100})
    with pytest.raises(JobFileError, match="the label 'end' has no value; name another"):
        draft(file, "end")


def test_a_heavy_tail_is_in_logarithms_also_with_a_code_below_zero(tmp_path: Path) -> None:
    def transform(low: float) -> str:
        views = [low, 3.0, 5.0, 4.0] * 24 + [200.5, 5_000.5, 90_000.5, 1.5]
        _, job = draft(write(tmp_path / f"{low}.csv", CLICKS | {"views": views}), "click")
        return job.data.columns["views"].transform

    assert transform(0.5) == "log"
    assert transform(-1.5) == "log"
    # Large numbers below 0 are no codes: money, for example.
    assert transform(-9_000.5) == "none"


RAW = pa.array([b"caf\xe9", b"cafe", b"\xff", b"\xc3("] * 25, pa.binary())
TEXTS = RAW.view(pa.string())
BEFORE = np.arange(101, dtype=np.int32)


@pytest.mark.parametrize(
    "column",
    [
        TEXTS,
        TEXTS.cast(pa.string_view()),
        pa.DictionaryArray.from_arrays(np.arange(100, dtype=np.int32), TEXTS),
        pa.ListArray.from_arrays(BEFORE, TEXTS),
    ],
    ids=lambda column: str(column.type),
)
def test_texts_that_are_not_utf_8_are_ids(tmp_path: Path, column: pa.Array) -> None:
    text, job = drafted_parquet(tmp_path, {"place": column})
    assert job.data.columns["place"].kind == ("multi_hot" if pa.types.is_list(column.type) else "categorical")
    assert "none of the 4 values shares its row" in text
    texts = pa.DictionaryArray.from_arrays(np.arange(100, dtype=np.int32), pa.array(["a", "b"] * 50))
    pq.write_table(pa.table(CLICKS | {"place": texts}), tmp_path / "more.parquet")
    if not pa.types.is_list(column.type):
        _, job = draft(tmp_path / "*.parquet", "click")
        assert read(job) == 200


def test_bytes_of_texts_are_texts(tmp_path: Path) -> None:
    label = pa.array([b"no", b"yes"] * 50, pa.binary())
    numbers = pa.array([str(at / 7).encode() for at in range(100)], pa.binary())
    _, job = drafted_parquet(tmp_path, {"click": label, "x": numbers})
    assert (job.data.columns["click"].positive, job.data.columns["x"].kind) == (["yes"], "dense")


def test_a_label_that_is_not_utf_8_is_told(tmp_path: Path) -> None:
    log, test = tmp_path / "log.parquet", tmp_path / "test.parquet"
    pq.write_table(pa.table(CLICKS | {"click": TEXTS}), test)
    for positive in ([], ["cafe"]):
        with pytest.raises(JobFileError, match="the label 'click' has texts that are not UTF-8; write them"):
            draft(test, "click", positive)
    pq.write_table(pa.table(CLICKS | {"click": ["no", "cafe"] * 50}), log)
    with pytest.raises(JobFileError, match=r"test\.parquet: the label 'click' has texts that are not UTF-8"):
        draft_job(str(log), tmp_path, name="job", eval_source=str(test))


@pytest.mark.parametrize("first", [-62_200_000_000, 253_402_300_800, 1_577_836_800])
def test_times_that_python_does_not_know(tmp_path: Path, first: int) -> None:
    kind = pa.timestamp("s", "Mars/Olympus")
    times = pa.array([first + at for at in range(100)], pa.int64()).view(kind)
    more = {
        "at": times,
        "several": pa.ListArray.from_arrays(BEFORE, times),
        "within": pa.StructArray.from_arrays([times], ["a"]),
    }
    pq.write_table(pa.table(CLICKS | more), tmp_path / "log.parquet")
    _, job = draft(tmp_path / "log.parquet", "click")
    assert {name: column.kind for name, column in job.data.columns.items()} == {
        "click": "label",
        "item": "categorical",
        "at": "timestamp",
    }
