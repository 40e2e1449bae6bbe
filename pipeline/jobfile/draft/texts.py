"""Texts of a sample that are lists, or numbers that no kind reads."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

_LIST_DELIMITERS: Final = ("|", ";", ",", "/", "^", "~", "&", "+", "::", " ")
_LIST_SHARE: Final = 0.2
_SIGNS: Final = r"(?:[$€£¥₹₩₽]|(?i:USD|EUR|GBP|CHF|JPY|CNY|INR|RUB|BRL)\b|R\$|Rs\.?)"
_WEIGHTS_AND_LENGTHS: Final = "kg|g|mg|t|lbs?|oz|km|m|cm|mm|mi|ft|in|ml|l"
_TIMES_AND_SIZES: Final = "mins?|hours?|hrs?|h|s|sec|ms|days?|[kmgt]b|k?w|k"
_UNITS: Final = rf"(?:%|(?i:{_WEIGHTS_AND_LENGTHS}|{_TIMES_AND_SIZES})\b)"
_AMOUNT: Final = rf"^\s*(?:{_SIGNS}\s*[+-]?\d[\d.,' ]*|[+-]?\d[\d.,' ]*\s*(?:{_SIGNS}|{_UNITS}))\s*$"
_THOUSANDS: Final = r"^\s*[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?\s*$"
_NUMERIC: Final = r"^\s*[+-]?\d[\d,]*(?:\.\d+)?\s*$"
# As other languages group digits: 1.234,5, 1 234,5 or 1'234.5.
_GROUPED: Final = r"^\s*[+-]?[1-9]\d{0,2}(?:[.'\x{2019}\x{a0}\x{202f} ]\d{3})+(?:[.,]\d+)?\s*$"
_PLAIN: Final = r"^\s*[+-]?\d+(?:[.,]\d+)?\s*$"
_BRACKETS: Final = r"^\s*[\[({].*[\])}]\s*$"
_MOST: Final = 0.95


def unreadable_number(known: pl.Series) -> str:
    """Say why texts cannot be read as the numbers that they are; else ""."""
    if known.dtype != pl.String or not len(known):
        return ""
    if int(known.str.contains(_AMOUNT).sum()) >= _MOST * len(known):
        return "numbers with a unit"
    return "numbers with thousands separators" if has_thousands(known) or _is_grouped(known) else ""


def _is_grouped(known: pl.Series) -> bool:
    """Return whether numbers have other thousands separators than commas."""
    grouped = known.str.contains(_GROUPED)
    return bool(grouped.any()) and bool((grouped | known.str.contains(_PLAIN)).all())


def has_thousands(known: pl.Series) -> bool:
    """Return whether numbers have commas, each before three digits, as in 1,234."""
    commas = known.filter(known.str.contains(",", literal=True))
    return (
        len(commas) > 0
        and bool(commas.str.contains(_THOUSANDS).all())
        and bool(known.str.contains(_NUMERIC).all())
    )


def is_in_brackets(known: pl.Series) -> bool:
    """Return whether the texts are lists in brackets, such as "['a', 'b']"."""
    return known.dtype == pl.String and len(known) > 0 and bool(known.str.contains(_BRACKETS).all())


def list_delimiter(known: pl.Series) -> str:
    """Return what separates the items of lists; "" if the texts are none.

    Blanks separate items only if nothing else does: they are within items, as in "Drama, Slice of Life".
    """
    if known.dtype != pl.String:
        return ""
    distinct = known.n_unique()
    for candidate in _LIST_DELIMITERS:
        delimiter = f"{candidate} " if _always_before_blank(known, candidate) else candidate
        split = known.str.split(delimiter)
        lists = int((split.list.len() > 1).sum())
        if lists >= _LIST_SHARE * len(split) and split.explode().n_unique() < distinct:
            return delimiter
    return ""


def _always_before_blank(known: pl.Series, delimiter: str) -> bool:
    return delimiter != " " and not known.str.contains(rf"{re.escape(delimiter)}(?:[^ ]|$)").any()
