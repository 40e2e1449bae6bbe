"""Columns whose ids may be those of the same things, so that they could share a table."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Final

import polars as pl

from ...text.format import percent
from .entry import DraftColumn, DraftTable, is_text, toml_key, toml_value
from .sample import InputSample
from .tables import draft_table

# Fewer codes, such as 1 to 5, are alike by chance.
_FEWEST_IDS: Final = 20
_MUCH: Final = 0.5


def ask_of_shared_ids(
    columns: Sequence[DraftColumn], frame: pl.DataFrame, sample: InputSample
) -> list[DraftColumn]:
    """Return the columns, with a question for each whose ids are mostly those of another.

    More than half of the values of each of the two are ids of the other. A list asks whether it is one of the
    ids of a single column; of two alike the later one asks.
    """
    ids = {column.name: _ids_of(column, frame) for column in columns if _has_many_ids(column)}
    by_kind = sorted((c for c in columns if c.name in ids), key=lambda column: column.kind == "multi_hot")
    owners: list[DraftColumn] = []
    asking: dict[str, DraftColumn] = {}
    for column in by_kind:
        for owner in owners:
            share, owner_share = _overlap(ids[column.name], ids[owner.name])
            if min(share, owner_share) > _MUCH:
                both = pl.concat([ids[owner.name], ids[column.name]])
                asking[column.name] = _asked(
                    column, owner, share, owner_share, draft_table(owner.name, both, sample)
                )
                break
        else:
            owners.append(column)
    return [asking.get(column.name, column) for column in columns]


def _has_many_ids(column: DraftColumn) -> bool:
    return (
        column.kind in ("categorical", "multi_hot")
        and column.table is not None
        and column.table.ids >= _FEWEST_IDS
    )


def _ids_of(column: DraftColumn, frame: pl.DataFrame) -> pl.Series:
    """Return the ids of a column, those of lists one after the other, as bytes or as integers."""
    values = frame[column.name].drop_nulls()
    if isinstance(values.dtype, pl.List):
        values = values.explode()
    elif column.kind == "multi_hot":
        section = tomllib.loads(f"column = {column.setting}")["column"]
        values = values.cast(pl.String).str.split(section.get("delimiter", "|")).explode()
    values = values.cast(pl.Binary if is_text(values.dtype) else pl.Int64, strict=False).drop_nulls()
    return values.filter(values.bin.size() > 0) if values.dtype == pl.Binary else values


def _overlap(first: pl.Series, second: pl.Series) -> tuple[float, float]:
    """Return the share of each column's values that are ids of the other; 0 for ids of two types."""
    if first.dtype != second.dtype or not len(first) or not len(second):
        return 0.0, 0.0
    shares = first.is_in(second.unique().implode()).mean(), second.is_in(first.unique().implode()).mean()
    return float(shares[0] or 0.0), float(shares[1] or 0.0)  # type: ignore[arg-type]


def _asked(
    column: DraftColumn, owner: DraftColumn, share: float, owner_share: float, table: DraftTable
) -> DraftColumn:
    owner_key, key = toml_key(owner.name), toml_key(column.name)
    rows = ""
    if owner.table is not None and (table.growing, table.rows) != (owner.table.growing, owner.table.rows):
        kind = 'kind = "growing" and ' if table.growing and not owner.table.growing else ""
        rows = f", give [tables.{owner_key}] {kind}rows = {table.rows},"
    text = (
        f"{percent(share, 0)} of its values are ids of {owner.name}, and {percent(owner_share, 0)} of the"
        f" values of {owner.name} are ids of it: are these the same things, which should share a table? Then"
        f" take out [tables.{key}]{rows} and take this line"
    )
    shared = f"table = {toml_value(owner.name)}"
    setting = (
        f'{{ kind = "categorical", {shared} }}'
        if column.setting == '"categorical"'
        else f"{column.setting.rstrip('} ')}, {shared} }}"
    )
    return column.asking(text, setting)
