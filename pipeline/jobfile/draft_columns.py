"""What the columns of a sample are, guessed from their names and values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..text.format import counted
from .boundaries import quantile_boundaries
from .draft_entry import DraftColumn, is_flat, is_text, plain_name, share_missing, toml_value
from .draft_label import label_column, label_of
from .draft_missing import numbers_of, without_missing_words
from .draft_sample import InputSample

_IDS: Final = re.compile(
    r"(.*[_ .-])?(id|ids|uid|code|key|hash|zip|device|ip|sku|isbn)|.*[a-z]I[dD]|"
    r"(user|item|product|movie|song|ad|advertiser|campaign|banner|creative|site|app|category|brand|store|city)s?"
)
_LARGEST_NUMBER: Final = 10_000_000
_TIMES: Final = re.compile(r".*(time|date|timestamp|_at|_ts|^ts|^at|hour|day)$", re.IGNORECASE)
# Day before month, because the sample cannot tell which is meant if both fit.
_DATES: Final = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y", "%m/%d/%Y")
_FORMATS: Final = (
    *(f"{date}{time}" for date in _DATES for time in (" %H:%M:%S", " %H:%M", "T%H:%M:%S", "")),
    "%y%m%d%H",
    "%Y%m%d%H",
    "%Y%m%d",
)
_ISO: Final = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?$"
_DECIMAL_COMMA: Final = r"^\s*[+-]?\d+(,\d+)?\s*$"
_YEARS: Final = pa.array(range(1990, 2101), pa.int64())
_LIST_DELIMITERS: Final = ("|", ";", " ", ",")
_FEW: Final = 50
# With a table for each of so many columns a step is slow, and the tables learn the rows by heart.
_WIDE: Final = 200
_EPOCH_SECONDS: Final = (500_000_000, 4_000_000_000)
_EPOCH_MILLISECONDS: Final = (500_000_000_000, 4_000_000_000_000)
_BUCKETS: Final = 10
LARGEST_TABLE: Final = 1 << 20


def draft_columns(sample: InputSample, label: str, positive: Sequence[str] = ()) -> list[DraftColumn]:
    """Guess the columns of a sample, in order.

    `label` is the label's name, or "" to guess it; `positive` are the texts of it that count as 1, or empty.
    Raises JobFileError if the label is missing, or cannot be guessed.
    """
    frame = without_missing_words(sample.frame)
    if has_decimal_commas(frame):
        frame = _with_decimal_points(frame)
    chosen = label_of(frame, label, sample)
    found = [
        label_column(frame[name], positive) if name == chosen else _column(name, frame[name], sample)
        for name in frame.columns
    ]
    times = [column.name for column in found if column.kind == "timestamp"]
    # A job has at most one timestamp.
    one_time = [
        DraftColumn(column.name, "", "", "another time; a job has one")
        if column.name in times[1:]
        else column
        for column in found
    ]
    return [*one_time, *_needed_buckets(one_time, frame)]


def _needed_buckets(columns: Sequence[DraftColumn], frame: pl.DataFrame) -> list[DraftColumn]:
    """Return a number's buckets if no column has a table, which models need."""
    number = next((column.name for column in columns if column.kind == "dense"), None)
    if number is None or any(column.has_table for column in columns):
        return []
    name, numbers = f"{number}_bucket", numbers_of(frame[number])
    if numbers is None or name in frame.columns:
        return []
    values = numbers.drop_nulls().to_numpy()
    found = quantile_boundaries(values.astype(np.float32), _BUCKETS) or [float(values.max())]
    boundaries = f"boundaries = {toml_value(found)}"
    setting = f'{{ kind = "bucket", source = {toml_value(number)}, {boundaries} }}'
    return [DraftColumn(name, "bucket", setting, "a model needs a table, and no column has ids")]


def has_decimal_commas(frame: pl.DataFrame) -> bool:
    """Return whether numbers have a decimal comma, and none has a decimal point."""
    known = without_missing_words(frame)
    columns = [known[name].drop_nulls() for name in known.columns]
    points = any(_is_decimal_point(values) for values in columns)
    return not points and any(_is_decimal_comma(values) for values in columns)


def _is_decimal_point(known: pl.Series) -> bool:
    if known.dtype != pl.String:
        return known.dtype.is_float()
    return bool(known.str.contains(r"\.\d").any()) and numbers_of(known) is not None


def _is_decimal_comma(known: pl.Series) -> bool:
    if known.dtype != pl.String or not len(known):
        return False
    return bool(known.str.contains(_DECIMAL_COMMA).all()) and bool(known.str.contains(",").any())


def _with_decimal_points(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with numbers in the columns whose numbers have a decimal comma."""
    return frame.with_columns(
        pl.col(name).str.strip_chars().str.replace(",", ".", literal=True).cast(pl.Float64)
        for name in frame.columns
        if _is_decimal_comma(frame[name].drop_nulls())
    )


def _column(name: str, values: pl.Series, sample: InputSample) -> DraftColumn:
    known = values.drop_nulls()
    if isinstance(values.dtype, pl.List):
        return _bag(name, known.explode().drop_nulls(), "", "lists", sample)
    if not is_flat(values):
        return DraftColumn(name, "", "", f"of type {values.dtype}, which no kind can read")
    distinct = known.n_unique()
    if not name or name.startswith("Unnamed:"):
        return DraftColumn(name, "", "", "without a name, as the index that a data frame writes")
    if distinct < 2 and (not distinct or not values.null_count()):
        return DraftColumn(name, "", "", "always the same" if distinct else "always empty")
    if (time := _time(name, values)) is not None:
        return replace(time, missing_share=share_missing(values))
    if sample.format == "parquet" and not (is_text(values.dtype) or values.dtype.is_integer()):
        return _fractions(name, values, distinct, sample)
    if distinct == 1:
        return _categorical(name, distinct, sample)
    numbers = None if _IDS.fullmatch(plain_name(name)) else numbers_of(values)
    if numbers is not None:
        return _number(name, numbers, distinct, sample)
    if _is_decimal_comma(known):
        return DraftColumn(name, "", "", "numbers with a decimal comma; other columns have a decimal point")
    for delimiter in _LIST_DELIMITERS if known.dtype != pl.Binary else ():
        split = known.cast(pl.String).str.split(delimiter)
        lists = int((split.list.len() > 1).sum())
        if lists >= 0.2 * len(split) and split.explode().n_unique() < distinct:
            return _bag(name, split.explode(), delimiter, f"texts with {delimiter!r} in them", sample)
    if distinct > 0.95 * len(known) and len(known) >= 1000:
        return DraftColumn(name, "", "", "another value in almost every row: nothing can be learned from it")
    return _categorical(name, distinct, sample)


def _time(name: str, values: pl.Series) -> DraftColumn | None:
    if values.dtype.is_temporal():
        return DraftColumn(name, "timestamp", '"timestamp"', f"of type {values.dtype}")
    known, numbers, named = (
        values.drop_nulls(),
        numbers_of(values),
        _TIMES.fullmatch(plain_name(name)) is not None,
    )
    if known.dtype == pl.String and _is_iso(known):
        return DraftColumn(name, "timestamp", '"timestamp"', "times in ISO 8601")
    time_format = _format_of(known) if named or numbers is None else ""
    if named and not time_format and numbers is not None:
        if numbers.drop_nulls().is_between(*_EPOCH_SECONDS).all():
            return DraftColumn(name, "timestamp", '"timestamp"', "seconds since 1970")
        if numbers.drop_nulls().is_between(*_EPOCH_MILLISECONDS).all():
            text = '{ kind = "timestamp", format = "ms" }'
            return DraftColumn(name, "timestamp", text, "milliseconds since 1970")
    elif time_format:
        text = f'{{ kind = "timestamp", format = "{time_format}" }}'
        return DraftColumn(name, "timestamp", text, f"times in the format {time_format}")
    return None


def _is_iso(known: pl.Series) -> bool:
    """Return whether all times have the digits that ISO 8601 requires."""
    return bool(known.str.contains(_ISO).all())


def _format_of(known: pl.Series) -> str:
    if known.dtype != pl.String or not len(known):
        return ""
    # The first rows rule out most formats.
    for time_format in _FORMATS:
        if _has_format(known.head(1000), time_format) and _has_format(known, time_format):
            return time_format
    return ""


def _has_format(known: pl.Series, time_format: str) -> bool:
    # Training parses times with the same function.
    parsed = pc.strptime(known.to_arrow(), format=time_format, unit="s", error_is_null=True)
    return not parsed.null_count and bool(pc.all(pc.is_in(pc.year(parsed), value_set=_YEARS)).as_py())


def _fractions(name: str, values: pl.Series, distinct: int, sample: InputSample) -> DraftColumn:
    """Guess a column of fractions, decimals or booleans, which are no ids.

    A data frame gives whole numbers such a type where some are missing.
    """
    numbers = values.cast(pl.Float64)
    known = numbers.drop_nulls()
    whole = bool((known == known.floor()).all())
    if whole and distinct <= _FEW:
        boundaries = known.unique().sort().to_list()[min(1, distinct - 1) :]
        text = f'{{ kind = "bucket", boundaries = {toml_value([int(value) for value in boundaries])} }}'
        return DraftColumn(name, "bucket", text, f"{counted(distinct, 'value')}, a bucket for each")
    if whole and (_IDS.fullmatch(plain_name(name)) or float(str(known.max())) > _LARGEST_NUMBER):
        of = "a floating-point type" if values.dtype.is_float() else f"type {values.dtype}"
        why = f"ids of {of}, which no kind can read; convert them to integers or texts"
        return DraftColumn(name, "", "", why)
    if distinct == 1:
        return DraftColumn(name, "", "", "always the same where it is not missing")
    return _number(name, numbers, distinct, sample)


def _number(name: str, numbers: pl.Series, distinct: int, sample: InputSample) -> DraftColumn:
    known = numbers.drop_nulls()
    whole = bool((known == known.floor()).all())
    if whole and distinct == len(known) and bool((known.diff().drop_nulls() == 1).all()):
        return DraftColumn(name, "", "", "the number of the row")
    values = known.to_numpy()
    low, high, middle = float(values.min()), float(values.max()), float(np.median(values))
    wide = len(sample.frame.columns) > _WIDE
    if whole and ((distinct <= _FEW and not wide) or high > _LARGEST_NUMBER):
        return _categorical(name, distinct, sample)
    mean, spread = float(values.mean()), float(values.std())
    seen = f"{low:g} to {high:g}, median {middle:g}"
    # A rare count in units of its deviation would be far larger than all other inputs. The logarithm keeps
    # the sign, so a few small codes below 0, such as -1, are no obstacle.
    heavy = -low <= abs(middle) + 1 and high > 20 * (abs(middle) + 1)
    if heavy or (low >= 0 and whole and distinct <= _FEW):
        return DraftColumn(name, "dense", '"dense"', f"{seen}: in logarithms")
    text = f'{{ kind = "dense", transform = "none", shift = {mean:.4g}, scale = {max(spread, 1e-6):.4g} }}'
    return DraftColumn(name, "dense", text, seen)


def _categorical(name: str, distinct: int, sample: InputSample) -> DraftColumn:
    rows = _table_rows(distinct, sample)
    seen = counted(distinct, "value") + (", or none" if distinct == 1 else "")
    return DraftColumn(name, "categorical", '"categorical"', seen, rows)


def _bag(name: str, ids: pl.Series, delimiter: str, seen: str, sample: InputSample) -> DraftColumn:
    distinct = ids.n_unique()
    numbers = numbers_of(ids)
    if not (is_text(ids.dtype) or ids.dtype.is_numeric() or ids.dtype == pl.Null):
        return DraftColumn(name, "", "", f"{seen} of type {ids.dtype}, which no kind can read")
    if numbers is not None and (ids.dtype.is_float() or bool((numbers != numbers.floor()).any())):
        why = f'{seen}, of fractions; for weights of the ids of another list write weights = "{name}" there'
        return DraftColumn(name, "", "", why)
    option = f', delimiter = "{delimiter}"' if delimiter and delimiter != "|" else ""
    text = f'{{ kind = "multi_hot"{option} }}'
    why = f"{seen}, {distinct:,} values"
    return DraftColumn(name, "multi_hot", text, why, _table_rows(distinct, sample))


def _table_rows(distinct: int, sample: InputSample) -> int:
    """Return a power of 2 with room for twice the possible values."""
    seen = len(sample.frame)
    # If most values came only once, further rows will bring new values.
    growth = max(1.0, sample.rows / seen) if distinct > 0.1 * seen else 1.0
    wanted = 2 * distinct * growth
    return min(LARGEST_TABLE, max(16, 1 << int(wanted - 1).bit_length()))
