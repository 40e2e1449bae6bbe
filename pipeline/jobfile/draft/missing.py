"""Words that stand for a missing value in a sample."""

from __future__ import annotations

from typing import Final

import polars as pl

MISSING_WORDS: Final = ("NULL", "null", "NA", "N/A", "n/a", "NaN", "nan", "None", "none", "?", "\\N", "-")


def missing_words(frame: pl.DataFrame) -> list[str]:
    """Return those words in columns of text that stand for a missing value.

    A word is a value, such as "none" beside "airbag", if some column without it has a single value left, and
    no column of numbers needs it: `data.missing` holds for all columns.
    """
    all_words: set[str] = set()
    values: set[str] = set()
    needed: set[str] = set()
    for name in frame.columns:
        if frame[name].dtype != pl.String:
            continue
        known = frame[name].filter(frame[name] != "")
        is_word = known.is_in(MISSING_WORDS)
        words, rest = set(known.filter(is_word).unique().to_list()), known.filter(~is_word)
        all_words |= words
        if not words or rest.is_empty():
            continue
        if numbers_of(rest) is not None:
            needed |= words
        elif rest.n_unique() == 1:
            values |= words
    return sorted((all_words - values) | needed)


def without_missing_words(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with nulls for missing values.

    These are empty texts, missing words, and numbers that are not finite.
    """
    texts = [name for name in frame.columns if frame[name].dtype == pl.String]
    floats = [name for name in frame.columns if frame[name].dtype.is_float()]
    gone = ["", *missing_words(frame)]
    return frame.with_columns(
        *(pl.when(pl.col(name).is_in(gone).not_()).then(pl.col(name)).alias(name) for name in texts),
        *(pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in floats),
    )


def numbers_of(values: pl.Series) -> pl.Series | None:
    """Return the column as float64; None if some known value is not a number."""
    if values.dtype == pl.Boolean or values.dtype.is_numeric():
        return values.cast(pl.Float64)
    if values.dtype != pl.String:
        return None
    numbers = values.str.strip_chars().cast(pl.Float64, strict=False)
    known = numbers.null_count() == values.null_count() and bool(numbers.drop_nulls().is_finite().all())
    return numbers if known else None
