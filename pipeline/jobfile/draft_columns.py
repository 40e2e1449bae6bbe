"""What the columns of a sample are, guessed from their names and values."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from ..data.bad_rows import printable
from ..errors import JobFileError
from ..text.format import counted, percent
from .draft_missing import numbers_of, without_missing_words
from .draft_sample import InputSample

_LABELS: Final = re.compile(
    r"(is_?)?(label|target|click(s|ed)?|clk|convert(ed)?|conversion|buy|bought|purchase[d]?|like[d]?|y|class|outcome)",
    re.IGNORECASE,
)
_POSITIVE: Final = {
    "1",
    "true",
    "t",
    "yes",
    "y",
    "click",
    "clicked",
    "positive",
    "pos",
    "buy",
    "purchase",
    "like",
}
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
_SHOWN: Final = 5
# With a table for each of so many columns a step is slow, and the tables learn the rows by heart.
_WIDE: Final = 200
_MOST_WITHOUT_LABEL: Final = 0.5
_EPOCH_SECONDS: Final = (500_000_000, 4_000_000_000)
LARGEST_TABLE: Final = 1 << 20


@dataclass(frozen=True)
class DraftColumn:
    """A column of the draft.

    Attributes:
        kind: kind as in `ColumnSection`; "" for a column that is left out.
        setting: value of the column in the job file, as TOML.
        why: reason for the guess.
        table_rows: rows of the column's table; 0 without a table.
        missing_share: label: share of the rows that have none.
    """

    name: str
    kind: str
    setting: str
    why: str
    table_rows: int = 0
    missing_share: float = 0.0


def draft_columns(sample: InputSample, label: str, positive: Sequence[str] = ()) -> list[DraftColumn]:
    """Guess the columns of a sample, in order.

    `label` is the label's name, or "" to guess it; `positive` are the texts of it that count as 1, or empty.
    Raises JobFileError if the label is missing, or cannot be guessed.
    """
    frame = without_missing_words(sample.frame)
    if has_decimal_commas(frame):
        frame = _with_decimal_points(frame)
    chosen = _label_of(frame, label, sample)
    found = [
        _label(frame[name], positive) if name == chosen else _column(name, frame[name], sample)
        for name in frame.columns
    ]
    times = [column.name for column in found if column.kind == "timestamp"]
    # A job has at most one timestamp.
    return [
        DraftColumn(column.name, "", "", "another time; a job has one")
        if column.name in times[1:]
        else column
        for column in found
    ]


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


def _label_of(frame: pl.DataFrame, label: str, sample: InputSample) -> str:
    if label:
        if label in frame.columns:
            return label
        if sample.repeated:
            names = " and ".join(repr(name) for name in sample.repeated)
            raise JobFileError(
                f"the first line has {names} more than once, so it was taken for a row, not for a header",
                remedy="give each column a name of its own",
            )
        raise JobFileError(f"there is no column {label!r}; there are {', '.join(frame.columns)}")
    two = [name for name in frame.columns if _may_be_label(frame[name])]
    named = [name for name in two if _LABELS.fullmatch(_plain(name))]
    for found in (named, two):
        if len(found) == 1:
            return found[0]
    several = f"columns with two values: {', '.join(named or two)}" if two else "no column has two values"
    raise JobFileError(f"the label is not clear ({several})", remedy="name it: --label COLUMN")


def _may_be_label(values: pl.Series) -> bool:
    return (
        _is_flat(values)
        and values.drop_nulls().n_unique() == 2
        and values.null_count() <= _MOST_WITHOUT_LABEL * len(values)
    )


def _plain(name: str) -> str:
    """Return a column's name without its type, such as "user_id" of "user_id:token"."""
    return name.partition(":")[0]


def _is_flat(values: pl.Series) -> bool:
    return not isinstance(values.dtype, pl.List | pl.Array | pl.Struct)


def _label(values: pl.Series, positive: Sequence[str]) -> DraftColumn:
    column = _positive_label(values, positive) if positive else _label_column(values)
    share = values.null_count() / len(values)
    if not share:
        return column
    why = f"{column.why}; {percent(share, 1)} of the rows have none"
    return replace(column, why=why, missing_share=share)


def _positive_label(values: pl.Series, positive: Sequence[str]) -> DraftColumn:
    texts = values.drop_nulls().cast(pl.String)
    if unknown := [value for value in positive if value not in texts]:
        seen = ", ".join(texts.unique().sort().head(_SHOWN).to_list())
        raise JobFileError(
            f"no row has the {values.name} {unknown[0]!r}; there are {seen}", remedy="correct --positive"
        )
    share = _share(texts.is_in(positive).mean())
    setting = f'{{ kind = "label", positive = {json.dumps(list(positive))} }}'
    return DraftColumn(values.name, "label", setting, f"{share} are one of these, all others count as 0")


def _label_column(values: pl.Series) -> DraftColumn:
    known = values.drop_nulls()
    distinct = known.unique().sort().to_list()
    numbers = numbers_of(values)
    if numbers is not None and set(numbers.drop_nulls().unique().to_list()) <= {0.0, 1.0}:
        return DraftColumn(values.name, "label", '"label"', f"{_share(numbers.mean())} are 1")
    if len(distinct) == 2:
        # If neither means yes, the rarer value is probably the one to predict.
        times = {value: int((known == value).sum()) for value in distinct}
        negative, positive = sorted(
            distinct, key=lambda value: (str(value).lower() in _POSITIVE, -times[value])
        )
        text = f'{{ kind = "label", positive = [{_toml(positive)}], negative = [{_toml(negative)}] }}'
        return DraftColumn(values.name, "label", text, f"{_share((known == positive).mean())} are {positive}")
    if numbers is None:
        shown = ", ".join(printable(str(value).encode()) for value in distinct[:_SHOWN])
        raise JobFileError(
            f"the label {values.name!r} has {counted(len(distinct), 'text')} ({shown})",
            remedy="say which of them count as 1: --positive TEXT, once for each",
        )
    middle = numbers.mean()
    assert isinstance(middle, float)
    text = f'{{ kind = "label", threshold = {middle:.6g} }}'
    name = values.name if re.fullmatch(r"[A-Za-z_]\w*", values.name) else f'\\"{values.name}\\"'
    other = f'expression = "{name} > 0"'
    note = f"{len(distinct)} numbers: 1 from their mean on; or {other} in place of threshold; check this"
    return DraftColumn(values.name, "label", text, note)


def _column(name: str, values: pl.Series, sample: InputSample) -> DraftColumn:
    known = values.drop_nulls()
    if isinstance(values.dtype, pl.List):
        return _bag(name, known.explode().drop_nulls(), "", "lists", sample)
    if not _is_flat(values):
        return DraftColumn(name, "", "", f"of type {values.dtype}, which no kind can read")
    distinct = known.n_unique()
    if not name or name.startswith("Unnamed:"):
        return DraftColumn(name, "", "", "without a name, as the index that a data frame writes")
    if distinct < 2 and (not distinct or not values.null_count()):
        return DraftColumn(name, "", "", "always the same" if distinct else "always empty")
    if (time := _time(name, values)) is not None:
        return time
    if sample.format == "parquet" and values.dtype.is_float():
        return _fractions(name, values.cast(pl.Float64), distinct, sample)
    if distinct == 1:
        return _categorical(name, distinct, sample)
    numbers = None if _IDS.fullmatch(_plain(name)) else numbers_of(values)
    if numbers is not None:
        return _number(name, numbers, distinct, sample)
    texts = known.cast(pl.String)
    if _is_decimal_comma(known):
        return DraftColumn(name, "", "", "numbers with a decimal comma; other columns have a decimal point")
    for delimiter in _LIST_DELIMITERS:
        split = texts.str.split(delimiter)
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
        _TIMES.fullmatch(_plain(name)) is not None,
    )
    if known.dtype == pl.String and _is_iso(known):
        return DraftColumn(name, "timestamp", '"timestamp"', "times in ISO 8601")
    time_format = _format_of(known) if named or numbers is None else ""
    if named and not time_format and numbers is not None:
        if numbers.drop_nulls().is_between(*_EPOCH_SECONDS).all():
            return DraftColumn(name, "timestamp", '"timestamp"', "seconds since 1970")
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
    # Training parses times with the same function.
    some = known.head(1000).to_arrow()
    for time_format in _FORMATS:
        parsed = pc.strptime(some, format=time_format, unit="s", error_is_null=True)
        if not parsed.null_count and pc.all(pc.is_in(pc.year(parsed), value_set=_YEARS)).as_py():
            return time_format
    return ""


def _fractions(name: str, numbers: pl.Series, distinct: int, sample: InputSample) -> DraftColumn:
    """Guess a column of a floating-point type, which no table of ids can read.

    A data frame gives whole numbers such a type where some are missing.
    """
    known = numbers.drop_nulls()
    whole = bool((known == known.floor()).all())
    if whole and distinct <= _FEW:
        boundaries = known.unique().sort().to_list()[min(1, distinct - 1) :]
        text = f'{{ kind = "bucket", boundaries = {json.dumps([int(value) for value in boundaries])} }}'
        return DraftColumn(name, "bucket", text, f"{counted(distinct, 'value')}, a bucket for each")
    if whole and (_IDS.fullmatch(_plain(name)) or float(str(known.max())) > _LARGEST_NUMBER):
        why = "ids of a floating-point type, which no kind can read; convert them to integers or texts"
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
    # A rare count in units of its deviation would be far larger than all other inputs.
    if low >= 0 and (high > 20 * (middle + 1) or (whole and distinct <= _FEW)):
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


def _share(mean: object) -> str:
    return percent(float(str(mean)), 1)


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, str | int | float | bool) else json.dumps(str(value))
