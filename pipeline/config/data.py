"""`[data.columns]`: what the columns of an input file are, by name and in the order of the file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT

Kind: TypeAlias = Literal["label", "dense", "categorical", "multi_hot", "timestamp", "weight", "ignored"]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Value: TypeAlias = str | int | float | bool

_LABEL_RULES = ("threshold", "positive", "expression")
_OPTIONS: dict[str, tuple[str, ...]] = {
    "label": (*_LABEL_RULES, "negative", "type"),
    "dense": ("transform", "shift", "scale"),
    "multi_hot": ("delimiter", "pooling", "max_ids"),
}


class ColumnSection(BaseModel):
    """One column, `NAME = "dense"` or `NAME = { kind = "dense", ... }`.

    A column of the file may be used again under another name: `hour = { kind = "dense", source = "time" }`.
    """

    model_config = STRICT

    kind: Kind = Field(description="what the column is")
    source: str = Field(default="", description="the column of the file, where it has another name")
    threshold: Finite | None = Field(default=None, description="label: 1 where the number is at least this")
    positive: list[Value] = Field(default=[], description="label: 1 where the value is one of these")
    negative: list[Value] = Field(
        default=[], description="label: with `positive`, 0 where it is one of these, and all else a bad row"
    )
    expression: str = Field(
        default="", description="label: 1 where this SQL expression on the one column is true"
    )
    type: Literal["number", "text"] = Field(default="number", description="label: what `expression` sees")
    transform: Literal["log", "none", "time"] = Field(
        default="log",
        description="dense: sign(y) log(1 + |y|), or y itself, of y = (x - shift) / scale; "
        "time: y of a timestamp's seconds since 1970",
    )
    shift: Finite = Field(default=0.0, description="dense: taken from the number first")
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="dense: the number is then divided by this"
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=8)] = Field(
        default="|", description="multi_hot: between the ids of a text field; Parquet may have lists"
    )
    pooling: Literal["sum", "mean"] = Field(
        default="sum", description="multi_hot: how a bag becomes a vector"
    )
    max_ids: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1000, description="multi_hot: of a longer bag, so many of its first ids are kept"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value


def _check_options(name: str, column: ColumnSection) -> None:
    own = _OPTIONS.get(column.kind, ())
    where = f"data.columns.{name}"
    for option in sorted({option for options in _OPTIONS.values() for option in options} - set(own)):
        if getattr(column, option) != ColumnSection.model_fields[option].default:
            taker = next(kind for kind, options in _OPTIONS.items() if option in options)
            raise ValueError(f'{where}.{option}: given; it is for kind "{taker}", this is "{column.kind}"')
    rules = [rule for rule in _LABEL_RULES if getattr(column, rule) not in (None, [], "")]
    if len(rules) > 1:
        raise ValueError(f"{where}: {' and '.join(rules)} given; a label has one rule")
    if column.negative and not column.positive:
        raise ValueError(f"{where}.negative: given without positive; give both, or positive alone")
    if len({isinstance(value, str) for value in (*column.positive, *column.negative)}) > 1:
        raise ValueError(f"{where}: positive and negative mix texts and numbers; give texts or numbers")


def check_columns(columns: Mapping[str, ColumnSection], *, header: bool) -> None:
    """Raises ValueError, naming the columns, for a schema that no file could fit.

    Args:
        columns: by name, in the order of the file.
        header: whether a file names its own columns; otherwise each entry without `source` is the next one.
    """
    named: dict[str, list[str]] = {}
    for name, column in columns.items():
        if not name or len(name) > 200:
            raise ValueError(f"data.columns: a name of {len(name)} characters; give 1 to 200")
        _check_options(name, column)
        named.setdefault(column.kind, []).append(name)
    labels = named.get("label", [])
    if len(labels) != 1:
        told = f"columns {' and '.join(labels)} are labels" if labels else "no column is a label"
        raise ValueError(f'data.columns: {told}; give exactly one of kind "label"')
    for kind in ("timestamp", "weight"):
        if len(named.get(kind, [])) > 1:
            raise ValueError(
                f"data.columns: {' and '.join(named[kind])} are of kind {kind!r}; give one at most"
            )
    if not named.get("categorical") and not named.get("multi_hot"):
        raise ValueError('data.columns: no column is "categorical" or "multi_hot"; give one at least')
    if header:
        return
    places = [name for name, column in columns.items() if column.source in ("", name)]
    for name, column in columns.items():
        if column.source and column.source not in places:
            raise ValueError(
                f"data.columns.{name}.source: {column.source!r} is no column; "
                f"{suggest(column.source, places)}"
            )


def suggest(name: str, known: list[str]) -> str:
    """The nearest of the known names, or a few of them."""
    close = difflib.get_close_matches(name, known, n=1)
    some = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"did you mean {close[0]!r}?" if close else f"there are {some}"
