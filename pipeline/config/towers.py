"""The columns of a model with two towers: of query and item, histories, hard negatives, and a made label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .columns import ColumnSection, suggest
from .model import TOWER_MODELS, ModelSection
from .tables import EmbeddedColumn

# The label of two towers whose job file has none.
_LABEL: Final = "label"


def check_towers(model: ModelSection, columns: Sequence[EmbeddedColumn], dense: Sequence[str]) -> None:
    """Raise ValueError unless a model of two towers, and it alone, has the columns of each.

    Args:
        model: the section [model].
        columns: the columns of the job whose ids have rows of a table.
        dense: names of the dense features.
    """
    if not model.has_towers:
        for key in ("query", "item", "negatives"):
            if getattr(model, key):
                raise ValueError(
                    f'model.{key}: given; it is for model.name = "two_tower" or "sequence", this is'
                    f' "{model.name}": leave it out'
                )
        return
    by_name = {column.name: column for column in columns}
    known = [*dense, *by_name]
    for key, names in (("query", model.query), ("item", model.item)):
        if not names:
            raise ValueError(f"model.{key}: no columns given; give those of the {key}: {suggest('', known)}")
        for name in names:
            if name not in known:
                raise ValueError(
                    f"model.{key}: {name!r} is no column that a model sees; {suggest(name, known)}"
                )
            if name in by_name and by_name[name].pooling == "none" and not model.has_history:
                raise ValueError(
                    f'model.{key}: column {name} has pooling = "none", and {model.name} takes no sequences:'
                    ' set "sum" or "mean"'
                )
    both = [*model.query, *model.item]
    for name in known:
        if both.count(name) != 1 and name != model.negatives:
            raise ValueError(
                f"model.query, model.item: column {name} is named {both.count(name)} times; each column"
                " belongs to one tower"
            )
    identity = model.item[0]
    if identity not in by_name or by_name[identity].pooling:
        raise ValueError(
            f"model.item: {identity!r} is the first column, and no column of one id with a table; name the"
            " item's id first"
        )


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


def label_of_towers(model: Any, columns: Any) -> dict[str, Any]:
    """Return a column whose label is 1 wherever there is an item, for two towers without a label.

    It is read from the column of the file that has the item's id, so a row without an item is malformed.

    Args:
        model: the section [model] of a job file, as it is.
        columns: its [data.columns], as they are.

    Returns {} for another model, if a column is a label already, and for what is no job.
    """
    if not (isinstance(model, dict) and isinstance(columns, dict) and model.get("name") in TOWER_MODELS):
        return {}
    items = model.get("item")
    first = items[0] if isinstance(items, list) and items else None
    sections = {
        name: {"kind": column} if isinstance(column, str) else column for name, column in columns.items()
    }
    if first not in sections or not all(isinstance(section, dict) for section in sections.values()):
        return {}
    if _LABEL in sections or any(section.get("kind") == "label" for section in sections.values()):
        return {}
    # A cross is made of other columns.
    source = sections[first].get("source") or (sections[first].get("columns") or [first])[0]
    return {_LABEL: {"kind": "label", "source": source, "type": "text", "expression": _is_there(source)}}


def has_made_label(model: ModelSection, columns: Mapping[str, ColumnSection]) -> bool:
    """Whether the label of two towers is that of `label_of_towers`, or the same."""
    label = columns.get(_LABEL)
    if label is None or not model.has_towers:
        return False
    item = columns[model.item[0]]
    source = item.source or (item.columns or [model.item[0]])[0]
    return label.source == source and says_whether_there(label)


def says_whether_there(label: ColumnSection) -> bool:
    """Whether a label is 1 wherever its source has a value, as that of `label_of_towers`."""
    return bool(label.source) and label.expression == _is_there(label.source)


def _is_there(source: object) -> str:
    quoted = str(source).replace('"', '""')
    return f'"{quoted}" is not null'
