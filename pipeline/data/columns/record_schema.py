"""A job file's schema: turns columns of a chunk into examples and faults."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...config.columns import places_of
from ...config.data import DataSection
from ...errors import JobFileError
from ...types import Float64Array, IndexArray, Mask
from ..hashing import column_number
from ..schema import ColumnObserver, Examples
from .fields import TextRules
from .kinds.chunk import ColumnChunk, ColumnFault, ParseSettings
from .kinds.registry import VALUES
from .label_expression import LabelExpression


@dataclass(frozen=True, slots=True)
class Records:
    """A chunk of rows, bad rows included.

    Attributes:
        examples: examples of all n rows; the values of bad rows are meaningless.
        times: float64 [n], the timestamps; [0] without such a column.
        faults: faults of each column with bad rows, in the order of the schema.
        bad: bool [n], which rows any fault has.
    """

    examples: Examples
    times: Float64Array
    faults: tuple[ColumnFault, ...]
    bad: Mask

    def good(self) -> tuple[Examples, Float64Array]:
        """Return the examples and times of the rows that are not bad."""
        if not self.bad.any():
            return self.examples, self.times
        keep = np.flatnonzero(~self.bad)
        return self.examples.take(keep), self.times[keep] if len(self.times) else self.times


class RecordSchema:
    """Parse a job's columns into examples; used by one thread at a time.

    Args:
        data: the section [data], with `columns`.
        table_rows: rows of the table of each of `data.table_columns`.
        observer: receives the good rows of each chunk.
        growing: names of the columns whose tables grow, in the order of the columns.
        has_begun: whether it is the schema of a run that began earlier, which goes on as it did.
        may_lack: names of multi-hot columns that a file may lack; its rows then have empty lists.

    Raises:
        JobFileError: an expression cannot be used.
    """

    def __init__(
        self,
        data: DataSection,
        table_rows: tuple[int, ...],
        observer: ColumnObserver | None = None,
        growing: tuple[str, ...] = (),
        *,
        has_begun: bool = False,
        may_lack: Collection[str] = (),
    ) -> None:
        self.data = data
        self._may_lack = may_lack
        self.has_begun = has_begun
        self._observer = observer
        self._settings = ParseSettings(
            data,
            TextRules(tuple(data.missing), data.strip, data.decimal),
            dict(zip((column.name for column in data.table_columns), table_rows, strict=True)),
            growing,
            _expressions(data),
            {name: settings for name, settings in data.columns_as("dense").items() if not settings.has_times},
            {
                name: column_number(data.table_of(name))
                for name, settings in data.columns_as("categorical").items()
                if settings.of_kind.in_file and settings.fixed_rows is None
            },
        )

    def source_of(self, name: str) -> str:
        """Return the name that a column has in the file."""
        return self._settings.source_of(name)

    def columns_sharing(self, name: str) -> list[str]:
        """Return the columns whose ids have rows of the same table as those of this one."""
        columns, table = self.data.table_columns, self.data.table_of(name)
        return [column.name for column in columns if column.table == table]

    @cached_property
    def sources(self) -> list[str]:
        """Return the columns of the file that are used, each once."""
        columns = self.data.columns.items()
        used = [name for name, column in columns if column.of_kind.is_read]
        weights = [column.weights for _, column in columns if column.weights]
        return list(dict.fromkeys([*map(self.source_of, used), *weights]))

    def may_lack(self, name: str) -> bool:
        """Return whether a file may be without a column."""
        return name in self._may_lack

    def sources_in(self, names: Collection[str]) -> list[str]:
        """Return those of `sources` that are read of a file with columns of these names."""
        needed = {self.source_of(name) for name in self.data.columns if not self.may_lack(name)}
        may_lack = {self.source_of(name) for name in self._may_lack} - needed
        return [source for source in self.sources if source in names or source not in may_lack]

    @property
    def numbers_rows(self) -> bool:
        """Return whether examples have the numbers of their rows."""
        return bool(self.data.row_number)

    @property
    def places(self) -> list[str]:
        """Return the columns of a file without a header, in order."""
        return places_of(self.data.columns)

    def records(self, raw: Mapping[str, pa.Array], row_numbers: IndexArray | None = None) -> Records:
        """Return the rows of a chunk.

        `raw` has the file's columns by name, as texts or in Parquet's types. `row_numbers`, int64 [n], are
        needed with `numbers_rows` alone: the number of each row in its file, from 0; None for a file's first
        rows. Raises JobFileError when the label's expression cannot be computed.
        """
        if self._may_lack:
            absent = [source for source in self.sources if source not in raw]
            count = len(next(iter(raw.values()))) if raw else 0
            raw = {**raw, **{source: pa.nulls(count) for source in absent}}
        chunk = ColumnChunk(self._settings, raw, row_numbers)
        # Columns that are made of others come after those of the file.
        for in_file in (True, False):
            for name, section in self.data.columns.items():
                if section.of_kind.in_file is in_file:
                    VALUES[section.kind].parse(chunk, name, section)
        faults = tuple(chunk.faults)
        bad = np.zeros(chunk.count, np.bool_)
        for fault in faults:
            bad |= fault.rows
        if self._observer is not None:
            chunk.show(self._observer, ~bad)
        return Records(chunk.examples(), chunk.times, faults, bad)


def _expressions(data: DataSection) -> dict[str, LabelExpression]:
    """Return the compiled expressions of labels by name."""
    expressions = {}
    for name, column in data.columns.items():
        if column.expression:
            try:
                expressions[name] = LabelExpression(column.expression, column.source or name)
            except ValueError as error:
                raise JobFileError(f"data.columns.{name}.expression: {error}") from error
    return expressions
