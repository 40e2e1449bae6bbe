"""The kinds of columns, without their values.

`pipeline.data.columns.kinds` parses and describes the values of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
    "label",
    "dense",
    "categorical",
    "bucket",
    "cross",
    "multi_hot",
    "ip",
    "timestamp",
    "weight",
    "group",
    "row_number",
    "ignored",
]
StoredAs: TypeAlias = Literal[
    "label", "dense", "categorical", "multi_hot", "timestamp", "weight", "group", ""
]
"""What an example has of a column, as parts of a prepared folder name it; "" for nothing."""

LABEL_RULES: Final = ("threshold", "positive", "expression")


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """What all columns of one kind have in common.

    Attributes:
        stored_as: what an example has of the column: a label, a dense number, a row of its table
            ("categorical"), rows of its table ("multi_hot"), the time, the weight, or 64 bits that no model
            sees ("group").
        options: keys of [data.columns] beside `kind` and `source`.
        in_file: whether the column is read from the file.
        is_input: whether a model needs the column, also to score.
        is_single: whether a job has at most one.
        hashes_values: whether ids are hashes of the values of the file, as texts or integers.
        id_space: what the ids are, in words; columns of one table have the same.
    """

    stored_as: StoredAs
    options: tuple[str, ...] = ()
    in_file: bool = True
    is_input: bool = True
    is_single: bool = False
    hashes_values: bool = False
    id_space: str = "ids by their hash"

    @property
    def is_read(self) -> bool:
        """Whether the column's values are read from the file."""
        return self.in_file and bool(self.stored_as)

    @property
    def has_id(self) -> bool:
        """Whether an example has one row of the column's table."""
        return self.stored_as == "categorical"

    @property
    def has_bag(self) -> bool:
        """Whether an example has any number of rows of the column's table."""
        return self.stored_as == "multi_hot"

    @property
    def has_table(self) -> bool:
        """Whether its ids have rows of a table of embeddings."""
        return self.has_id or self.has_bag


KINDS: Final[dict[str, ColumnKind]] = {
    "label": ColumnKind("label", (*LABEL_RULES, "negative", "type", "loss_weight"), is_input=False),
    "dense": ColumnKind("dense", ("transform", "shift", "scale", "format")),
    "categorical": ColumnKind("categorical", ("table", "part", "format"), hashes_values=True),
    "bucket": ColumnKind("categorical", ("table", "boundaries", "quantiles")),
    "cross": ColumnKind("categorical", ("table", "columns"), in_file=False),
    "multi_hot": ColumnKind(
        "multi_hot", ("table", "delimiter", "pooling", "max_ids", "keep", "weights"), hashes_values=True
    ),
    "ip": ColumnKind("multi_hot", ("table",), hashes_values=True, id_space="networks of an address"),
    "timestamp": ColumnKind("timestamp", ("format",), is_input=False, is_single=True),
    "weight": ColumnKind("weight", is_input=False, is_single=True),
    "group": ColumnKind("group", is_input=False),
    "row_number": ColumnKind("group", in_file=False, is_input=False, is_single=True),
    "ignored": ColumnKind("", is_input=False),
}
"""Every kind by its name in the job file."""
