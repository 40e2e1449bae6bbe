"""Times of a stated format, rows without a time, decimals, NaN, and labels that are words."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.schema import log_transform
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import COLUMNS, read_all, schema_job, write_lines

LINES = ("5,30,ann,a|b,2026-01-01,1", '1,,"b,ob",,86400,0.5', "4,-2.5,,c,1970-01-01T00:00:09,2")


TIMED = {**COLUMNS, "at": {"kind": "timestamp", "format": "%d/%m/%Y %H:%M"}}
HOUR = {"kind": "dense", "source": "at", "transform": "time", "format": "%d/%m/%Y %H:%M"}


def _times(job: Job, bad: BadRows) -> list[float]:
    source = JobInput(job)
    (chunk,) = source.chunks(source.plan(job.data.path)[0], bad)
    return [float(time) for time in chunk.times]


def test_times_of_a_stated_format(tmp_path: Path) -> None:
    at = datetime(2017, 11, 7, 9, 30, tzinfo=UTC).timestamp()
    lines = [f"5,30,u,,{text},1" for text in ("07/11/2017 9:30", "7/11/2017 09:30", "2017-11-07T09:30")]
    path = write_lines(tmp_path / "log.csv", *lines)
    bad = BadRows(2)
    assert _times(schema_job(path, columns=TIMED), bad) == [at, at]
    assert [row.why for row in bad.first] == ["at '2017-11-07T09:30' is not in the format %d/%m/%Y %H:%M"]
    dense = read_all(schema_job(path, columns=TIMED | {"hour": HOUR}), BadRows(2)).dense[:, 1]
    assert dense.tolist() == [np.float32(at)] * 2
    # The control: without the format none of them is a time but the last.
    with pytest.raises(
        DataError, match=r"'07/11/2017 9:30', .* not in seconds or ISO 8601; state the format"
    ):
        _times(schema_job(path), bad)


@pytest.mark.parametrize(("unit", "factor"), [("ms", 1000), ("us", 1_000_000)])
def test_times_in_parts_of_a_second(tmp_path: Path, unit: str, factor: int) -> None:
    at = 1_700_000_000.25
    columns = {**COLUMNS, "at": {"kind": "timestamp", "format": unit}}
    hour = {"kind": "categorical", "source": "at", "part": "hour", "format": unit}
    lines = [f"5,30,u,,{text},1" for text in (str(int(at * factor)), "", "2017-11-07T09:30")]
    job = schema_job(write_lines(tmp_path / "log.csv", *lines), columns=columns | {"hour": hour})
    bad = BadRows(1)
    found = _times(job, bad)
    assert found[0] == at
    assert math.isnan(found[1])
    assert [row.why for row in bad.first] == [f"at '2017-11-07T09:30' is not in the format {unit}"]
    # As whole numbers of Parquet, and the control: as seconds.
    table = pa.table({"y": [5], "age": [30], "user": ["u"], "tags": [""], "w": [1], "at": [int(at * factor)]})
    pq.write_table(table, tmp_path / "log.parquet")
    assert _times(schema_job(tmp_path / "log.parquet", "parquet", columns), BadRows(0)) == [at]
    with pytest.raises(
        DataError, match=f'not clearly one time: state its format, "{unit}"; state the format'
    ):
        _times(schema_job(tmp_path / "log.parquet", "parquet"), BadRows(0))
    rows = read_all(job, BadRows(1)).rows[-1]
    assert rows.tolist() == [datetime.fromtimestamp(at, UTC).hour, 24]


def test_a_row_without_a_time_is_bad_only_where_rows_are_read_in_the_order_of_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", *LINES, "1,2,u,,,1", "1,2,u,,soon,1")
    bad = BadRows(5)
    assert len(read_all(schema_job(path), bad)) == 4
    assert [row.why for row in bad.first] == ["at 'soon' is not in seconds or ISO 8601"]
    bad = BadRows(5)
    assert len(read_all(schema_job(path, order="time"), bad)) == 3
    assert [row.why for row in bad.first] == [
        f"at '{text}' is not in seconds or ISO 8601" for text in ("", "soon")
    ]


def test_nan_is_missing_and_decimals_are_numbers(tmp_path: Path) -> None:
    columns = {
        "y": pa.array([Decimal("5.0"), Decimal("1.0"), Decimal("4.0"), None], pa.decimal128(5, 1)),
        "age": pa.array([Decimal("30.5"), None, Decimal("-2.5"), Decimal("1.0")], pa.decimal128(9, 2)),
        "user": pa.array(["a"] * 4),
        "tags": pa.array([["a"]] * 4),
        "at": pa.array([1] * 4),
        "w": pa.array([1.0, 0.5, 2.0, math.nan]),
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    bad = BadRows(1)
    got = read_all(schema_job(tmp_path / "log.parquet", "parquet"), bad)
    assert got.labels.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(got.dense[:, 0], log_transform(np.array([30.5, 0, -2.5])))
    # Without a label it is no example; a weight that is not a number is none either.
    assert [row.line for row in bad.first] == [4]
    columns |= {"y": pa.array([5.0, 1.0, 4.0, 1.0]), "age": pa.array([30.5, math.nan, -2.5, math.inf])}
    columns["w"] = pa.array([1.0] * 4)
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    bad = BadRows(1)
    again = read_all(schema_job(tmp_path / "log.parquet", "parquet"), bad)
    np.testing.assert_array_equal(again.dense, got.dense)
    assert [row.why for row in bad.first] == ["age 'inf' is not numeric"]


def test_a_decimal_comma(tmp_path: Path) -> None:
    """In numbers, labels, buckets and weights of text; ids are as they are, and a point is no separator."""
    columns = COLUMNS | {"class": {"kind": "bucket", "source": "age", "boundaries": [1.25, 2]}}
    lines = ["4,5;1,25;1,5;x;9;0,5", "3,5;-2,5;1.5;x;9;2", "4;1.5;u;x;9;1", "4;1.500,5;u;x;9;1", "4;;u;x;9;1"]
    path = write_lines(tmp_path / "log.csv", *lines, header="y;age;user;tags;at;w")
    bad = BadRows(2)
    job = schema_job(path, columns=columns, delimiter=";", decimal=",")
    got = read_all(job, bad)
    assert [row.why for row in bad.first] == ["age '1.5' is not numeric", "age '1.500,5' is not numeric"]
    assert got.labels.tolist() == [1, 0, 1]
    assert got.weights.tolist() == [0.5, 2, 1]
    np.testing.assert_array_equal(got.dense[:, 0], log_transform(np.array([1.25, -2.5, 0])))
    assert got.rows[1].tolist() == [1, 0, 3]
    with pytest.raises(DataError, match=r"column age: '1,25', '-2,5', '1\.500,5' are not numeric"):
        read_all(schema_job(path, columns=columns, delimiter=";"))
    texts = {name: [line.split(";")[at] for line in lines] for at, name in enumerate(COLUMNS)}
    pq.write_table(pa.table(texts), tmp_path / "log.parquet")
    of_parquet = schema_job(tmp_path / "log.parquet", "parquet", columns, decimal=",")
    np.testing.assert_array_equal(read_all(of_parquet, BadRows(2)).rows, got.rows)


def test_words_as_labels_are_told_to_be_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", "yes,30,u,,9,1", "no,30,u,,9,1")
    with pytest.raises(DataError, match=r"'yes', 'no' are neither 0 nor 1; name the values .*positive = \["):
        read_all(schema_job(path, columns=COLUMNS | {"y": "label"}))
