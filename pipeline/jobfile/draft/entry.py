"""An entry of [data.columns] in a drafted job file, and values as TOML."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import polars as pl

from ...config.column_kinds import KINDS

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class Question(NamedTuple):
    """What the sample does not answer.

    Attributes:
        text: the question, as a sentence.
        line: the other answer, a line of the job file in place of the column's own; "" if it is no such line.
    """

    text: str
    line: str = ""


@dataclass(frozen=True)
class DraftTable:
    """The table of a drafted column.

    Attributes:
        rows: rows of a hashed table; the most of a growing one.
        ids: how many values are expected in all rows.
    """

    rows: int
    growing: bool
    ids: int


@dataclass(frozen=True)
class DraftColumn:
    """A column of the draft.

    Attributes:
        kind: kind as in `ColumnSection`; "" for a column that is left out.
        setting: value of the column in the job file, as TOML.
        why: reason for the guess.
        table: kind and size of the column's table; None where it needs none or has a row for each value.
        missing_share: label, timestamp: share of the rows that have none.
        questions: what is not sure about it, with the other answer.
    """

    name: str
    kind: str
    setting: str
    why: str
    table: DraftTable | None = None
    missing_share: float = 0.0
    questions: tuple[Question, ...] = ()

    def asking(self, text: str, setting: str = "") -> DraftColumn:
        """Return the column with one more question, whose other answer is `setting`."""
        line = f"{toml_key(self.name)} = {setting}" if setting else ""
        return replace(self, questions=(*self.questions, Question(text, line)))

    def left_out(self, why: str, text: str) -> DraftColumn:
        """Return the column left out; the other answer takes it."""
        return DraftColumn(self.name, "", "", why).asking(text, self.setting)

    @property
    def has_table(self) -> bool:
        """Whether the column has a table of embeddings."""
        return bool(self.kind) and KINDS[self.kind].has_table

    @property
    def is_input(self) -> bool:
        """Whether a model sees the column."""
        return bool(self.kind) and KINDS[self.kind].is_input


def toml_value(value: object) -> str:
    """Return a number, a boolean, a text or a list of them as TOML.

    Anything else is written as its text.
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    # TOML refuses the pairs of escapes that JSON has beyond 16 bits, and a delete character as it is.
    known = value if isinstance(value, str | int | float | bool) else str(value)
    return json.dumps(known, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


def plain_name(name: str) -> str:
    """Return a column's name without its type, such as "user_id" of "user_id:token"."""
    return name.partition(":")[0]


def is_flat(values: pl.Series) -> bool:
    """Return whether some kind can read the column's single values."""
    return not isinstance(values.dtype, pl.List | pl.Array | pl.Struct | pl.Duration | pl.Time | pl.Object)


def is_text(kind: pl.DataType) -> bool:
    """Return whether values of this type are texts or bytes."""
    return isinstance(kind, pl.String | pl.Binary)


def share_missing(values: pl.Series) -> float:
    """Return the share of rows without a value."""
    return values.null_count() / len(values)
