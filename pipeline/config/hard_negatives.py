"""The column with each query's hard negatives, of a model of two towers."""

from __future__ import annotations

from collections.abc import Sequence

from .columns import suggest
from .model import ModelSection
from .tables import EmbeddedColumn


def check_hard_negatives(model: ModelSection, columns: Sequence[EmbeddedColumn]) -> None:
    """Raise ValueError unless `model.negatives`, if given, has lists of items, which are ids alone.

    Whether there are towers with items, `check_towers` says.

    Args:
        model: the section [model].
        columns: the columns of the job whose ids have rows of a table.
    """
    name = model.negatives
    if not (name and model.has_towers):
        return
    by_name = {column.name: column for column in columns}
    if name not in by_name:
        known = [column.name for column in columns if column.pooling]
        raise ValueError(f"model.negatives: {name!r} is no column with a table; {suggest(name, known)}")
    for key, names in (("query", model.query), ("item", model.item)):
        if name in names:
            raise ValueError(
                f"model.negatives: column {name} is one of model.{key}, too; it belongs to no tower: leave it"
                " out there, or read it twice, by another column with its source"
            )
    if by_name[name].pooling != "none":
        raise ValueError(
            f'model.negatives: column {name} has no list of vectors; give it kind = "multi_hot" and'
            ' pooling = "none"'
        )
    if len(model.item) > 1:
        raise ValueError(
            f"model.negatives: given, and model.item has {', '.join(model.item[1:])} beside the id; nothing"
            f' says what a negative has there: set model.item = ["{model.item[0]}"], or leave negatives out'
        )
    item = by_name.get(model.item[0]) if model.item else None
    if item is not None and by_name[name].table.name != item.table.name:
        raise ValueError(
            f"data.columns.{name}.table: {name} has the table {by_name[name].table.name}, and the item"
            f' {item.name} the table {item.table.name}; negatives are items: set table = "{item.table.name}"'
        )
