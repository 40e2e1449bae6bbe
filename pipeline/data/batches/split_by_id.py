"""Parts of the input by the id that a row has in a column: all rows of an id, or its last ones.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ...config.data import SplitSection
from ...config.tables import EmbeddedColumn
from ...types import Int32Array, Int64Array, Mask, Uint64Array
from ..formats.records import RecordChunk
from ..hashing import mix64, mix_numbers
from ..span import PartName, Span
from .split import part_of_draws

_DRAW: Final = 4
# The last three rows of an id say whether it has enough of them for both parts.
_KEPT: Final = 3
_LEAST_ROWS: Final = 1 << 20
_PART_OF_PLACE: Final[tuple[PartName, ...]] = ("test", "validation", "train")
_ROW: Final = np.dtype([("id", np.uint64), ("time", np.float64), ("row", np.int64)])

SpanStart = tuple[str, int]
"""The path and the start of a whole span."""


class WithIds(Protocol):
    """Examples, or a batch of them."""

    @property
    def rows(self) -> Int32Array:
        """See `Batch.rows`."""

    @property
    def keys(self) -> Uint64Array:
        """See `Batch.keys`."""

    @property
    def groups(self) -> Uint64Array:
        """See `Batch.groups`."""


class IdReader:
    """Return the ids of a column from examples, whatever they were read from.

    An id of a growing table is its key, of any other its row; ids that share a row are one id here. A column
    without a table has the hash of its value.

    Args:
        columns: the job's, see `Job.embedded_columns`.
        name: a column of one id, or one of `groups`.
        groups: the columns of kind "group", in order.
    """

    def __init__(self, columns: Sequence[EmbeddedColumn], name: str, groups: Sequence[str] = ()) -> None:
        self._group = groups.index(name) if name in groups else None
        self._key: int | None = None
        if self._group is not None:
            return
        single = [column for column in columns if not column.pooling]
        (column,) = (column for column in single if column.name == name)
        self._place = single.index(column)
        growing = [embedded for embedded in single if embedded.grows]
        self._key = growing.index(column) if column.grows else None

    def __call__(self, examples: WithIds) -> Uint64Array:
        """Return uint64 [n]."""
        ids: Uint64Array
        if self._group is not None:
            ids = examples.groups[self._group]
        elif self._key is None:
            ids = examples.rows[self._place].astype(np.uint64)
        else:
            ids = examples.keys[self._key]
        return ids


def drawn_ids(ids: Uint64Array, part: PartName, split: SplitSection) -> Mask:
    """Return bool [n]: which rows are in the part, if each id is drawn by (split.seed, id)."""
    return part_of_draws(mix64(mix64(ids) ^ np.uint64(mix_numbers(split.seed, _DRAW))), part, split)


@dataclass(frozen=True, slots=True)
class LastRows:
    """The last row of each id, and the one before it.

    The last row is the test, the one before it validation; at least one row of each id is for training, so an
    id with two rows has no validation, and one with a single row no test. Rows are in the order of their
    times, and of the input where these are equal or missing.

    Attributes:
        first_rows: for each span the number of its first row, counted over all spans.
        rows: int64, ascending: the rows of validation, and those of the test.
    """

    first_rows: Mapping[SpanStart, int]
    rows: Mapping[PartName, Int64Array]

    @classmethod
    def find(cls, spans: Sequence[tuple[Span, Iterator[RecordChunk]]], ids_of: IdReader) -> LastRows:
        """Read all rows once; memory holds up to three rows, of 24 bytes, of each id, and as many again."""
        first_rows: dict[SpanStart, int] = {}
        kept, waiting, count, done = np.zeros(0, _ROW), [np.zeros(0, _ROW)], 0, 0
        for span, chunks in spans:
            first_rows[span.path, span.start] = done
            for chunk in chunks:
                rows = np.zeros(len(chunk.examples), _ROW)
                rows["id"] = ids_of(chunk.examples)
                rows["time"] = np.nan_to_num(chunk.times) if len(chunk.times) else 0.0
                rows["row"] = np.arange(done, done + len(rows))
                waiting.append(rows)
                done, count = done + len(rows), count + len(rows)
                if count >= max(_LEAST_ROWS, len(kept)):
                    kept, waiting, count = _last_of(np.concatenate([kept, *waiting]))[0], [], 0
        kept, places, counts = _last_of(np.concatenate([kept, *waiting]))
        parts: dict[PartName, Int64Array] = {}
        for place, part in enumerate(_PART_OF_PLACE[:2]):
            parts[part] = np.sort(kept["row"][(places == place) & (counts > place + 1)])
        return cls(first_rows, parts)

    def mask(self, span: Span, first_row: int, count: int) -> Mask:
        """Return bool [count]: which rows of a span, from `first_row` of it on, are in its part."""
        begin = self.first_rows[span.path, span.start] + first_row
        mask: Mask = np.full(count, span.part == "train")
        for part, rows in self.rows.items():
            low, high = np.searchsorted(rows, [begin, begin + count])
            mask[rows[low:high] - begin] = span.part == part
        return mask


def _last_of(rows: NDArray[np.void]) -> tuple[NDArray[np.void], Int64Array, Int64Array]:
    """Return the last rows of each id, their places from the last, 0, and how many of its id are there."""
    rows = rows[np.lexsort((rows["row"], rows["time"], rows["id"]))]
    is_last = np.ones(len(rows), np.bool_)
    is_last[:-1] = rows["id"][1:] != rows["id"][:-1]
    ends = np.flatnonzero(is_last)
    counts = np.diff(ends, prepend=-1)
    places = np.repeat(ends, counts) - np.arange(len(rows))
    kept = places < _KEPT
    return rows[kept], places[kept], np.minimum(np.repeat(counts, counts), _KEPT)[kept]
