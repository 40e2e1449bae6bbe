"""Times in columns: numbers, texts and Arrow's times, as seconds since 1970, and their parts.

What may mean two things is no time: digits that may be a date, days that a month lacks, names of zones.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...config.columns import TIME_PARTS, TIME_UNITS, TimePart
from ...config.date_digits import (
    SMALL,
    SURELY_SECONDS,
    digits_width,
    formats_of_digits,
    formats_of_few_digits,
    may_be_seconds,
)
from ...types import Float64Array, IndexArray, Mask
from .fields import display_bytes, is_number, is_text, null_mask, parse_number_column

_TICKS: Final = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Ticks of each unit in a second."""
_DAY_SECONDS: Final = 86_400
_FIRST_DAY: Final = {"days": 0.0, "excel": 25_569.0}
"""Number of the first day of 1970 in each unit of days."""

# Of the years 1 to 9999.
_FIRST_SECOND: Final = -62_135_596_800.0
_LAST_SECOND: Final = 253_402_300_799.0

_UTC: Final = r"(?i)(^|[^a-z])(utc|gmt|z)([^a-z+-]|$)"
# A later day of a short month is read as one of the first days of the next.
_AFTER_SHORT_MONTHS: Final = (3, 5, 7, 10, 12)
_LATE: Final = r"29|30|31|36|60|61"
_OFFSET: Final = r" ?([+-][0-9]{2}:?[0-9]{2}|Z)$"


def parse_times(column: pa.Array, time_format: str = "") -> Float64Array:
    """Return the times of a cleaned column, float64 [n], in seconds since 1970.

    The column has times, dates, texts in ISO 8601, or numbers. Times without a zone are UTC. Numbers are
    seconds, unless their digits may as well be a date. With `time_format`, in the form of `strptime`, texts
    and numbers have that format; with one of `TIME_UNITS` they are numbers in that unit. Nulls and everything
    else are NaN, also what is not in the years 1 to 9999.
    """
    kind = column.type
    values = np.full(len(column), np.nan)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        values = _seconds(column)
    elif time_format in ("%s", *TIME_UNITS) and (is_text(kind) or is_number(kind)):
        # The zone of this machine would count in a %s.
        values = _of_unit(_numbers(column), time_format.removeprefix("%"))
    elif time_format and (is_text(kind) or is_number(kind)):
        values = _by_format(_texts(column, time_format), time_format)
    elif is_text(kind) or is_number(kind):
        values = _seconds_or_iso(column)
    values[out_of_years(values)] = np.nan
    return values


def formats_of(value: pa.Scalar) -> tuple[str, ...]:
    """Return the formats of a value that is not clearly in seconds."""
    plain = display_bytes(value).decode("ascii", "replace")
    return formats_of_digits(plain) if plain.isascii() and plain.isdigit() else _of_number(plain)


def formats_of_all(column: pa.Array, *, of_calendar: bool) -> tuple[str, ...]:
    """Return the formats of values that are all dates of few digits, or days; see `formats_of_few_digits`.

    One such number is seconds, since a log may count them from 0; a whole column of them is not clear.
    """
    if not (is_text(column.type) or is_number(column.type)):
        return ()
    values = _numbers(column)
    numbers = np.unique(values[~np.isnan(values)]).tolist()
    return formats_of_few_digits(numbers, of_calendar=of_calendar)


def _of_unit(numbers: Float64Array, unit: str) -> Float64Array:
    """Return seconds since 1970 of numbers in one of `TIME_UNITS`."""
    if unit in _TICKS:
        return numbers / _TICKS[unit]
    # A day's fraction in 15 digits is off by microseconds: one o'clock must not be of the hour before.
    return np.round((numbers - _FIRST_DAY[unit]) * _DAY_SECONDS, 3)


def _of_number(value: str) -> tuple[str, ...]:
    try:
        number = float(value)
    except ValueError:
        return ()
    return formats_of_digits(number) if np.isfinite(number) else ()


def _numbers(column: pa.Array) -> Float64Array:
    return np.where(null_mask(column), np.nan, parse_number_column(column))


def _seconds_or_iso(column: pa.Array) -> Float64Array:
    values = _numbers(column)
    with np.errstate(invalid="ignore"):
        clear = (values < SMALL) | ((values >= SURELY_SECONDS[0]) & (values < SURELY_SECONDS[1]))
    numbers = ~np.isnan(values)
    for row in np.flatnonzero(numbers & ~clear).tolist():
        if not may_be_seconds(values[row]):
            values[row] = np.nan
    if is_text(column.type):
        for row in np.flatnonzero(~numbers & ~null_mask(column)).tolist():
            values[row] = _parse_time(column[row].as_buffer().to_pybytes())
        for row in np.flatnonzero(_holds(pc.match_substring_regex(column, r"^0[0-9]{7,}$"))).tolist():
            if formats_of(column[row]):
                values[row] = np.nan
    return values


def _texts(column: pa.Array, time_format: str) -> pa.Array:
    """Return numbers as digits, with the zeros that they lost in front."""
    if is_text(column.type):
        return column
    if pa.types.is_floating(column.type):
        # Integers with nulls are floats in a DataFrame of pandas.
        whole = pc.equal(pc.round(column), column)
        column = pc.if_else(pc.fill_null(whole, False), column, None).cast(pa.int64(), safe=False)
    return pc.utf8_lpad(column.cast(pa.string()), digits_width(time_format), "0")


def _by_format(texts: pa.Array, time_format: str) -> Float64Array:
    texts = texts.cast(pa.large_string())
    times = pc.strptime(texts, format=time_format, unit="us", error_is_null=True)
    values = _seconds(times)
    if width := digits_width(time_format):
        # Fewer digits can be read in several ways.
        lengths = pc.fill_null(pc.binary_length(texts), width).to_numpy(zero_copy_only=False)
        values[lengths != width] = np.nan
    if "%Z" in time_format:
        values[~_holds(pc.match_substring_regex(texts, _UTC))] = np.nan
    if "%z" in time_format:
        # The day is that of the text, not that in UTC.
        texts, time_format = pc.replace_substring_regex(texts, _OFFSET, ""), time_format.replace("%z", "")
        times = pc.strptime(texts, format=time_format, unit="us", error_is_null=True)
    values[_is_carried(texts, times, time_format)] = np.nan
    return values


def _is_carried(texts: pa.Array, times: pa.Array, time_format: str) -> Mask:
    """Return bool [n]: which texts have a day or a second too late.

    Arrow carries them over: it reads 30 February as 1 March.
    """
    month, day, second = (
        pc.fill_null(part(times), 0).to_numpy(zero_copy_only=False) for part in (pc.month, pc.day, pc.second)
    )
    carried = ((day <= 3) & np.isin(month, _AFTER_SHORT_MONTHS)) | (second <= 1)
    carried &= _holds(pc.match_substring_regex(texts, _LATE))
    dated = np.flatnonzero(~null_mask(times) & (carried | ("%j" in time_format)))
    mask: Mask = np.zeros(len(texts), np.bool_)
    if len(dated):
        rows = pa.array(dated)
        # A %Z can be written of a zone only.
        zone = "UTC" if "%Z" in time_format else None
        moments = times.take(rows).cast(pa.timestamp("s", zone), safe=False)
        written = pc.strftime(moments, format=time_format)
        originals = texts.take(rows).cast(pa.large_binary()).to_pylist()
        again = written.cast(pa.binary()).to_pylist()
        mask[dated] = [
            _digits(original) != _digits(other) for original, other in zip(originals, again, strict=True)
        ]
    return mask


def _digits(text: bytes) -> list[int]:
    return [int(digits) for digits in re.findall(rb"[0-9]+", text)]


def _holds(answers: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(answers, False).to_numpy(zero_copy_only=False)
    return mask


def _seconds(column: pa.Array) -> Float64Array:
    """Return float64 [n] of times or dates; nanoseconds are cut to microseconds."""
    date = pa.types.is_date32(column.type)
    filled = pc.fill_null(column.view(pa.int32() if date else pa.int64()), 0)
    ticks = filled.to_numpy(zero_copy_only=False)
    unit = "ms" if pa.types.is_date64(column.type) else getattr(column.type, "unit", "day")
    if unit == "ns":
        ticks, unit = ticks // 1000, "us"
    values: Float64Array = ticks * float(_DAY_SECONDS) if unit == "day" else ticks / _TICKS[unit]
    values[null_mask(column)] = np.nan
    return values


def _parse_time(text: bytes) -> float:
    try:
        parsed = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        return float("nan")
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def out_of_years(times: Float64Array) -> Mask:
    """Return bool [n]: which times are NaN or not in years 1 to 9999."""
    return ~((times >= _FIRST_SECOND) & (times < _LAST_SECOND + 1))


def rows_of_time_part(times: Float64Array, part: TimePart) -> IndexArray:
    """Return int64 [n], the row of each time's part.

    `times` are seconds since 1970, in UTC, in the years 1 to 9999. NaN is a missing time, which has the last
    row.
    """
    missing = np.isnan(times)
    seconds = np.floor(np.where(missing, 0.0, times)).astype(np.int64)
    if part == "hour":
        rows = seconds // 3600 % 24
    elif part == "weekday":
        # 1970 began on a Thursday.
        rows = (seconds // _DAY_SECONDS + 3) % 7
    else:
        days = (seconds // _DAY_SECONDS).astype("datetime64[D]")
        months = days.astype("datetime64[M]")
        rows = (days - months).astype(np.int64) if part == "day" else months.astype(np.int64) % 12
    rows[missing] = len(TIME_PARTS[part])
    return rows
