"""What a kind of column does with its values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import pyarrow as pa

from ....config.columns import ColumnSection
from ..fields import is_number, is_text
from .chunk import ColumnChunk


class ColumnValues(ABC):
    """The values of one kind of column; it has no state.

    What `config.column_kinds.ColumnKind` says of the kind holds: a column with an id adds its hashes, and
    so on.

    Attributes:
        expected: which types of Parquet and Arrow fit, in words.
    """

    expected: ClassVar[str] = "numbers, or texts that are numbers"

    @abstractmethod
    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        """Add a column of the chunk to what examples have, and its bad rows to the faults."""

    def fits(self, of: pa.DataType) -> bool:
        """Return whether the kind reads values of this type, which is no dictionary."""
        return is_number(of) or is_text(of)

    def remedy(self, of: pa.DataType) -> str:
        """Say what to do about a column of a type that does not fit; "" for nothing special."""
        del of
        return ""

    def exported(self, section: ColumnSection) -> dict[str, Any]:
        """Say in the manifest of an export how the ids of a bag are found in the column."""
        del section
        return {}

    def description(self, section: ColumnSection) -> str:
        """Say how a number or a time was changed before it was stored; "" for no change."""
        del section
        return ""
