"""The history of a model whose query is a sequence of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .columns import ColumnSection
from .model import ModelSection
from .tables import EmbeddedColumn


def histories_of(model: ModelSection, columns: Sequence[EmbeddedColumn]) -> list[str]:
    """Return the names of the query's columns that are sequences; in a checked job there is one."""
    return [column.name for column in columns if column.name in model.query and column.pooling == "none"]


def check_history(
    model: ModelSection, columns: Sequence[EmbeddedColumn], sections: Mapping[str, ColumnSection]
) -> None:
    """Raise ValueError unless a model with a history has one, of its items, and is told its recent end.

    Call it after `check_towers`.

    Args:
        model: the section [model].
        columns: the columns of the job whose ids have rows of a table.
        sections: data.columns.
    """
    if not model.has_history:
        return
    histories = histories_of(model, columns)
    if len(histories) != 1:
        raise ValueError(
            f'model.query: {len(histories)} columns have pooling = "none" ({", ".join(histories) or "none"});'
            f" {model.name} has one history: give one multi_hot column this pooling, others "
            '"sum" or "mean"'
        )
    if len(model.item) > 1:
        raise ValueError(
            f"model.item: {', '.join(model.item)} given; the item of {model.name} is its row alone: give"
            f' {model.item[0]}, or set model.name = "two_tower"'
        )
    (name,), tables = histories, {column.name: column.table.name for column in columns}
    if tables[name] != tables[model.item[0]]:
        item, of_item = model.item[0], tables[model.item[0]]
        raise ValueError(
            f"data.columns.{name}.table: {name} has the table {tables[name]}, and the item {item} the table"
            f' {of_item}; a history is of items: set table = "{of_item}"'
        )
    if sections[name].keep is None:
        raise ValueError(
            f"data.columns.{name}.keep: not given; {model.name} must know which end of a list is the recent"
            ' one: "first" if lists begin with the most recent id, "last" if they end with it'
        )
