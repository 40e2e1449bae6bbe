"""Hour, weekday, day and month of a time as ids: their rows, in every format, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.columns import TIME_PARTS, TimePart
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.columns.time_values import rows_of_time_part
from shadowsync.pipeline.data.hashing import hashes_of_rows, table_rows_of
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.prepare.statistics import Statistics
from shadowsync.pipeline.saved_model.input_rows import input_schema, rows_of_columns
from shadowsync.pipeline.saved_model.table import Table
from shadowsync.tests.support.data.prepared import check_prepared
from shadowsync.tests.support.data.schemas import read_all

PARTS: tuple[TimePart, ...] = ("hour", "weekday", "day", "month")
START = datetime(1907, 3, 1, 1, 30, tzinfo=UTC)
TIMES = [START + timedelta(hours=at * 7919) for at in range(300)]
EXPECTED = {
    "hour": [at.hour for at in TIMES],
    "weekday": [at.weekday() for at in TIMES],
    "day": [at.day - 1 for at in TIMES],
    "month": [at.month - 1 for at in TIMES],
}


def _columns(**more: Any) -> dict[str, Any]:
    return {"y": "label"} | {
        part: {"kind": "categorical", "source": "at", "part": part, **more} for part in PARTS
    }


def _job(path: Path, form: str = "csv", **more: Any) -> dict[str, Any]:
    return {"data": {"format": form, "path": str(path), "columns": _columns(**more)}}


def _write(path: Path, times: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in ("y,at", *(f"1,{time}" for time in times))))
    return path


def _rows(tree: dict[str, Any], bad: BadRows | None = None) -> dict[str, list[int]]:
    found = read_all(job_of_tree(tree), bad).rows
    return dict(zip(PARTS, found.tolist(), strict=True))


@pytest.mark.parametrize("part", PARTS)
def test_against_the_calendar(part: TimePart) -> None:
    seconds = np.array([at.timestamp() for at in TIMES])
    assert rows_of_time_part(seconds + 0.75, part).tolist() == EXPECTED[part]
    assert rows_of_time_part(np.array([np.nan]), part).tolist() == [len(TIME_PARTS[part])]


FORMATS: dict[str, Callable[[datetime], str]] = {
    "": lambda at: at.isoformat(),
    "seconds": lambda at: str(int(at.timestamp())),
    "%d.%m.%Y %H:%M": lambda at: at.strftime("%d.%m.%Y %H:%M"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_text(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / "log.csv", [FORMATS[name](at) for at in TIMES])
    # Some seconds read as a date, too.
    stated = {"format": "s" if name == "seconds" else name}
    assert _rows(_job(path, **(stated if name else {}))) == EXPECTED


def test_other_zones_are_told_in_utc(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.csv", ["2024-03-01T00:30:00+02:00"])
    assert {name: row for name, (row,) in _rows(_job(path)).items()} == {
        "hour": 22, "weekday": 3, "day": 28, "month": 1
    }  # fmt: skip


@pytest.mark.parametrize("kind", [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s")])
def test_times_of_parquet(tmp_path: Path, kind: pa.DataType) -> None:
    seconds = pa.array([round(at.timestamp()) for at in TIMES]).cast(pa.timestamp("s")).cast(kind)
    pq.write_table(pa.table({"y": [1] * len(TIMES), "at": seconds}), tmp_path / "log.parquet")
    assert _rows(_job(tmp_path / "log.parquet", "parquet")) == EXPECTED


def test_dates_of_parquet_and_columns_that_cannot_be_times(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"y": [1], "at": pa.array([date(2024, 2, 29)])}), path)
    assert _rows(_job(path, "parquet")) == {"hour": [0], "weekday": [3], "day": [28], "month": [1]}
    pq.write_table(pa.table({"y": [1], "at": [["a"]]}), path)
    with pytest.raises(DataError, match="hour needs times, dates, numbers or texts"):
        _rows(_job(path, "parquet"))


def test_missing_times_have_a_row_and_wrong_ones_are_bad(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.csv", ["0", "", "9", "soon", "1e12", "1e300", "86399.9"])
    bad = BadRows(3)
    assert _rows(_job(path), bad)["hour"] == [0, 24, 0, 23]
    # 1e12 would be a time in milliseconds.
    assert [row.why for row in bad.first] == [
        "hour 'soon' is not in seconds or ISO 8601",
        "hour '1e12' is not clearly one time: state its format, \"ms\"",
        "hour '1e300' is not in seconds or ISO 8601",
    ]
    with pytest.raises(
        DataError,
        match=r"column hour: '1e12' are not clearly one time: state its format, .ms.; state the form",
    ):
        _rows(_job(_write(path, ["1e12"])))


def test_each_row_stands_for_itself() -> None:
    for size in (1, 8, 13, 25, 32, 2**31 - 1):
        rows = np.unique(np.linspace(0, size - 1, 500).astype(np.int64))
        assert table_rows_of(hashes_of_rows(rows, size)[None], (size,))[0].tolist() == rows.tolist()


def test_prepared_the_same_and_described(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.csv", ["", *(at.isoformat() for at in TIMES)])
    _, made = check_prepared(_job(path), tmp_path / "out")
    columns = {column.name: column for column in made.manifest.columns}
    assert columns["day"].transform == "day in UTC, 1 to 31, less 1; 31 where missing"
    assert (columns["hour"].hash_column, columns["hour"].table_rows) == (None, 25)
    told = Statistics.model_validate_json((tmp_path / "out" / "statistics.json").read_bytes())
    weekday = next(column for column in told.ids if column.name == "weekday")
    assert (weekday.distinct, weekday.expected_shared) == (7, 0.0)
    assert weekday.missing == pytest.approx(1 / 301)
    # The tables of the folder are the job's, though they differ in size.
    short = job_of_tree({"data": {"prepared": str(tmp_path / "out")}})
    assert short.column_rows == (25, 8, 32, 13)


def test_raw_rows_to_score() -> None:
    job = job_of_tree(_job(Path("log.csv")))
    schema = input_schema(job, {})
    columns = {"at": pa.array([datetime(2024, 2, 29, 23), None])}
    found = rows_of_columns(columns, schema, [], "a dict", np.arange(2))
    assert found.examples.rows.T.tolist() == [[23, 3, 28, 1], [24, 7, 31, 12]]


def test_rows_of_a_table_by_number() -> None:
    table = Table("day", np.zeros((32, 2), np.float32), "", integers_as_text=True, part="day")
    assert [table.hash(value) for value in (1, 31, None)] == [0, 30, 31]
    with pytest.raises(ValueError, match="table day: 32 is not a day; give 1 to 31"):
        table.hash(32)
    with pytest.raises(TypeError, match="'1' is not a day; give an integer or None"):
        table.hash("1")
