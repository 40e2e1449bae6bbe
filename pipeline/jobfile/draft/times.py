"""Columns of times in a sample."""

from __future__ import annotations

from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ...config.date_digits import DAYS
from .entry import DraftColumn
from .missing import numbers_of
from .names import names_ids, words_of

_TIME_WORDS: Final = frozenset(
    (
        "at",
        "ts",
        "dt",
        "ds",
        "when",
        "hour",
        "day",
        "datum",
        "zeit",
        "fecha",
        "hora",
        "yyyymmdd",
        "created",
        "updated",
    )
)
_TIME_ENDS: Final = ("time", "date", "timestamp", "hour", "day")
# Day before month, because the sample cannot tell which is meant if both fit.
_DATES: Final = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y", "%m/%d/%Y")
_FORMATS: Final = (
    *(f"{date}{time}" for date in _DATES for time in (" %H:%M:%S", " %H:%M", "T%H:%M:%S", "")),
    "%y%m%d%H",
    "%Y%m%d%H",
    "%Y%m%d",
)
_ISO: Final = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?$"
_YEARS: Final = pa.array(range(1990, 2101), pa.int64())
_DIGITS: Final = ("%Y%m%d", "%Y%m%d%H", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
# Of all values alike: digits of fewer or more are no such times.
_LENGTHS: Final = ((8, 8), (10, 10), (12, 12), (14, 14))
_EPOCH_SECONDS: Final = (500_000_000, 4_000_000_000)
_EPOCH_MILLISECONDS: Final = (500_000_000_000, 4_000_000_000_000)


def time_column(name: str, values: pl.Series) -> DraftColumn | None:
    """Return the column as a time; None if its values are none."""
    if values.dtype.is_temporal():
        return DraftColumn(name, "timestamp", '"timestamp"', f"of type {values.dtype}")
    known, numbers, named = values.drop_nulls(), numbers_of(values), _named_time(name)
    if known.dtype == pl.String and _is_iso(known):
        return DraftColumn(name, "timestamp", '"timestamp"', "times in ISO 8601")
    time_format = _format_of(known, named=named, numeric=numbers is not None, ids=names_ids(name))
    if time_format:
        return _of_format(name, known, time_format)
    if not named or numbers is None:
        return None
    if numbers.drop_nulls().is_between(*_EPOCH_SECONDS).all():
        return DraftColumn(name, "timestamp", '"timestamp"', "seconds since 1970")
    if numbers.drop_nulls().is_between(*_EPOCH_MILLISECONDS).all():
        return DraftColumn(
            name, "timestamp", '{ kind = "timestamp", format = "ms" }', "milliseconds since 1970"
        )
    return _of_days(name, numbers)


def _of_days(name: str, numbers: pl.Series) -> DraftColumn | None:
    """Return the column as a time if its numbers may all be days of our years."""
    for unit, (low, end) in DAYS.items():
        if len(known := numbers.drop_nulls()) and known.is_between(low, end, closed="left").all():
            setting = f'{{ kind = "timestamp", format = "{unit}" }}'
            column = DraftColumn(name, "timestamp", setting, f"days in the format {unit}")
            return column.asking("are these seconds of a log? Then take this line", '"timestamp"')
    return None


def may_be_seconds(numbers: pl.Series) -> str:
    """Return the setting of numbers as times, if they may be some; else ""."""
    known = numbers.drop_nulls()
    if known.is_between(1_000_000_000, 2_200_000_000).all():
        return '"timestamp"'
    if known.is_between(1_000_000_000_000, 2_200_000_000_000).all():
        return '{ kind = "timestamp", format = "ms" }'
    return ""


def _named_time(name: str) -> bool:
    words = words_of(name)
    return bool(words) and (words[-1] in _TIME_WORDS or words[-1].endswith(_TIME_ENDS))


def _of_format(name: str, known: pl.Series, time_format: str) -> DraftColumn:
    text = f'{{ kind = "timestamp", format = "{time_format}" }}'
    column = DraftColumn(name, "timestamp", text, f"times in the format {time_format}")
    other = time_format.replace("%d", "?").replace("%m", "%d").replace("?", "%m")
    if time_format.startswith(("%d", "%m")) and _has_format(known.cast(pl.String), other):
        asked = (
            f"is the day first, or the month? Every value fits {other} too; if that is meant, take this line"
        )
        column = column.asking(asked, text.replace(time_format, other))
    return column


def _is_iso(known: pl.Series) -> bool:
    """Return whether all times have the digits that ISO 8601 requires."""
    return bool(known.str.contains(_ISO).all())


def _format_of(known: pl.Series, *, named: bool, numeric: bool, ids: bool) -> str:
    """Return the format of the times; "" if there is none.

    Digits alone are times in a column of that name. Elsewhere they are only if each is a date of our years,
    and the name is not one of ids.
    """
    if not len(known) or not (known.dtype == pl.String or known.dtype.is_integer()):
        return ""
    formats = _FORMATS if named or not numeric else () if ids else _DIGITS
    texts = known.cast(pl.String)
    if numeric and (texts.str.len_chars().min(), texts.str.len_chars().max()) not in _LENGTHS:
        return ""
    # The first rows rule out most formats.
    for time_format in formats:
        if _has_format(texts.head(1000), time_format) and _has_format(texts, time_format):
            return time_format
    return ""


def _has_format(known: pl.Series, time_format: str) -> bool:
    # Training parses times with the same function.
    parsed = pc.strptime(known.to_arrow(), format=time_format, unit="s", error_is_null=True)
    return not parsed.null_count and bool(pc.all(pc.is_in(pc.year(parsed), value_set=_YEARS)).as_py())
