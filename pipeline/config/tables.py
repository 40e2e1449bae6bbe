"""`[tables.NAME]`: the tables, and the columns whose ids have their rows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from ..text.sizes import SIZE_HINT, parse_size
from .row_bytes import DIRECTORY_BYTES, TIME_BYTES, row_bytes
from .sections import STRICT

RowOptimizerName: TypeAlias = Literal["sgd", "rowwise_adagrad", "adagrad", "adam"]
RowStorageName: TypeAlias = Literal["float32", "bfloat16"]
RowsSetting: TypeAlias = Annotated[int, Field(ge=1, lt=2**31)]
TableDim: TypeAlias = Annotated[int, Field(ge=1, le=4096)]
RowRate: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
RowDecayRate: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _bytes_of(value: Any) -> Any:
    if isinstance(value, float):
        raise PydanticCustomError("size", SIZE_HINT)
    if not isinstance(value, str):
        return value
    try:
        return parse_size(value)
    except ValueError:
        raise PydanticCustomError("size", SIZE_HINT) from None


MemoryBytes: TypeAlias = Annotated[int, Field(ge=0), BeforeValidator(_bytes_of)]
"""A number of bytes, or a size such as "4GiB"."""
DEFAULT_FOLDER: Final = "/var/tmp"
"""The usual folder of large temporary files, which is on a disk: of rows on disk, where none is given."""
TableKind: TypeAlias = Literal["hashed", "growing"]
Eviction: TypeAlias = Literal["least_recent", "never"]

_BAGS_WITHOUT_WEIGHTS: Final = frozenset({"sum", "mean"})


class TableSection(BaseModel):
    """A table whose settings differ from those of the others.

    A table has the name of its column, or that which its columns give as their `table`.

    A key that is left out has the value that holds for all tables: `model.table_rows`, `model.embedding_dim`,
    `embedding.optimizer`, `embedding.lr`, `embedding.weight_decay`, `embedding.init_scale`,
    `embedding.storage` or `embedding.folder`.
    """

    model_config = STRICT

    rows: RowsSetting | None = Field(default=None, description="Rows of this table.")
    dim: TableDim | None = Field(default=None, description="Floats in a row of this table.")
    optimizer: RowOptimizerName | None = Field(default=None, description="Optimizer of this table's rows.")
    lr: RowRate | None = Field(default=None, description="Learning rate of this table's rows.")
    weight_decay: RowDecayRate | None = Field(default=None, description="Weight decay of this table's rows.")
    init_scale: RowRate | None = Field(
        default=None, description="Initial values are uniform in `[-init_scale, init_scale)`."
    )
    storage: RowStorageName | None = Field(
        default=None, description="Type of this table's rows in a node's memory."
    )
    memory_bytes: MemoryBytes | None = Field(
        default=None,
        description="Most bytes of memory for this table's rows on a node, apart from"
        " `embedding.memory_bytes`; 0: all of them are in memory.",
    )
    folder: str | None = Field(
        default=None, description="Folder of this table's file, in place of `embedding.folder`."
    )
    pooled_by: Literal["nodes", "trainers"] = Field(
        default="nodes",
        description='Who sums or averages the rows of a bag without weights. "nodes": the embedding nodes, so'
        " a bag is one vector on the network, of rows as they are when it is looked up; so are then the rows"
        " of other columns that share the table."
        ' "trainers": each row is sent, and `trainer.exact_rows` holds for it.',
    )
    kind: TableKind | None = Field(
        default=None,
        description='"hashed": an id\'s hash is its row, and ids may share one. "growing": each id has a row'
        " of its own, found by 64 bits; it gets the row when it is trained, and may lose it. `rows` are then"
        ' the most rows of the table. If it is left out: "hashed" if `rows` are given, else'
        " `model.table_kind`.",
    )
    max_bytes: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="growing: instead of `rows`: the most bytes that the table may take in memory, over all"
        " nodes, with optimizer state and the search for ids. What `admit_after` counts comes on top: 4 to 16"
        " bytes a row.",
    )
    admit_after: Annotated[int, Field(ge=1, le=255)] = Field(
        default=1,
        description="growing: an id gets a row once so many batches have had it. Before that it has its first"
        " value, and its gradients are left out. Counts may be too high because of other ids (a count-min"
        " sketch), begin again at 0 where a node starts, and are halved from time to time: rare ids of a long"
        " log may never get a row.",
    )
    evict: Eviction = Field(
        default="least_recent",
        description='growing: what happens when all rows are taken: "least_recent" frees those that were not'
        ' trained longest, "never" gives new ids no row.',
    )
    evict_after_batches: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="growing: rows that so many batches of the job did not train are freed; 0: none.",
    )
    evict_after_seconds: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=0.0,
        description="growing: rows that were not trained for so long are freed; 0: none. The time until a run"
        " is resumed does not count. A row takes 4 bytes more.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> TableSection:
        if self.kind == "growing":
            if self.rows is not None and self.max_bytes is not None:
                raise ValueError("max_bytes: given, and rows too; give one of them")
            return self
        for key in ("max_bytes", "admit_after", "evict", "evict_after_batches", "evict_after_seconds"):
            if getattr(self, key) != type(self).model_fields[key].default:
                now = 'is "hashed"' if self.kind else 'states no kind, and may be "hashed"'
                raise ValueError(f'{key}: given; it is for kind = "growing", this table {now}')
        return self

    def growth(self, every: TableKind) -> Growth | None:
        """Return when ids get and lose rows; None for a hashed table.

        `every` is the kind of tables without one and without rows.
        """
        kind = self.kind or ("hashed" if self.rows is not None else every)
        if kind == "hashed":
            return None
        return Growth(self.admit_after, self.evict, self.evict_after_batches, self.evict_after_seconds)


@dataclass(frozen=True, slots=True)
class Growth:
    """When ids of a growing table get and lose rows; see `TableSection`."""

    admit_after: int = 1
    evict: Eviction = "least_recent"
    evict_after_batches: int = 0
    evict_after_seconds: float = 0.0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row beside its floats and their state."""
        return DIRECTORY_BYTES + (TIME_BYTES if self.evict_after_seconds else 0)


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the input whose ids have rows of a table.

    Attributes:
        name: name of the column.
        pooling: "" if an example has one row. Otherwise it has a bag: "sum" or "mean" of its rows;
            "weighted_sum" or "weighted_mean" of its rows with weights; "none" for a sequence of vectors.
        pooled_by_trainers: whether trainers sum the rows of a bag without weights, not embedding nodes.
        place: its place among all such columns, in the order of the model's embeddings.
    """

    name: str
    pooling: str = ""
    pooled_by_trainers: bool = False
    place: int = 0

    @property
    def pooled_by_nodes(self) -> bool:
        """Whether embedding nodes sum the rows of a bag."""
        return self.pooling in _BAGS_WITHOUT_WEIGHTS and not self.pooled_by_trainers

    @property
    def weighted(self) -> bool:
        """Whether the rows of a bag have weights."""
        return self.pooling.startswith("weighted_")


@dataclass(frozen=True, slots=True)
class TableSettings:
    """All settings of one table.

    Attributes:
        name: its name, by default that of its column.
        rows: number of rows; the most of a growing table.
        dim: floats in a row.
        optimizer: a key of `embedding.storage.optimizers.RULES`.
        lr: the learning rate of its rows, before any schedule.
        weight_decay: see `embedding.storage.optimizers.RowDecay`.
        init_scale: initial values are uniform in [-init_scale, init_scale).
        storage: type of the rows in memory, "float32" or "bfloat16"; optimizer state is always float32.
        growth: when ids get and lose rows; None for a table whose rows are hashes of ids.
        columns: the columns whose ids have its rows, in the order of the input.
        memory_bytes: most bytes of memory for its rows on a node, 0 for no limit; None if it shares that of
            the other tables.
        folder: of the file with the others.
    """

    name: str
    rows: int
    dim: int
    optimizer: str
    lr: float
    init_scale: float
    storage: str = "float32"
    growth: Growth | None = None
    columns: tuple[TableColumn, ...] = ()
    weight_decay: float = 0.0
    memory_bytes: int | None = None
    folder: str = ""

    @property
    def summed_columns(self) -> int:
        """Return the number of columns whose bags embedding nodes sum."""
        return sum(column.pooled_by_nodes for column in self.columns)

    @property
    def poolings(self) -> str:
        """Say how its column pools rows, or each of several."""
        if len(self.columns) == 1:
            return self.columns[0].pooling
        return ", ".join(f"{column.name}: {column.pooling or 'one row'}" for column in self.columns)

    @property
    def is_mixed(self) -> bool:
        """Whether nodes sum the bags of some of its columns, and send the rows of others."""
        return 0 < self.summed_columns < len(self.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in memory: floats, optimizer state, search for ids."""
        search = 0 if self.growth is None else self.growth.row_bytes
        return row_bytes(self.optimizer, self.dim, self.storage) + search


class InputColumn(NamedTuple):
    """A column of the input whose ids have rows of a table, as the section [data] states it.

    `pooling` is that of `TableColumn`.
    `fixed_rows` are the table's rows where the column determines them.
    """

    name: str
    table: str
    pooling: str
    fixed_rows: int | None = None


class EmbeddedColumn(NamedTuple):
    """A column of the input, the table that has its rows, and the table's number."""

    of_table: TableColumn
    table: TableSettings
    number: int

    @property
    def name(self) -> str:
        """Return the name of the column."""
        return self.of_table.name

    @property
    def pooling(self) -> str:
        """Return how the rows of an example are combined, see `TableColumn`."""
        return self.of_table.pooling

    @property
    def dim(self) -> int:
        """Return the floats of its vectors."""
        return self.table.dim

    @property
    def grows(self) -> bool:
        """Whether its ids have rows of a growing table."""
        return self.table.growth is not None


def columns_of(tables: Sequence[TableSettings]) -> tuple[EmbeddedColumn, ...]:
    """Return the columns of all tables, in the order of the model's embeddings."""
    columns = [
        EmbeddedColumn(column, table, number)
        for number, table in enumerate(tables)
        for column in table.columns
    ]
    return tuple(sorted(columns, key=lambda column: column.of_table.place))


def table_settings(
    columns: Sequence[InputColumn],
    every: TableSettings,
    rows: Sequence[int],
    sections: Mapping[str, TableSection],
    kind: TableKind,
) -> tuple[TableSettings, ...]:
    """Combine defaults and sections into each table's settings, in the order of `table_names`.

    Args:
        columns: the columns whose ids have rows of a table.
        every: settings of tables without a section; its name, rows and columns are not used.
        rows: rows of each table, unless its section states them.
        sections: sections by table name.
        kind: kind of tables whose section states neither kind nor rows.
    """
    tables = []
    for name, count in zip(table_names(columns), rows, strict=True):
        section = sections.get(name, TableSection())
        fixed_rows = next(column.fixed_rows for column in columns if column.table == name)
        table = TableSettings(
            name=name,
            rows=fixed_rows or (count if section.rows is None else section.rows),
            dim=every.dim if section.dim is None else section.dim,
            optimizer=every.optimizer if section.optimizer is None else section.optimizer,
            lr=every.lr if section.lr is None else section.lr,
            weight_decay=every.weight_decay if section.weight_decay is None else section.weight_decay,
            init_scale=every.init_scale if section.init_scale is None else section.init_scale,
            storage=every.storage if section.storage is None else section.storage,
            memory_bytes=section.memory_bytes,
            folder=every.folder if section.folder is None else section.folder,
            growth=None if fixed_rows is not None else section.growth(kind),
            columns=tuple(
                TableColumn(
                    column.name,
                    column.pooling,
                    section.pooled_by == "trainers" and column.pooling in _BAGS_WITHOUT_WEIGHTS,
                    place,
                )
                for place, column in enumerate(columns)
                if column.table == name
            ),
        )
        if section.max_bytes is not None:
            table = replace(table, rows=rows_within(table, section.max_bytes))
        tables.append(table)
    return tuple(tables)


def bytes_in_memory(tables: Iterable[tuple[TableSettings, int]], memory_bytes: int, nodes: int = 1) -> int:
    """Return the most bytes of memory that the rows of tables take; others lie on disk.

    Args:
        tables: each table with the bytes of its rows, over so many embedding nodes.
        memory_bytes: `embedding.memory_bytes`, of a node.
        nodes: number of nodes.
    """
    limits = _limits(tables, memory_bytes, nodes)
    return sum(min(whole, most or whole) for _, whole, most in limits)


def tables_on_disk(
    tables: Iterable[tuple[TableSettings, int]], memory_bytes: int, nodes: int = 1
) -> list[TableSettings]:
    """Return the tables of which rows may lie on disk; the arguments are those of `bytes_in_memory`."""
    limits = _limits(tables, memory_bytes, nodes)
    return [table for some, whole, most in limits if 0 < most < whole for table in some]


def _limits(
    tables: Iterable[tuple[TableSettings, int]], memory_bytes: int, nodes: int
) -> list[tuple[list[TableSettings], int, int]]:
    """Return which tables have a limit together, the bytes of their rows, and the limit; 0 for none."""
    sizes = list(tables)
    shared = [(table, whole) for table, whole in sizes if table.memory_bytes is None]
    together = ([table for table, _ in shared], sum(whole for _, whole in shared), memory_bytes * nodes)
    separate = [
        ([table], whole, table.memory_bytes * nodes)
        for table, whole in sizes
        if table.memory_bytes is not None
    ]
    return [together, *separate]


def table_names(columns: Sequence[InputColumn]) -> list[str]:
    """Return the names of the columns' tables, each once, in the order of their first columns."""
    return list(dict.fromkeys(column.table for column in columns))


def rows_within(table: TableSettings, most_bytes: int) -> int:
    """Return how many rows of a growing table fit so many bytes.

    They are at most 2**31 - 1. Raises ValueError if it is none.
    """
    rows = min(most_bytes // table.row_bytes, 2**31 - 1)
    if not rows:
        raise ValueError(f"tables.{table.name}.max_bytes: {most_bytes} given; a row takes {table.row_bytes}")
    return rows


def require_known(sections: Mapping[str, TableSection], columns: Sequence[InputColumn]) -> None:
    """Raise ValueError, which suggests what would do, for a section that fits no table."""
    known = table_names(columns)
    table_of = {column.name: column.table for column in columns}
    for name, section in sections.items():
        if name not in known and name in table_of:
            raise ValueError(
                f"tables.{name}: there is no table of this name; the ids of column {name} have rows of"
                f" table {table_of[name]} (data.columns.{name}.table): write tables.{table_of[name]}"
            )
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            some = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
            hint = f"did you mean {close[0]!r}?" if close else f"remove its section; the tables are {some}"
            raise ValueError(f"tables.{name}: there is no table of this name; {hint}")
        poolings = {column.pooling for column in columns if column.table == name}
        if section.pooled_by == "trainers" and not poolings & _BAGS_WITHOUT_WEIGHTS:
            raise ValueError(
                f"tables.{name}.pooled_by: given; it is for tables of bags without weights, leave it out here"
            )


def require_fixed_rows(
    columns: Sequence[InputColumn], rows: Sequence[int] | None, sections: Mapping[str, TableSection]
) -> None:
    """Raise ValueError if a table's given rows differ from those of its column.

    `rows` is the list of `model.table_rows`, one number for each table; None if it is not a list.
    """
    names = table_names(columns)
    for column in columns:
        stated = {f"tables.{column.table}.rows": sections.get(column.table, TableSection()).rows}
        stated["model.table_rows"] = None if rows is None else rows[names.index(column.table)]
        for key, value in stated.items():
            if column.fixed_rows is not None and value not in (None, column.fixed_rows):
                raise ValueError(
                    f"{key}: {value} given; the table of column {column.name} has {column.fixed_rows} rows,"
                    f" one for each of its values and one for a missing value"
                )


def require_growable(columns: Sequence[InputColumn], sections: Mapping[str, TableSection]) -> None:
    """Raise ValueError for a growing table of a column that cannot have one."""
    for column in columns:
        growing = sections.get(column.table, TableSection()).kind == "growing"
        if growing and column.fixed_rows is not None:
            raise ValueError(
                f'tables.{column.table}.kind: "growing" given; column {column.name} has a row for each of its'
                " values, so its table cannot grow: leave kind out"
            )
