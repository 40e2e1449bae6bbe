"""Whether the ids of a column are texts or integers, which are hashed differently: one in all files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import pyarrow as pa

from ..errors import DataError
from .arrow_columns import is_text, plain_type

IdClass: TypeAlias = Literal["text", "integer"]


def id_class(kind: pa.DataType) -> IdClass | None:
    """Of a column of ids or of lists of them; None for one that holds nothing but nulls, or no ids."""
    kind = plain_type(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = plain_type(kind.value_type)
    if is_text(kind):
        return "text"
    return "integer" if pa.types.is_integer(kind) else None


class IdClasses:
    """The class of each column's ids, over all files that were looked at. One thread at a time."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[IdClass, str]] = {}

    @property
    def by_column(self) -> dict[str, IdClass]:
        """Of each column that has a class."""
        return {name: found for name, (found, _) in self._found.items()}

    def know(self, classes: Mapping[str, IdClass], where: str) -> None:
        """The classes of files that are not looked at, as `where` states them."""
        self._found |= {name: (found, where) for name, found in classes.items()}

    def note(self, path: str, name: str, kind: pa.DataType) -> None:
        """A file has the column in this type. Raises DataError if an earlier one has the other class."""
        found = id_class(kind)
        if found is None:
            return
        first, where = self._found.setdefault(name, (found, path))
        if first != found:
            raise DataError(
                f"column {name} holds {found} ids, and in {where} {first} ids: the same value would have "
                "another row of the table",
                where=path,
                remedy=f"write {name} in one type into all files of data.path, validation_path and eval_path",
            )
