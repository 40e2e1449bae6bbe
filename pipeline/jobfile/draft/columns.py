"""What the columns of a sample are, guessed from their names and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import polars as pl

from ...data.columns.kinds.addresses import networks_of
from ...text.format import counted
from ..boundaries import quantile_boundaries
from .entry import DraftColumn, is_flat, is_text, share_missing, toml_value
from .evidence import Labels
from .label import ask_of_label, label_column, label_of
from .missing import numbers_of, without_missing_words
from .names import names_ids, names_quantity, words_of
from .results import ask_of_results
from .sample import InputSample
from .sharing import ask_of_shared_ids
from .tables import draft_table, within_memory
from .texts import has_thousands, is_in_brackets, list_delimiter, unreadable_number
from .times import may_be_seconds, time_column

_LARGEST_NUMBER: Final = 10_000_000
_DECIMAL_COMMA: Final = r"^\s*[+-]?\d+(,\d+)?\s*$"
_FEW: Final = 50
# Texts with a zero in front, such as codes of places: a number would lose it.
_ZERO_FIRST: Final = r"^0\d"
# With a table for each of so many columns a step is slow, and the tables learn the rows by heart.
_WIDE: Final = 200
_BUCKETS: Final = 10
_ADDRESS_WORDS: Final = frozenset(("ip", "ips", "ipv", "addr", "address", "adresse", "direccion", "host"))
# Of texts that are nearly all IP addresses at most so many are something else.
_NO_ADDRESS: Final = 0.05
_STEPS: Final = 0.9
_ALIKE: Final = "rows of one number have like labels, rows of numbers beside it have not"


def draft_columns(sample: InputSample, label: str, positive: Sequence[str] = ()) -> list[DraftColumn]:
    """Guess the columns of a sample, in order.

    `label` is the label's name, or "" to guess it; `positive` are the texts of it that count as 1, or empty.
    Raises JobFileError if the label is missing, or cannot be guessed.
    """
    frame = without_missing_words(sample.frame)
    if has_decimal_commas(frame):
        frame = _with_decimal_points(frame)
    chosen = label_of(frame, label, sample)
    of_label = label_column(frame[chosen], positive)
    if not label:
        of_label = ask_of_label(of_label, frame)
    labels = Labels.of(of_label, frame[chosen])
    columns = [
        of_label if name == chosen else _column(name, frame[name], sample, labels) for name in frame.columns
    ]
    columns = _with_one_time(ask_of_results(columns, frame, chosen, labels))
    columns = within_memory([*columns, *_needed_buckets(columns, frame)])
    return ask_of_shared_ids(columns, frame, sample)


def _with_one_time(columns: Sequence[DraftColumn]) -> list[DraftColumn]:
    """Return the columns with one time: a job has at most one."""
    times = [column.name for column in columns if column.kind == "timestamp"]
    asked = f"does this time order the rows? Then take this line, and take out {times[0]}" if times else ""
    return [
        column.left_out("another time; a job has one", asked) if column.name in times[1:] else column
        for column in columns
    ]


def _needed_buckets(columns: Sequence[DraftColumn], frame: pl.DataFrame) -> list[DraftColumn]:
    """Return a number's buckets if no column has a table, which models need."""
    number = next((column.name for column in columns if column.kind == "dense"), None)
    if number is None or any(column.has_table for column in columns):
        return []
    name, numbers = f"{number}_bucket", numbers_of(frame[number])
    if numbers is None or name in frame.columns:
        return []
    values = numbers.drop_nulls().to_numpy()
    edges = quantile_boundaries(values.astype(np.float32), _BUCKETS) or [float(values.max())]
    boundaries = f"boundaries = {toml_value(edges)}"
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
    if known.dtype != pl.String or not len(known) or has_thousands(known):
        return False
    return bool(known.str.contains(_DECIMAL_COMMA).all()) and bool(known.str.contains(",").any())


def _with_decimal_points(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with numbers in the columns whose numbers have a decimal comma."""
    return frame.with_columns(
        pl.col(name).str.strip_chars().str.replace(",", ".", literal=True).cast(pl.Float64)
        for name in frame.columns
        if _is_decimal_comma(frame[name].drop_nulls())
    )


def _column(name: str, values: pl.Series, sample: InputSample, labels: Labels) -> DraftColumn:
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
    if (time := time_column(name, values)) is not None:
        return replace(time, missing_share=share_missing(values))
    if sample.format == "parquet" and not (is_text(values.dtype) or values.dtype.is_integer()):
        return _fractions(name, values, distinct, sample, labels)
    if distinct == 1:
        return _categorical(name, distinct, sample)
    numbers = None if names_ids(name) else numbers_of(values)
    if numbers is not None and known.dtype == pl.String and known.str.contains(_ZERO_FIRST).any():
        why = "has zeros in front, as codes have: are its values numbers? Then take this line"
        return _categorical(name, distinct, sample).asking(why, _dense(numbers, distinct)[0])
    if numbers is not None:
        return _number(name, numbers, distinct, sample, labels)
    return _text(name, known, distinct, sample)


def _text(name: str, known: pl.Series, distinct: int, sample: InputSample) -> DraftColumn:
    """Guess a column of texts, or of ids."""
    if _is_decimal_comma(known):
        return DraftColumn(name, "", "", "numbers with a decimal comma; other columns have a decimal point")
    single = _single(name, known, distinct, sample)
    if (addresses := _addresses(name, known, single, sample)) is not None:
        return addresses
    if what := unreadable_number(known):
        why = f"{what}, which no kind reads as numbers: write them plainly, as 1234.5, to have them as such"
        return replace(single, why=f"{single.why}; {why}")
    if is_in_brackets(known):
        why = 'lists in brackets, which no kind reads: write them as "a|b", or as lists of Parquet'
        return DraftColumn(name, "", "", why)
    if delimiter := list_delimiter(known):
        ids = known.str.split(delimiter).explode()
        bag = _bag(name, ids, delimiter, f"texts with {delimiter!r} in them", sample)
        return bag.asking("is the whole text one value? Then take this line", '"categorical"')
    return single


def _addresses(name: str, known: pl.Series, single: DraftColumn, sample: InputSample) -> DraftColumn | None:
    """Guess a column of IP addresses; None if most texts are none."""
    if known.dtype != pl.String:
        return None
    networks, has_address, _ = networks_of(known.to_arrow())
    others = len(known) - int(has_address.sum())
    if others > _NO_ADDRESS * len(known):
        return None
    if others:
        why = f"{others:,} of {len(known):,} texts are no IP addresses: skip such rows? Then take this line"
        return single.asking(why, '"ip"')
    if _ADDRESS_WORDS.isdisjoint(words_of(name)):
        return single.asking("are these IP addresses, no versions or codes? Then take this line", '"ip"')
    table = draft_table(name, pl.Series(networks), sample)
    return DraftColumn(name, "ip", '"ip"', f"IP addresses, {known.n_unique():,} values", table)


def _single(name: str, known: pl.Series, distinct: int, sample: InputSample) -> DraftColumn:
    """Guess a column of single ids or texts."""
    column = _categorical(name, distinct, sample)
    if distinct <= 0.95 * len(known) or len(known) < 1000:
        return column
    why = "another value in almost every row: nothing can be learned from it"
    if sample.whole:
        return DraftColumn(name, "", "", why)
    return column.left_out(
        why, "does a value come again in the rows that were not looked at? Then take this line"
    )


def _fractions(
    name: str, values: pl.Series, distinct: int, sample: InputSample, labels: Labels
) -> DraftColumn:
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
    if whole and (names_ids(name) or float(str(known.max())) > _LARGEST_NUMBER):
        of = "a floating-point type" if values.dtype.is_float() else f"type {values.dtype}"
        why = f"ids of {of}, which no kind can read; convert them to integers or texts"
        return DraftColumn(name, "", "", why)
    if distinct == 1:
        return DraftColumn(name, "", "", "always the same where it is not missing")
    if whole and len(sample.frame.columns) <= _WIDE and labels.are_ids(numbers):
        why = f"{_ALIKE}, but of {values.dtype}: are they ids? Then convert them to integers or texts"
        return DraftColumn(name, "dense", *_dense(numbers, distinct)).asking(why)
    return _number(name, numbers, distinct, sample, labels)


def _number(name: str, numbers: pl.Series, distinct: int, sample: InputSample, labels: Labels) -> DraftColumn:
    known = numbers.drop_nulls()
    whole = bool((known == known.floor()).all())
    if whole and _counts_rows(known, distinct):
        return DraftColumn(name, "", "", "the number of the row")
    wide = len(sample.frame.columns) > _WIDE
    dense = DraftColumn(name, "dense", *_dense(numbers, distinct))
    if not whole or (wide and float(str(known.max())) <= _LARGEST_NUMBER):
        return dense
    if (large := float(str(known.max())) > _LARGEST_NUMBER) or distinct <= _FEW:
        return _ids(name, numbers, distinct, sample, large=large)
    counts = names_quantity(name) or " logarithms" in dense.why
    if not counts and labels.are_ids(numbers):
        why = f"{_ALIKE}, as of ids. If the numbers count or measure something, take this line"
        return _categorical(name, distinct, sample).asking(why, dense.setting)
    if counts and not labels.are_ids(numbers):
        return dense
    return dense.asking("are these numbers ids or codes? Then take this line", '"categorical"')


def _counts_rows(known: pl.Series, distinct: int) -> bool:
    """Return whether whole numbers count the rows; runs of rows were looked at."""
    steps = known.diff().drop_nulls()
    return distinct == len(known) and len(steps) > 0 and int((steps == 1).sum()) >= _STEPS * len(steps)


def _ids(name: str, numbers: pl.Series, distinct: int, sample: InputSample, *, large: bool) -> DraftColumn:
    """Guess a column of whole numbers that are few or large, which are ids."""
    column = (
        _single(name, numbers.drop_nulls(), distinct, sample)
        if large
        else _categorical(name, distinct, sample)
    )
    if seconds := may_be_seconds(numbers):
        return column.asking("are these times, counted since 1970? Then take this line", seconds)
    if distinct == 2 or not column.kind:
        return column
    return column.asking(
        "do these numbers count or measure something? Then take this line", _dense(numbers, distinct)[0]
    )


def _dense(numbers: pl.Series, distinct: int) -> tuple[str, str]:
    """Return the setting of a column of numbers, and what is seen of them."""
    known = numbers.drop_nulls()
    whole = bool((known == known.floor()).all())
    values = known.to_numpy()
    low, high, middle = float(values.min()), float(values.max()), float(np.median(values))
    mean, spread = float(values.mean()), float(values.std())
    seen = f"{low:g} to {high:g}, median {middle:g}"
    # A rare count in units of its deviation would be far larger than all other inputs. The logarithm keeps
    # the sign, so a few small codes below 0, such as -1, are no obstacle.
    heavy = -low <= abs(middle) + 1 and high > 20 * (abs(middle) + 1)
    if heavy or (low >= 0 and whole and distinct <= _FEW):
        return '"dense"', f"{seen}: in logarithms"
    text = f'{{ kind = "dense", transform = "none", shift = {mean:.4g}, scale = {max(spread, 1e-6):.4g} }}'
    return text, seen


def _categorical(name: str, distinct: int, sample: InputSample) -> DraftColumn:
    seen = counted(distinct, "value") + (", or none" if distinct == 1 else "")
    table = draft_table(name, sample.frame[name], sample)
    return DraftColumn(name, "categorical", '"categorical"', seen, table)


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
    return DraftColumn(name, "multi_hot", text, why, draft_table(name, ids, sample))
