"""Checks of `model.attention`: which sequence is weighed by which column."""

from __future__ import annotations

from collections.abc import Sequence

from .columns import suggest
from .tables import ModelSection, TableSettings

_EXAMPLE = '{ history = "item" }'


def check_attention(model: ModelSection, tables: Sequence[TableSettings]) -> None:
    """Raise ValueError unless din, and din alone, has a target for each sequence.

    Args:
        model: the section [model].
        tables: all tables of the job.
    """
    if model.name != "din":
        if model.attention:
            raise ValueError(
                f'model.attention: given; it is for model.name = "din", this is "{model.name}": leave it out'
                " (a model of your own has model.options)"
            )
        return
    by_name = {table.name: table for table in tables}
    sequences = [table.name for table in tables if table.pooling == "none"]
    single = [table.name for table in tables if not table.pooling]
    for name, target in model.attention.items():
        if name not in sequences:
            raise ValueError(f"model.attention: {name!r} {_no_sequence(name, by_name, sequences)}")
        if target not in single:
            known = "has a list of ids" if target in by_name else "is no column with a table"
            raise ValueError(
                f"model.attention.{name}: {target!r} {known}; give a column of one id:"
                f" {suggest(target, single)}"
            )
        if by_name[name].dim != by_name[target].dim:
            raise ValueError(
                f"model.attention.{name}: the tables of {name} and {target} have {by_name[name].dim} and"
                f" {by_name[target].dim} floats in a row; give both the same dim (tables.{name}.dim)"
            )
    for name in sequences:
        if name not in model.attention:
            raise ValueError(
                f'model.attention: column {name} has pooling = "none" and no target; name one, as in'
                f' {_EXAMPLE}, or set data.columns.{name}.pooling to "sum" or "mean"'
            )


def _no_sequence(name: str, known: dict[str, TableSettings], sequences: Sequence[str]) -> str:
    if name in known and known[name].pooling:
        return f'is pooled; set data.columns.{name}.pooling = "none"'
    if not sequences:
        return 'is no sequence; give a multi_hot column pooling = "none"'
    return f"is no sequence; {suggest(name, list(sequences))}"
