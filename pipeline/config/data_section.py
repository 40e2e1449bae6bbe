"""`[data]`: the input files, what is in them, and how they are read."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from .data import ColumnSection, check_columns
from .sections import STRICT
from .split_section import SplitSection
from .tables import TableColumn

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
