"""What may mean two things is refused as a time, with the format that reads it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.config.date_digits import formats_of_digits
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.columns.time_values import parse_times
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.tests.support.data.schemas import read_all, schema_job, write_lines

COLUMNS = {"y": "label", "day": {"kind": "categorical", "source": "t", "part": "weekday"}}


def at(*moment: int) -> float:
    return datetime(*moment, tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]


def times(values: Any, time_format: str = "") -> list[float]:
    column = values if isinstance(values, pa.Array) else pa.array(values)
    parsed: list[float] = parse_times(column, time_format).tolist()
    return parsed


@pytest.mark.parametrize(
    ("digits", "first", "moment"),
    [
        ("20240102", "%Y%m%d", (2024, 1, 2)),
        ("14102107", "%y%m%d%H", (2014, 10, 21, 7)),
        ("25122023", "%d%m%Y", (2023, 12, 25)),
        ("02012024", "%d%m%Y", (2024, 1, 2)),
        ("12252023", "%m%d%Y", (2023, 12, 25)),
        ("2024010207", "%Y%m%d%H", (2024, 1, 2, 7)),
        ("2401020730", "%y%m%d%H%M", (2024, 1, 2, 7, 30)),
        ("202401020730", "%Y%m%d%H%M", (2024, 1, 2, 7, 30)),
        ("20240102073005", "%Y%m%d%H%M%S", (2024, 1, 2, 7, 30, 5)),
        ("1704180605000", "ms", (2024, 1, 2, 7, 30, 5)),
        ("1704180605000000", "us", (2024, 1, 2, 7, 30, 5)),
        ("1704180605000000000", "ns", (2024, 1, 2, 7, 30, 5)),
    ],
)
def test_digits_that_may_be_a_date(tmp_path: Path, digits: str, first: str, moment: tuple[int, ...]) -> None:
    assert formats_of_digits(digits)[0] == first
    carried: list[Any] = [pa.array([digits]), pa.array([int(digits)])]
    if int(digits) < 2**53:
        carried.append(pa.array([float(digits), math.nan]))
    for column in carried:
        if len(str(int(digits))) == len(digits) or column.type == pa.string():
            assert math.isnan(times(column)[0]), column.type
        assert times(column, first)[0] == at(*moment), column.type
    path = write_lines(tmp_path / "log.csv", *[f"{n % 2},{digits}" for n in range(10)], header="y,t")
    with pytest.raises(DataError) as refused:
        read_all(schema_job(path, columns=COLUMNS))
    assert f"'{digits}'" in str(refused.value)
    assert f'format = "{first}" }}' in str(refused.value)
    assert ('or "s"' in str(refused.value)) == (int(digits) < 253_402_300_800)
    stated = COLUMNS | {"day": COLUMNS["day"] | {"format": first}}  # type: ignore[operator]
    rows = read_all(schema_job(path, columns=stated)).rows[0]
    assert set(rows.tolist()) == {datetime(*moment, tzinfo=UTC).weekday()}  # type: ignore[arg-type,misc]


@pytest.mark.parametrize(
    "seconds",
    [
        *(0, 1, -86_400, 86_399, 240_102, 2_024_060, 99_999_999),
        *(1_704_180_605, 1_893_456_000, 1_704_180_605.25, 1e8),
    ],
)
def test_what_is_clearly_in_seconds(seconds: float) -> None:
    assert times([seconds]) == [seconds]
    assert times([str(seconds)]) == [seconds]
    assert times([seconds], "s") == times([seconds], "%s") == [seconds]


def test_days() -> None:
    assert times([45292.5, 45292, None], "excel")[:2] == [at(2024, 1, 1, 12), at(2024, 1, 1)]
    assert times([19723.5], "days") == [at(2024, 1, 1, 12)]
    # One o'clock in the digits of a spreadsheet is not before it.
    for hour in range(24):
        (found,) = times([f"{45292 + hour / 24:.10f}"], "excel")
        assert found == at(2024, 1, 1, hour)
    assert np.isnan(times(["2024-01-01", "x", "1e9"], "excel")).all()
    assert np.isnan(times(["1e9", "-1e9"], "days")).all()


def test_seconds_that_read_as_a_date_need_the_format() -> None:
    assert times([20240102], "s") == [20240102]
    assert times(["20240102"], "s") == [20240102]


@pytest.mark.parametrize(
    ("text", "time_format"),
    [
        ("30/02/2024", "%d/%m/%Y"),
        ("29/02/2023", "%d/%m/%Y"),
        ("31/04/2024", "%d/%m/%Y"),
        ("31/11/24", "%d/%m/%y"),
        ("2024-02-30", "%F"),
        ("02/30/24", "%D"),
        ("31 Jun 2024", "%d %b %Y"),
        ("20240230", "%Y%m%d"),
        ("2023-366", "%Y-%j"),
        ("2024-01-01 23:59:60", "%Y-%m-%d %H:%M:%S"),
        ("2024-01-01 23:59:61", "%Y-%m-%d %H:%M:%S"),
        ("2024-01-01 24:00", "%Y-%m-%d %H:%M"),
        ("2024-01-01 10:00 EST", "%Y-%m-%d %H:%M %Z"),
        ("2024-01-01 10:00 blah", "%Y-%m-%d %H:%M %Z"),
        ("2024-02-30 10:00 +0500", "%Y-%m-%d %H:%M %z"),
        ("2024-02-30 01:00 +05:00", "%Y-%m-%d %H:%M %z"),
        ("1022024", "%d%m%Y"),
        ("2024-01-01 ", "%Y-%m-%d"),
        ("2024-01-01x", "%Y-%m-%d"),
        ("2024-02-30", ""),
        ("2024-01-01 ", ""),
        ("2024-01-01T10:00:60", ""),
        ("today", ""),
        ("nan", ""),
        ("1e300", ""),
        ("253402300800", ""),
        ("999999999999", "s"),
        ("-99999999999999", "ms"),
        ("9" * 400, ""),
    ],
)
def test_what_is_no_time(text: str, time_format: str) -> None:
    wide = pa.array([None, text, text], pa.large_string())
    assert np.isnan(times([text], time_format)).all()
    assert np.isnan(times(wide, time_format)).all()


@pytest.mark.parametrize(
    ("text", "time_format", "moment"),
    [
        ("01/03/2024", "%d/%m/%Y", (2024, 3, 1)),
        ("29/02/2024", "%d/%m/%Y", (2024, 2, 29)),
        ("1/3/2024", "%d/%m/%Y", (2024, 3, 1)),
        ("1/3/2030", "%d/%m/%Y", (2030, 3, 1)),
        ("01 mar 2031", "%d %b %Y", (2031, 3, 1)),
        ("12:30 AM 2024-03-01", "%I:%M %p %Y-%m-%d", (2024, 3, 1, 0, 30)),
        ("2024-03-01 10:30:00", "%Y-%m-%d %H:%M:%S", (2024, 3, 1, 10, 30)),
        ("2024-060", "%Y-%j", (2024, 2, 29)),
        ("2024-366", "%Y-%j", (2024, 12, 31)),
        ("2024-01-01 10:00 UTC", "%Y-%m-%d %H:%M %Z", (2024, 1, 1, 10)),
        ("2024-01-01 10:00 gmt", "%Y-%m-%d %H:%M %Z", (2024, 1, 1, 10)),
        ("2024-03-01 10:30 +0530", "%Y-%m-%d %H:%M %z", (2024, 3, 1, 5)),
        ("2024-03-01 01:30 +05:30", "%Y-%m-%d %H:%M %z", (2024, 2, 29, 20)),
        ("2024-03-31 01:30 Z", "%Y-%m-%d %H:%M %z", (2024, 3, 31, 1, 30)),
        ("01/01/68", "%d/%m/%y", (2068, 1, 1)),
        ("01/01/69", "%d/%m/%y", (1969, 1, 1)),
        ("2024-03-31T02:30:00+02:00", "", (2024, 3, 31, 0, 30)),
        ("2024-03-31 02:30", "", (2024, 3, 31, 2, 30)),
        ("20240331T0230", "", (2024, 3, 31, 2, 30)),
    ],
)
def test_what_is_one(text: str, time_format: str, moment: tuple[int, ...]) -> None:
    assert times([text], time_format) == [at(*moment)]
    assert times(pa.array([text.encode()]).cast(pa.large_string()), time_format) == [at(*moment)]


def test_integers_have_lost_their_zeros() -> None:
    assert times([1022024], "%d%m%Y") == [at(2024, 2, 1)]
    assert times([1022024.0, None], "%d%m%Y")[0] == at(2024, 2, 1)
    assert times([101], "%y%m%d") == [at(2000, 1, 1)]


def test_times_of_96_bits_do_not_wrap_around(tmp_path: Path) -> None:
    """The year 9999, which databases write for "never", was 1816."""
    moments = [datetime(9999, 12, 31), datetime(2024, 1, 2)]
    table = pa.table({"y": [1, 0], "t": pa.array(moments, pa.timestamp("us")), "x": ["a", "b"]})
    pq.write_table(table, tmp_path / "log.parquet", use_deprecated_int96_timestamps=True)
    columns = {"y": "label", "x": "categorical", "t": "timestamp"}
    job = schema_job(tmp_path / "log.parquet", "parquet", columns)
    source = JobInput(job)
    (chunk,) = source.chunks(source.plan(job.data.path)[0], BadRows(0))
    assert chunk.times.tolist() == [at(9999, 12, 31), at(2024, 1, 2)]


def test_a_split_by_time_asks_for_a_clear_moment(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.csv", *(f"1,{n},u" for n in range(9)), header="y,t,x")
    columns = {"y": "label", "t": "timestamp", "x": "categorical"}
    for moment in (20240102, 1_704_180_605_000):
        with pytest.raises(JobFileError, match=f"{moment} is not clearly in seconds since 1970; write 2026"):
            schema_job(path, columns=columns, order="time", split={"by": "time", "test_from": moment})
    assert schema_job(path, columns=columns, order="time", split={"by": "time", "test_from": "20240102"})


@pytest.mark.parametrize("carrier", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("values", "formats"),
    [
        ([2021, 2023, 2024], '"%Y" or "s"'),
        ([2021, 2023, 2100], '"s"'),
        ([202401, 202402, 202312], '"%Y%m" or "s"'),
        ([240131, 231201, 990101], '"%y%m%d" or "s"'),
        ([2024001, 2024366, 2023365], '"%Y%j" or "s"'),
        ([hour * 10_000 + 5912 for hour in range(24)], '"s"'),
        # Days of a spreadsheet and since 1970.
        ([45292.5, 45293.25, 45294], '"excel" or "s"'),
        ([19723, 19724.5], '"days" or "s"'),
        # Counts from 0, and what no calendar has: seconds of 1970, or hours and minutes since then.
        (range(300), '"s"'),
        ([473_352, 473_376], '"s"'),
        ([28_401_130, 28_402_599], '"s"'),
        ([202401, 202413], '"s"'),
        ([-86_400.5, 86_400], '"s"'),
        ([0, 3600, 99_999_999], '"s"'),
        # The controls: seconds after 1972, one such among them, and nothing.
        ([1_704_067_200, 1_704_070_800], ""),
        ([0, 100_000_000], ""),
        ([-100_000_000, 0], ""),
        ([0, 0], ""),
    ],
)
def test_a_column_of_numbers_that_are_all_small(
    tmp_path: Path, carrier: str, values: list[float], formats: str
) -> None:
    path = tmp_path / f"log.{carrier}"
    if carrier == "csv":
        write_lines(path, *(f"{n % 2},{value}" for n, value in enumerate(values)), header="y,t")
    else:
        pq.write_table(pa.table({"y": [n % 2 for n in range(len(values))], "t": list(values)}), path)

    def plan(**options: str) -> None:
        job = schema_job(path, carrier, COLUMNS | {"day": {**COLUMNS["day"], **options}})  # type: ignore[dict-item]
        JobInput(job).plan(job.data.path)

    if formats:
        with pytest.raises(DataError, match=f"column day: .* not clearly seconds.*format = {formats}"):
            plan()
    else:
        plan()
    for time_format in formats.replace('"', "").split(" or ") if formats else ["s"]:
        plan(format=time_format)


@pytest.mark.parametrize(
    ("column", "formats"),
    [
        # Their order is right whatever they count.
        ({"kind": "timestamp"}, ""),
        ({"kind": "dense", "transform": "time"}, ""),
        ({"kind": "categorical", "part": "hour"}, '"excel" or "s"'),
    ],
)
def test_small_numbers_have_an_order_without_a_format(
    tmp_path: Path, column: dict[str, Any], formats: str
) -> None:
    path = write_lines(tmp_path / "log.csv", *(f"{n % 2},{45292 + n / 4}" for n in range(9)), header="y,t")
    columns = {"y": "label", "id": {"kind": "categorical", "source": "t"}, "x": column | {"source": "t"}}
    job = schema_job(path, columns=columns)
    if not formats:
        assert JobInput(job).plan(job.data.path)
        return
    with pytest.raises(DataError, match=f"column x: '45292.0', .*not clearly seconds.*format = {formats} }}"):
        JobInput(job).plan(job.data.path)
    # A run that began, and what is scored by its model, go on as they did.
    assert JobInput(job, has_begun=True).plan(job.data.path)
    start = job.start.model_copy(update={"checkpoint": "before", "resume": True})
    assert JobInput(job.model_copy(update={"start": start})).plan(job.data.path)


@pytest.mark.parametrize(
    ("time_format", "why"),
    [
        ("%Y-%m-%d %H:%M %p", "%p and %I go together"),
        ("%Y-%m-%d %I:%M", "%p and %I go together"),
        ("%Y-%m-%d %H:%M:%S.%f", "has %f; fractions of seconds are read in ISO 8601"),
        ("%Y %U", "has %U; weeks are not read"),
    ],
)
def test_formats_that_would_be_read_in_part_are_refused(tmp_path: Path, time_format: str, why: str) -> None:
    with pytest.raises(JobFileError, match=why):
        schema_job(tmp_path / "x", columns=COLUMNS | {"t": {"kind": "timestamp", "format": time_format}})
    schema_job(tmp_path / "x", columns=COLUMNS | {"t": {"kind": "timestamp", "format": "%Y-%m-%d %I:%M %p"}})


def test_a_zone_with_an_offset_is_not_utc() -> None:
    texts = ["GMT+2", "UTC-03:30", "UTC+1", "UTC", "(UTC)", "Z"]
    found = times([f"2024-01-02 00:30 {zone}" for zone in texts], "%Y-%m-%d %H:%M %Z")
    assert [not math.isnan(one) for one in found] == [False, False, False, True, True, True]
    assert found[3] == at(2024, 1, 2, 0, 30)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([253_402_300_800] * 4).view(pa.timestamp("s", "Mars/Olympus")),
        pa.array([-62_167_219_200] * 4).view(pa.timestamp("s")),
        pa.array([2**62] * 4).view(pa.timestamp("us")),
        pa.array([4_000_000] * 4, pa.int32()).view(pa.date32()),
        pa.array([2**62] * 4).view(pa.date64()),
    ],
    ids=lambda column: str(column.type),
)
def test_times_that_are_out_of_years(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"y": [0, 1, 0, 1], "x": ["a"] * 4, "t": column}), tmp_path / "log.parquet")
    for kind in ("timestamp", COLUMNS["day"]):
        columns = {"y": "label", "x": "categorical", "t": kind}
        with pytest.raises(DataError, match="are not a time in the years 1 to 9999; change"):
            read_all(schema_job(tmp_path / "log.parquet", "parquet", columns))
