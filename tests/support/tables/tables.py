"""Tables for tests, told apart by their names C1, C2, ... as a job without a schema names them."""

from __future__ import annotations

from collections.abc import Sequence

from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings


def make_table(
    name: str = "C1",
    rows: int = 10,
    dim: int = 4,
    *,
    pooling: str = "",
    optimizer: str = "sgd",
    lr: float = 0.1,
    init_scale: float = 0.05,
    storage: str = "float32",
    growth: Growth | None = None,
    columns: Sequence[TableColumn] = (),
    weight_decay: float = 0.0,
) -> TableSettings:
    """One table, by default of one column of its name with this pooling."""
    columns = tuple(columns) or (TableColumn(name, pooling),)
    return TableSettings(name, rows, dim, optimizer, lr, init_scale, storage, growth, columns, weight_decay)


def make_tables(
    rows: Sequence[int], dim: int = 4, *, optimizer: str = "sgd", lr: float = 0.1, init_scale: float = 0.05
) -> tuple[TableSettings, ...]:
    """Tables that differ in nothing but their rows, one row an example."""
    return tuple(
        make_table(f"C{number}", count, dim, optimizer=optimizer, lr=lr, init_scale=init_scale)
        for number, count in enumerate(rows, start=1)
    )
