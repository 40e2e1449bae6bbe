"""`[data.columns]`: what the columns of an input file are, by name and in the order of the file.

`[data.split]`: how the rows of `data.path` are parted into training, validation and test.

`[data]`: the input files, what is in them, and how they are read.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from .sections import STRICT
from .tables import TableColumn

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


Part: TypeAlias = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Moment: TypeAlias = str | int | float | None


class SplitSection(BaseModel):
    """Parts of the rows of `data.path`; parts may also be files: `data.validation_path`, `data.eval_path`."""

    model_config = STRICT

    by: Literal["", "fraction", "time"] = Field(
        default="",
        description='"fraction": each row is drawn; "time": the last rows; "": there is no split',
    )
    validation: Part = Field(default=0.0, description="fraction of the rows that training is validated on")
    test: Part = Field(default=0.0, description="fraction of the rows that the model is tested on at the end")
    validation_from: Moment = Field(
        default=None, description="time: validation begins here, as a number or ISO text"
    )
    test_from: Moment = Field(default=None, description="time: the test part begins here")
    progressive: Part = Field(
        default=0.0, description="the last fraction of training: scored before it is trained on"
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0, description="fraction: of the draw; not run.seed, so that seeds are compared on one part"
    )

    @model_validator(mode="after")
    def _consistent(self) -> SplitSection:
        moments = (self.validation_from, self.test_from)
        if not self.by and (self.validation or self.test):
            raise ValueError('data.split.by: "" given; name a way, "fraction" or "time"')
        if self.by != "time" and any(moment is not None for moment in moments):
            raise ValueError('data.split: validation_from and test_from need by = "time"')
        if any(moment is not None for moment in moments) and (self.validation or self.test):
            raise ValueError("data.split: give fractions, or the times at which the parts begin, not both")
        if self.by and not (self.validation or self.test or any(moment is not None for moment in moments)):
            raise ValueError(f'data.split.by: "{self.by}" given without parts; give validation or test')
        if self.validation + self.test >= 1:
            raise ValueError(
                f"data.split: validation {self.validation:g} and test {self.test:g} leave nothing to train on"
            )
        first, second = (None if moment is None else seconds_of(moment) for moment in moments)
        if first is not None and second is not None and first > second:
            raise ValueError(
                "data.split: validation_from is after test_from; validation comes before the test"
            )
        return self


def seconds_of(moment: str | int | float) -> float:
    """A moment as seconds since 1970 (text without a zone is UTC) or, of a number, itself.

    Raises ValueError for text that is no ISO 8601 date or time.
    """
    if not isinstance(moment, str):
        return float(moment)
    try:
        at = datetime.fromisoformat(moment)
    except ValueError as error:
        raise ValueError(f"data.split: {moment!r} is no time; write 2026-03-31T12:00 or a number") from error
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


Positive: TypeAlias = Annotated[int, Field(ge=1)]

_PARTS = (("validation", "validation_path"), ("test", "eval_path"))


class DataSection(BaseModel):
    """The input. Paths are one or more globs, relative to the folder of the job file, or URLs of any file
    system that fsspec knows ("s3://bucket/day-*.csv.gz").

    "csv", "tsv" and, where its columns are not those of Criteo, "parquet" need `columns`. Text may be
    compressed (.gz, .zst). A quoted field may hold the delimiter, but no line break.
    """

    model_config = STRICT

    format: Literal["criteo_tsv", "csv", "tsv", "parquet"] = Field(
        description="what the files are; with `prepared` the folder says it"
    )
    path: Annotated[list[str], Field(min_length=1)] = Field(
        description="what is trained on; with `prepared` the folder says it"
    )
    validation_path: list[str] = Field(default=[], description="for validation while training")
    eval_path: list[str] = Field(default=[], description="the test part, scored at the end")
    prepared: str = Field(
        default="",
        description="a folder of `shadowsync prepare`, or its URL: the rows are read from there, and keys of "
        "[data] and table sizes that are not given are the folder's; parts are handed out as they are, "
        "whatever `span_bytes`",
    )
    columns: dict[str, ColumnSection] = Field(
        default={}, description="the columns by name, in their order; none for Criteo's"
    )
    header: bool = Field(default=True, description="csv, tsv: whether a file's first line names its columns")
    delimiter: Annotated[str, Field(max_length=1, pattern=r"^[ -~\t]?$")] = Field(
        default="", description='csv, tsv: between fields; "" is a comma in csv and a tab in tsv'
    )
    quote: Literal['"', "'", ""] = Field(default='"', description='csv, tsv: around a field; "" is none')
    missing: list[str] = Field(default=[""], description="with columns: the texts that count as missing")
    strip: bool = Field(default=False, description="csv, tsv: take away the blanks around a field")
    split: SplitSection = SplitSection()
    order: Literal["file", "time"] = Field(
        default="file",
        description='"time": in the order of the timestamp column; sorted input is streamed, other input is '
        "sorted in memory",
    )
    sort_limit_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=1 << 30,
        description='order = "time": how many bytes of examples may be sorted in memory, of which it takes '
        "twice as many; the reader reads and sorts all of data.path, and each process that scores a part of "
        "it does so again",
    )
    epochs: Positive = Field(default=1, description="how many times all of it is trained on")
    shuffle_window: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=65_536, description='rows that are shuffled together; 0 for order = "time" unless given'
    )
    max_bad_rows: Annotated[int, Field(ge=0)] = Field(
        default=1_000, description="malformed rows are left out and counted; with more of them the job stops"
    )
    readers: Positive = Field(default=1, description="reader nodes")
    span_bytes: Annotated[int, Field(ge=1 << 16)] = Field(
        default=64 << 20, description="size of the pieces of a file that readers are handed"
    )
    dense_features: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=13, description="without columns: how many numbers, I1, I2, ..."
    )
    categorical_features: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=26, description="without columns: how many ids, C1, C2, ..."
    )
    retain_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=64 << 20, description="memory of a reader for batches that are not confirmed as trained"
    )

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        # Rows that are wanted in the order of time are not shuffled unless that is asked for.
        if isinstance(value, dict) and value.get("order") == "time":
            return {"shuffle_window": 0} | value
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DataSection:
        self._check_columns()
        self._check_parts()
        return self

    def _check_columns(self) -> None:
        if self.columns and self.format == "criteo_tsv":
            raise ValueError('data.columns: given; data.format = "criteo_tsv" has its own, "tsv" takes them')
        if not self.columns and self.format in ("csv", "tsv"):
            raise ValueError(f'[data.columns]: is missing; data.format = "{self.format}" needs it')
        if self.columns:
            check_columns(self.columns, header=self.header or self.format == "parquet")
        if self.quote and self.quote == self.delimiter:
            raise ValueError(f"data.quote: {self.quote!r} is the delimiter too; give another")
        timed = any(column.kind == "timestamp" for column in self.columns.values())
        if self.order == "time" and not timed:
            raise ValueError(
                'data.order: "time" given; it needs a column of kind "timestamp" in data.columns'
            )
        if self.order == "time" and self.readers != 1:
            raise ValueError(f'data.readers: {self.readers} given; data.order = "time" needs 1')

    def _check_parts(self) -> None:
        split = self.split
        for part, key in _PARTS:
            if getattr(self, key) and (getattr(split, part) or getattr(split, f"{part}_from") is not None):
                raise ValueError(f"data.{key}: given, and data.split.{part} too; give one of them")
        if split.by == "time" and self.order != "time":
            raise ValueError('data.split.by: "time" given; it needs data.order = "time"')
        if split.by == "fraction" and self.order == "time":
            raise ValueError('data.split.by: "fraction" given; data.order = "time" needs "time"')
        if split.progressive and (self.spans_shuffled or self.epochs != 1):
            raise ValueError(
                'data.split.progressive: given; it needs data.epochs = 1, and data.order = "time" or '
                "data.shuffle_window = 0"
            )

    @property
    def table_columns(self) -> tuple[TableColumn, ...]:
        """The columns that have a table, in the order in which a model gets their embeddings."""
        if not self.columns:
            return tuple(TableColumn(f"C{index + 1}", "") for index in range(self.categorical_features))
        return tuple(
            TableColumn(name, column.pooling if column.kind == "multi_hot" else "")
            for name, column in self.columns.items()
            if column.kind in ("categorical", "multi_hot")
        )

    @property
    def dense_width(self) -> int:
        """D, the numbers of an example."""
        if not self.columns:
            return self.dense_features
        return sum(column.kind == "dense" for column in self.columns.values())

    @property
    def spans_shuffled(self) -> bool:
        """Whether spans are handed out in an order that is drawn anew in each epoch."""
        return self.shuffle_window > 0 and self.order == "file"
