"""`[data.columns]`: what each column of the input is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from ..types import MAX_LABELS
from .column_kinds import KINDS, LABEL_RULES, ColumnKind, Kind
from .sections import STRICT

Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
Value: TypeAlias = str | int | float | bool
TimePart: TypeAlias = Literal["hour", "weekday", "day", "month"]

TIME_PARTS: Final[dict[str, range]] = {
    "hour": range(24),
    "weekday": range(7),
    "day": range(1, 32),
    "month": range(1, 13),
}
"""Numbers of each part of a time, in UTC; weekday 0 is Monday.

Each has a row of the column's table, in this order, and a missing time the row after them."""

TIME_UNITS: Final = ("s", "ms", "us", "ns", "days", "excel")
"""Formats of times that are numbers: seconds since 1970 or parts of one, days since 1970 or as of Excel."""

_WEEKS: Final = ("%U", "%W", "%V", "%G", "%g")

_EXAMPLE_PART: Final = 'part = "hour"'


class ColumnSection(BaseModel):
    """A column of the examples: a kind, or a table of settings.

    Written `NAME = "dense"` or `NAME = { kind = "dense", ... }`. A column of the file may be used more than
    once, under other names: `hour = { kind = "dense", source = "time" }`. A name with `*`, `?` or `[...]` is
    a pattern, as of file names: `"affinity_*" = "dense"` stands for each column of the files of `data.path`
    that it fits and that has no entry of its own, in the order of the files. The run's job and its models
    have the names.
    """

    model_config = STRICT

    kind: Kind = Field(
        description='What the column is. "ip" is an IP address as text: its ids are the networks that it is'
        " in, of IPv4 the /8, /16 and /24, of IPv6 the /32, /48 and /64, all in one table, whose vectors are"
        " summed. A missing address has none, and a text that is no address makes a bad row."
        ' "group" is what rows are grouped by, such as the user or the session: 64 bits of the hash of its'
        " value travel with each example, for metrics, for a loss of your own and to split by. The model does"
        " not see it, and scoring does not need it."
        ' "row_number" is no column of the file: it is the position of the row in its file, from 0, for a'
        " loss and metrics of your own, see docs/models.md."
    )
    source: str = Field(default="", description="Name of the column in the file, if it differs.")
    table: Annotated[str, Field(max_length=200)] = Field(
        default="",
        description="Columns with a table: the name of the table that has the rows of its ids; if it is left"
        " out, the column's own name. Columns that name one table share its rows, its settings"
        " (`[tables.NAME]`) and its hash, so an id is the same row in all of them:"
        ' `history = { kind = "multi_hot", table = "item" }` beside `item = "categorical"`. Their ids must'
        " be the same: of kind categorical or multi_hot; or of one part of times; or buckets of the same"
        " boundaries; or crosses of columns of the same tables; or ip. Pooling, weights and `max_ids` are"
        " each column's own.",
    )
    threshold: Finite | None = Field(
        default=None, description="label: the label is 1 if the number is at least this."
    )
    positive: list[Value] = Field(
        default=[],
        description="label: the label is 1 if the value is one of these. The same number is the same value,"
        ' whatever carries it: 1, 1.0, "1" and true. A value that cannot be one of them, such as a text where'
        " these are numbers, makes a bad row.",
    )
    negative: list[Value] = Field(
        default=[],
        description="label: with `positive`, the label is 0 if the value is one of these; any other value"
        " makes a bad row.",
    )
    expression: str = Field(
        default="", description="label: the label is 1 if this SQL expression of the column is true."
    )
    type: Literal["number", "text"] = Field(
        default="number", description="label: type of the column in `expression`."
    )
    loss_weight: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = Field(
        default=1.0,
        description="label, of several: factor of this label's mean loss in the sum that training minimizes.",
    )
    transform: Literal["log", "none", "time"] = Field(
        default="log",
        description="dense: with y = (x - shift) / scale, `log` gives sign(y) log(1 + |y|) and `none` gives"
        " y; `time` gives y with x a timestamp in seconds since 1970.",
    )
    part: TimePart | None = Field(
        default=None,
        description="categorical: the id is this part of a timestamp, in UTC: hour (0 to 23), weekday (0 is"
        " Monday), day (of the month) or month. The table has a row for each, and one for a missing time:"
        " 25, 8, 32 or 13 rows.",
    )
    format: str = Field(
        default="",
        description='timestamp, categorical with a `part`, and dense with transform "time": format of the'
        ' times, as in "%d/%m/%Y %H:%M" (see strftime; a year of two digits is one of 1969 to 2068, and %Z'
        ' reads UTC and GMT, as %z reads offsets); "s", "ms", "us", "ns" or "days" for numbers since 1970;'
        ' "excel" for days as spreadsheets count them (45292.5 is noon of 1 January 2024). Without it times'
        " are ISO 8601, or numbers in seconds; digits that may as well be a date, such as 20240101, are then"
        " refused, and for a `part` numbers of which none is after 1972.",
    )
    shift: Finite = Field(default=0.0, description="dense: subtracted from the number first.")
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="dense: the number is then divided by this."
    )
    boundaries: list[Finite] = Field(
        default=[],
        description="bucket: rising numbers. A number's id is how many of them are at most the number, so"
        " [18, 25] makes three: below 18, from 18 on, from 25 on. A missing number has an id of its own.",
    )
    quantiles: Annotated[int, Field(ge=2, le=1000)] | None = Field(
        default=None,
        description="bucket: without boundaries they are quantiles that cut a sample of the training part"
        " into this many buckets, or fewer where values repeat. The run's job has them.",
    )
    columns: list[str] = Field(
        default=[],
        description="cross: two or more other entries of kind categorical or bucket. Each combination of"
        " their values is an id.",
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=8)] = Field(
        default="|", description="multi_hot: separator of the ids in a text field; Parquet may have lists."
    )
    pooling: Literal["sum", "mean", "none"] = Field(
        default="sum",
        description='multi_hot: how the vectors of a bag are combined into one; "none" leaves them as a'
        " sequence, in the order of the list, for a model that takes sequences (din, or your own).",
    )
    max_ids: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1000,
        description="multi_hot: only so many ids of a longer bag are used, the first ones unless `keep` says"
        " otherwise.",
    )
    keep: Literal["first", "last"] | None = Field(
        default=None,
        description="multi_hot: which ids of a bag with more than `max_ids` are used; the first ones if it is"
        ' left out. Of a history it is the recent end, and the model `sequence` needs it: "first" if lists'
        ' begin with the most recent id, "last" if they end with it.',
    )
    weights: str = Field(
        default="",
        description="multi_hot: column of the file with a number for each id, as a list or as text with the"
        " same delimiter. The sum of a bag is then that of w v, and the mean is it divided by the sum of w;"
        " zeros if all w are 0. A weight below 0, or a list of another length than that of the ids, makes"
        " a bad row.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def of_kind(self) -> ColumnKind:
        """What all columns of its kind have in common."""
        return KINDS[self.kind]

    @property
    def fixed_rows(self) -> int | None:
        """Rows of its table, if the column determines them; otherwise None.

        Such a column gives each value a row of its own, without a hash.
        """
        if "boundaries" in self.of_kind.options:
            return (len(self.boundaries) or (self.quantiles or 1) - 1) + 2
        return len(TIME_PARTS[self.part]) + 1 if self.part else None

    @property
    def table_pooling(self) -> str:
        """How the rows of an example are combined, see `TableColumn.pooling`."""
        if not self.of_kind.has_bag:
            return ""
        return f"weighted_{self.pooling}" if self.weights else self.pooling

    @property
    def has_times(self) -> bool:
        """Whether the values in the file are times."""
        return self.of_kind.stored_as == "timestamp" or self.transform == "time" or self.part is not None


def _check_options(name: str, column: ColumnSection) -> None:
    allowed = column.of_kind.options
    where = f"data.columns.{name}"
    for option in sorted({option for kind in KINDS.values() for option in kind.options} - set(allowed)):
        if getattr(column, option) != ColumnSection.model_fields[option].default:
            owner = next(owner for owner, kind in KINDS.items() if option in kind.options)
            raise ValueError(f'{where}.{option}: given; it is for kind "{owner}", this is "{column.kind}"')
    if "boundaries" in allowed:
        _check_boundaries(where, column)
    if column.weights and column.pooling == "none":
        raise ValueError(
            f'{where}.weights: given; pooling = "none" has no weights: leave them out, or pool by "sum" or'
            ' "mean"'
        )
    if column.source and not column.of_kind.in_file:
        made_of = "the entries in columns" if column.kind == "cross" else "no column of the file"
        raise ValueError(f"{where}.source: given; a {column.kind} is made of {made_of}")
    if column.format:
        _check_format(name, column)
    rules = [rule for rule in LABEL_RULES if getattr(column, rule) not in (None, [], "")]
    if len(rules) > 1:
        raise ValueError(f"{where}: {' and '.join(rules)} given; a label has one rule")
    if column.negative and not column.positive:
        raise ValueError(f"{where}.negative: given without positive; give both, or positive alone")
    if len({isinstance(value, str) for value in (*column.positive, *column.negative)}) > 1:
        raise ValueError(f"{where}: positive and negative mix texts and numbers; give texts or numbers")


def _check_boundaries(where: str, column: ColumnSection) -> None:
    if not column.boundaries and column.quantiles is None:
        raise ValueError(f"{where}: no boundaries given; give boundaries, as in [18, 25, 35], or quantiles")
    for before, after in pairwise(column.boundaries):
        if after <= before:
            raise ValueError(f"{where}.boundaries: {after:g} after {before:g}; give rising numbers")


def check_labels(labels: Mapping[str, ColumnSection]) -> None:
    """Raise ValueError, which names the columns, for labels that no job can have.

    `labels` are the columns of kind "label" by name, the headline first.
    """
    if not 1 <= len(labels) <= MAX_LABELS:
        problem = f"{len(labels)} columns are labels" if labels else "no column is a label"
        raise ValueError(f'data.columns: {problem}; give 1 to {MAX_LABELS} of kind "label"')
    if len(labels) == 1:
        (name,) = labels
        if labels[name].loss_weight != 1.0:
            raise ValueError(
                f"data.columns.{name}.loss_weight: given; it is for several labels, this is the only one"
            )
        return
    if not any(column.loss_weight for column in labels.values()):
        raise ValueError("data.columns: the loss_weight of every label is 0; give one label more")
    known: dict[str, str] = {}
    for name, column in labels.items():
        rule = {"source": column.source or name, "loss_weight": 1.0}
        same = known.setdefault(column.model_copy(update=rule).model_dump_json(), name)
        if same != name:
            raise ValueError(
                f"data.columns: the labels {same} and {name} are the same column by the same rule; drop one"
            )


def _check_cross(name: str, columns: Mapping[str, ColumnSection]) -> None:
    where, parts = f"data.columns.{name}.columns", columns[name].columns
    if len(parts) < 2 or len(set(parts)) < len(parts):
        raise ValueError(f"{where}: {parts} given; give two or more different columns")
    for part in parts:
        if part not in columns:
            raise ValueError(f"{where}: {part!r} is not in data.columns; {suggest(part, list(columns))}")
        if not (columns[part].of_kind.has_id and columns[part].of_kind.in_file):
            raise ValueError(
                f'{where}: {part!r} is of kind "{columns[part].kind}"; give columns of kind "categorical" or'
                ' "bucket"'
            )


def table_of(name: str, columns: Mapping[str, ColumnSection]) -> str:
    """Return the name of the table that has the rows of a column's ids."""
    return columns[name].table or name


def _id_space(name: str, columns: Mapping[str, ColumnSection]) -> str:
    """Describe what the ids of a column are; columns of one table have equal descriptions."""
    column = columns[name]
    if column.columns:
        return f"combinations of ids of {', '.join(table_of(part, columns) for part in column.columns)}"
    if column.part:
        return f"the {column.part} of a time"
    if column.boundaries:
        return f"buckets of boundaries {', '.join(f'{number:g}' for number in column.boundaries)}"
    if column.quantiles:
        return f"{column.quantiles} buckets of quantiles of {column.source or name}"
    return column.of_kind.id_space


def _check_tables(columns: Mapping[str, ColumnSection]) -> None:
    """Raise ValueError for columns of one table whose ids do not go together."""
    first: dict[str, str] = {}
    for name in (name for name, column in columns.items() if column.of_kind.has_table):
        table = table_of(name, columns)
        before = first.setdefault(table, name)
        spaces = _id_space(before, columns), _id_space(name, columns)
        if spaces[0] != spaces[1]:
            raise ValueError(
                f"data.columns: {before} and {name} have one table, {table}, and ids that do not go together:"
                f" {spaces[0]}, and {spaces[1]}; give one of them another name as table"
            )


def _check_format(name: str, column: ColumnSection) -> None:
    where = f"data.columns.{name}.format"
    if "transform" in column.of_kind.options and column.transform != "time":
        raise ValueError(f'{where}: given; it is for transform "time", this is "{column.transform}"')
    if "part" in column.of_kind.options and not column.part:
        raise ValueError(f"{where}: given without a part; give part, such as {_EXAMPLE_PART}")
    if column.format in TIME_UNITS:
        return
    if week := next((week for week in _WEEKS if week in column.format), ""):
        raise ValueError(f"{where}: {column.format!r} has {week}; weeks are not read, give a month and a day")
    if not any(year in column.format for year in ("%Y", "%y", "%D", "%F", "%s")):
        raise ValueError(f"{where}: {column.format!r} has no year; write it as in %Y-%m-%d %H:%M")
    # With %H Arrow reads %p and ignores it.
    if ("%p" in column.format) != ("%I" in column.format):
        raise ValueError(
            f"{where}: {column.format!r} given; %p and %I go together, as in %I:%M %p, or use %H"
        )
    if "%f" in column.format:
        raise ValueError(
            f"{where}: {column.format!r} has %f; fractions of seconds are read in ISO 8601, without format"
        )


def check_columns(columns: Mapping[str, ColumnSection], *, header: bool) -> None:
    """Raise ValueError, which names the columns, for a schema that no file could match.

    Args:
        columns: columns by name, in the order of the file.
        header: whether a file names its own columns; otherwise each entry without `source` stands for the
            next column of the file.
    """
    by_kind: dict[str, list[str]] = {}
    for name, column in columns.items():
        if not name or len(name) > 200:
            raise ValueError(f"data.columns: a name of {len(name)} characters; give 1 to 200")
        _check_options(name, column)
        by_kind.setdefault(column.kind, []).append(name)
    check_labels({name: columns[name] for name in by_kind.get("label", [])})
    for kind in (name for name, kind in KINDS.items() if kind.is_single):
        if len(by_kind.get(kind, [])) > 1:
            raise ValueError(
                f"data.columns: {' and '.join(by_kind[kind])} are of kind {kind!r}; give at most one"
            )
    for name, column in columns.items():
        if column.kind == "cross":
            _check_cross(name, columns)
    _check_tables(columns)
    if not any(column.of_kind.has_table for column in columns.values()):
        *others, last = (f'"{name}"' for name, kind in KINDS.items() if kind.has_table and kind.in_file)
        raise ValueError(f"data.columns: no column is {', '.join(others)} or {last}; give at least one")
    if header:
        return
    in_file = places_of(columns)
    for name, column in columns.items():
        for key, used in (("source", column.source), ("weights", column.weights)):
            if used and used not in in_file:
                raise ValueError(
                    f"data.columns.{name}.{key}: {used!r} is not a column; {suggest(used, in_file)}"
                )


def places_of(columns: Mapping[str, ColumnSection]) -> list[str]:
    """Return the columns of a file without a header, in order."""
    return [
        name for name, column in columns.items() if column.of_kind.in_file and column.source in ("", name)
    ]


def column_fault(name: str, names: list[str]) -> str:
    """Say that `name` is missing or repeated in `names`; "" if neither."""
    times = names.count(name)
    if times == 1:
        return ""
    return f"column {name!r} {times} times" if times else f"no column {name!r}; {suggest(name, names)}"


def suggest(name: str, known: list[str]) -> str:
    """Suggest the nearest known name, or list a few of them."""
    close = difflib.get_close_matches(name, known, n=1)
    some = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"did you mean {close[0]!r}?" if close else f"there are {some}"
