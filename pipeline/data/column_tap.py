"""What a chunk of rows was made of: the hashes of its ids, and which of its numbers are missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..types import Mask, Uint64Array


@dataclass
class ColumnTap:
    """The good rows of the chunk that a reader gave last, beside its examples. One thread at a time.

    Attributes:
        hashes: of each column with a table, uint64 [n]; of a multi-hot one those of all of its bags, one
            after the other.
        missing: of each dense column, bool [n].
    """

    hashes: Mapping[str, Uint64Array] = field(default_factory=dict)
    missing: Mapping[str, Mask] = field(default_factory=dict)

    def show(self, hashes: Mapping[str, Uint64Array], missing: Mapping[str, Mask]) -> None:
        """A reader's own: called once for each chunk, right before it is given."""
        self.hashes, self.missing = hashes, missing
