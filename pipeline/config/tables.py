"""The embedding tables of a job: what holds for all of them, and the sections that change it for one.

The section of a job file on the embedding nodes.

The section of a job file on the model.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, Field, JsonValue

from .sections import STRICT, Fraction, Positive, Rate, Section

RowOptimizerName: TypeAlias = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
RowStorageName: TypeAlias = Literal["float32", "bfloat16"]
TableRows: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]
TableDim: TypeAlias = Annotated[int, Field(ge=1, le=4096)]
RowRate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TableSection(BaseModel):
    """`[tables.NAME]`: one table that differs from the others. A key that is not given stays that of all:
    `model.table_rows`, `model.embedding_dim`, `embedding.optimizer`, `.lr`, `.init_scale`, `.storage`."""

    model_config = STRICT

    rows: TableRows | None = Field(default=None, description="rows of this table")
    dim: TableDim | None = Field(default=None, description="floats in a row of this table")
    optimizer: RowOptimizerName | None = Field(default=None, description="optimizer of this table's rows")
    lr: RowRate | None = Field(default=None, description="learning rate of this table's rows")
    init_scale: RowRate | None = Field(
        default=None, description="first values are uniform in `[-init_scale, init_scale)`"
    )
    storage: RowStorageName | None = Field(default=None, description="of this table's rows in memory")


@dataclass(frozen=True, slots=True)
class TableSettings:
    """One table, with all that is known of it.

    Attributes:
        name: of the column whose values it embeds.
        rows: how many.
        dim: floats in a row.
        pooling: "" where an example has one row; "sum" or "mean" where it has a bag of them.
        optimizer: a key of `embedding.optimizers.OPTIMIZERS`.
        lr: the learning rate of its rows, before any schedule.
        init_scale: first values are uniform in [-init_scale, init_scale).
        storage: how a node keeps its rows in memory, "float32" or "bfloat16"; its state is float32 always.
    """

    name: str
    rows: int
    dim: int
    pooling: str
    optimizer: str
    lr: float
    init_scale: float
    storage: str = "float32"


class TableColumn(NamedTuple):
    """A column of the input that has a table: its name, and how a bag of it is pooled ("": no bag)."""

    name: str
    pooling: str


def table_settings(
    columns: Sequence[TableColumn],
    every: TableSettings,
    rows: Sequence[int],
    sections: Mapping[str, TableSection],
) -> tuple[TableSettings, ...]:
    """The tables in the order of `columns`.

    Args:
        columns: the columns that have a table.
        every: what holds for tables without a section; its name, rows and pooling are not used.
        rows: for each column, how many rows its table has without a section.
        sections: by the name of a column.
    """
    tables = []
    for column, count in zip(columns, rows, strict=True):
        own = sections.get(column.name, TableSection())
        tables.append(
            TableSettings(
                name=column.name,
                rows=count if own.rows is None else own.rows,
                dim=every.dim if own.dim is None else own.dim,
                pooling=column.pooling,
                optimizer=every.optimizer if own.optimizer is None else own.optimizer,
                lr=every.lr if own.lr is None else own.lr,
                init_scale=every.init_scale if own.init_scale is None else own.init_scale,
                storage=every.storage if own.storage is None else own.storage,
            )
        )
    return tuple(tables)


def require_known(sections: Mapping[str, TableSection], columns: Sequence[TableColumn]) -> None:
    """Raises ValueError for the section of a table that there is not, with the nearest name."""
    known = [column.name for column in columns]
    for name in sections:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            hint = f"did you mean {close[0]!r}?" if close else f"the tables are {some}"
            raise ValueError(f"tables.{name}: no table of that name; {hint}")


class EmbeddingSection(Section):
    """The nodes that hold the tables, and the optimizer of the rows; see `[tables.NAME]` for one table."""

    nodes: Positive = Field(default=1, description="How many; the tables are split over them.")
    optimizer: RowOptimizerName = Field(
        default="rowwise_adagrad",
        description="Of the rows: `rowwise_adagrad` keeps one number a row, `adagrad` one for each float, "
        "`adam` two for each float and the count of a row's own steps (lazy: rows without a gradient stay).",
    )
    lr: Rate = Field(default=0.02, description="Learning rate of the rows.")
    init_scale: Rate = Field(
        default=0.05, description="First values are uniform in `[-init_scale, init_scale)`."
    )
    storage: RowStorageName = Field(
        default="float32",
        description="Of the rows in a node's memory: `bfloat16` halves them. Steps are taken in float32 and "
        "rounded at random, so that small ones are not lost; optimizer state, messages and checkpoints are "
        "float32.",
    )
    threads: Annotated[int, Field(ge=1, le=256)] = Field(
        default=1,
        description="Of a node, that read and write its rows, each row by one of them. More than one pays on "
        "a host with cores to spare.",
    )
    placement: Literal["measured", "rows"] = Field(
        default="measured",
        description="How the tables are split over several nodes: `measured` reads a sample of the input, "
        "times lookups and updates, and levels what they cost the nodes, where none keeps more than 1.25 "
        "times the mean of the bytes; `rows` levels the bytes, whatever is looked up. A run that goes on "
        "with as many nodes keeps the split of its checkpoint.",
    )
    memory_fraction: Fraction = Field(
        default=0.8, description="Of the memory that is free, how much a node's rows may take."
    )


class ModelSection(Section):
    """The dense model and its tables."""

    name: str = Field(
        default="dlrm",
        description='"dlrm", "wide_deep", "dcn_v2", or yours: "package.module:Class" or "./file.py:Class".',
    )
    embedding_dim: TableDim = Field(default=16, description="Floats in a row of every table.")
    table_rows: TableRows | list[TableRows] = Field(
        default=100_000, description="Rows of every table; or of each, one number a table."
    )
    bottom: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256, 64],
        description="Hidden widths of dlrm's first MLP, over the dense features.",
    )
    top: Annotated[list[Positive], Field(max_length=64)] = Field(
        default=[512, 256], description="Hidden widths of the MLP that ends in the logit."
    )
    options: dict[str, JsonValue] = Field(
        default={},
        description="The model's own: of dlrm `project` (false), for tables of several dimensions; of dcn_v2"
        ' `cross_layers` (3), `rank` (0: full) and `structure` ("stacked" or "parallel").',
    )
