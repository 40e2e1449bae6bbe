"""Columns of a sample that may be results, as the label is.

A model that sees them knows the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl

from .entry import DraftColumn
from .evidence import Labels
from .missing import numbers_of
from .names import names_outcome

# So many columns of 0 and 1 are properties, one for each of a list.
_MOST_ASKED: Final = 8
_WHY: Final = {
    "decides": "it tells the label almost by itself",
    "one": "one of its two values always goes with the same label",
    "outcome": "its name is one of a result, as the label is",
}


def ask_of_results(
    columns: Sequence[DraftColumn], frame: pl.DataFrame, label: str, labels: Labels
) -> list[DraftColumn]:
    """Leave out columns that are probably results; ask about those that may be.

    If nothing would be left to learn from, they stay in.
    """
    findings = {column.name: _finding(column, frame[column.name], labels) for column in columns}
    decided = [_without(column, label, findings[column.name]) for column in columns]
    if not any(column.is_input for column in decided):
        decided = list(columns)
    flags = [column for column in decided if column.is_input and _is_flag(frame[column.name])]
    asked = {column.name for column in flags if len(flags) <= _MOST_ASKED}
    return [_asked(column, label, findings[column.name], flag=column.name in asked) for column in decided]


def _finding(column: DraftColumn, values: pl.Series, labels: Labels) -> str:
    if not column.is_input or isinstance(values.dtype, pl.List):
        return ""
    if values.drop_nulls().n_unique() == 2 and names_outcome(column.name):
        return "outcome"
    return labels.tells(values)


def _without(column: DraftColumn, label: str, finding: str) -> DraftColumn:
    if finding not in _WHY:
        return column
    return column.left_out(_WHY[finding], f"is it known before {label} is? Then take this line")


def _asked(column: DraftColumn, label: str, finding: str, *, flag: bool) -> DraftColumn:
    if not column.is_input:
        return column
    if finding:
        return column.asking(
            f"is it known before {label} is? It tells most of it by itself; if not, take this line",
            '"ignored"',
        )
    if flag:
        return column.asking(
            f"is it a result, as {label} is, and known no earlier? Then take this line", '"ignored"'
        )
    return column


def _is_flag(values: pl.Series) -> bool:
    """Return whether the values are 0 and 1, or true and false."""
    if values.dtype == pl.Binary or isinstance(values.dtype, pl.List):
        return False
    numbers = numbers_of(values)
    if numbers is not None:
        return set(numbers.drop_nulls().unique().to_list()) == {0.0, 1.0}
    texts = values.drop_nulls().cast(pl.String, strict=False).str.to_lowercase().unique().to_list()
    return set(texts) in ({"true", "false"}, {"t", "f"}, {"yes", "no"}, {"y", "n"})
