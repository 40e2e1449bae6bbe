"""What the model does not see of a row: its groups, such as user, session and query, and its position."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from ....config.columns import ColumnSection
from ...hashing import column_number
from ..fields import decoded, hash_ids, is_number, is_text, null_mask
from .base import ColumnValues
from .chunk import ColumnChunk

NO_GROUP: Final = 0
"""The hash of a missing value."""

_NUMBER: Final = column_number("group")


class GroupValues(ColumnValues):
    """Kind "group": 64 bits of the hash of the value as text, and NO_GROUP of a missing one.

    An integer is hashed as its decimal digits, and all columns by the same hash. So a value has the same hash
    in every format of files, and in every column.
    """

    expected: ClassVar[str] = "texts or integers"

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        del section
        column = decoded(chunk.column(name))
        texts = column if is_text(column.type) else column.cast(pa.string())
        chunk.groups[name] = np.where(null_mask(column), np.uint64(NO_GROUP), hash_ids(texts, _NUMBER))

    def fits(self, of: pa.DataType) -> bool:
        return is_text(of) or pa.types.is_integer(of)

    def remedy(self, of: pa.DataType) -> str:
        return "convert it to texts or integers" if is_number(of) else ""

    def description(self, section: ColumnSection) -> str:
        del section
        return f"64-bit hash of the value as text, with the hash's column {_NUMBER}; {NO_GROUP} where missing"


class RowNumberValues(ColumnValues):
    """Kind "row_number": the number of the row in its file, from 0."""

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        del section
        chunk.groups[name] = chunk.row_numbers.astype(np.uint64)

    def description(self, section: ColumnSection) -> str:
        del section
        return "number of the row in its file, from 0"
