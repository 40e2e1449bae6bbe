"""One chunk's columns while they are parsed: what examples have of them, and the faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....config.columns import ColumnSection
from ....config.data import DataSection
from ....types import Float32Array, Float64Array, IndexArray, Int32Array, Mask, Uint64Array
from ...batch import Bags, no_groups, no_keys, no_other_labels, no_weights
from ...hashing import column_number, table_rows_of
from ...schema import ColumnObserver, Examples
from ..column_groups import are_short, clean_columns, hash_id_columns, number_columns
from ..fields import TextRules, null_mask
from ..label_expression import LabelExpression


@dataclass(frozen=True, slots=True)
class ColumnFault:
    """Bad rows of one column, and what is wrong with them.

    Attributes:
        name: name of the column in the job file.
        source: name of the column in the input file.
        why: the end of a sentence after "is" or "are".
        rows: bool [n].
        remedy: what may help; "" for nothing special.
    """

    name: str
    source: str
    why: str
    rows: Mask
    remedy: str = ""


@dataclass(frozen=True)
class ParseSettings:
    """What all chunks of a job's input share.

    Attributes:
        data: the section [data], with `columns`.
        rules: which texts are missing, and how numbers are written.
        table_rows: rows of each column's table.
        growing: names of the columns whose tables grow, in the order of the columns.
        expressions: the expressions of labels, by the labels' names.
        numbers: the columns of numbers, without those of times.
        hashed_ids: the hash's `column` of each column of the file with one hashed id.
    """

    data: DataSection
    rules: TextRules
    table_rows: Mapping[str, int]
    growing: tuple[str, ...]
    expressions: Mapping[str, LabelExpression]
    numbers: Mapping[str, ColumnSection]
    hashed_ids: Mapping[str, int]

    def source_of(self, name: str) -> str:
        """Return the name that a column has in the file."""
        return self.data.columns[name].source or name

    def hash_column(self, name: str) -> int:
        """Return the hash's `column` of a column's ids, which is that of its table."""
        return column_number(self.data.table_of(name))


class ColumnChunk:
    """The columns of one chunk, while the kinds parse them in the order of the schema.

    Numbers, and hashes of single ids, are there from the beginning, because those of many short columns are
    parsed together.

    Args:
        settings: what all chunks share.
        raw: the file's columns by name, as texts or in Parquet's types.
        row_numbers: int64 [n], the number of each row in its file, from 0; None for a file's first rows.

    Attributes:
        settings: as given.
        count: n, the number of rows.
        numbers: the parsed numbers of each column in `ParseSettings.numbers`.
        labels, dense: float32 [n] of each column, in order.
        times, weights: float64 and float32 [n]; [0] without such a column.
        groups: uint64 [n] of each column that is stored as a group, by name.
        hashes: uint64 [n] of each column with an id, [N] of one with a bag.
        cross_keys: what a cross combines of each column: hashes, or the rows of a table that has one for
            each value.
        missing: bool [n] of each dense column.
        faults: the faults so far.
    """

    def __init__(
        self, settings: ParseSettings, raw: Mapping[str, pa.Array], row_numbers: IndexArray | None = None
    ) -> None:
        self.settings = settings
        together = are_short(raw)
        self._columns = clean_columns(settings.rules, raw, together)
        self.count = len(next(iter(self._columns.values())))
        self._row_numbers = row_numbers
        self.faults: list[ColumnFault] = []
        numbers = {name: self.column(name) for name in settings.numbers}
        self.numbers = number_columns(settings.rules, numbers, settings.numbers, together)
        ids = {name: self.column(name) for name in settings.hashed_ids}
        self.hashes = hash_id_columns(ids, settings.hashed_ids, together)
        self.cross_keys: dict[str, Uint64Array | IndexArray] = {**self.hashes}
        self.labels: list[Float32Array] = []
        self.dense: list[Float32Array] = []
        self.groups: dict[str, Uint64Array] = {}
        self.missing: dict[str, Mask] = {}
        self.weights, self.times = no_weights(), np.zeros(0)
        self._bag_lengths: dict[str, Int32Array] = {}
        self._item_weights: list[Float32Array | None] = []

    @property
    def row_numbers(self) -> IndexArray:
        """Return the number of each row in its file, int64 [n]."""
        return np.arange(self.count) if self._row_numbers is None else self._row_numbers

    def column(self, name: str) -> pa.Array:
        """Return the cleaned values of a column of the schema."""
        return self.column_of_file(self.settings.source_of(name))

    def column_of_file(self, source: str) -> pa.Array:
        """Return the cleaned values of a column by its name in the file."""
        return self._columns[source]

    def numbers_or_nan(self, name: str) -> Float64Array:
        """Return a column's numbers, float64 [n]; NaN where missing or not numeric."""
        column = self.column(name)
        return np.where(null_mask(column), np.nan, self.settings.rules.numbers(column))

    def fault(self, name: str, why: str, rows: Mask, remedy: str = "") -> None:
        """Note rows that are bad, if any, see `ColumnFault`."""
        self.add_fault(ColumnFault(name, self.settings.source_of(name), why, rows, remedy))

    def add_fault(self, fault: ColumnFault) -> None:
        """Note a fault if it has rows."""
        if fault.rows.any():
            self.faults.append(fault)

    def add_bags(
        self, name: str, hashes: Uint64Array, lengths: Int32Array, item_weights: Float32Array | None = None
    ) -> None:
        """Add a column's bags: hashes [N] and lengths int32 [n], with weights [N] or none."""
        self.hashes[name], self._bag_lengths[name] = hashes, lengths
        self._item_weights.append(item_weights)

    def examples(self) -> Examples:
        """Return the examples of all n rows; the values of bad rows are meaningless."""
        labels, dense = self.labels, self.dense
        return Examples(
            labels[0] if labels else np.zeros(self.count, np.float32),
            np.stack(dense, axis=1) if dense else np.zeros((self.count, 0), np.float32),
            self._id_rows(),
            self.weights,
            self._bags(),
            other_labels=np.stack(labels[1:]) if labels[1:] else no_other_labels(),
            keys=self._keys(),
            groups=self._groups(),
        )

    def show(self, observer: ColumnObserver, good: Mask) -> None:
        """Give the good rows to `observer`; call it after all columns are parsed."""
        observer.show(
            {
                name: h[np.repeat(good, self._bag_lengths[name]) if name in self._bag_lengths else good]
                for name, h in self.hashes.items()
            },
            {name: missing[good] for name, missing in self.missing.items()},
        )

    def _id_rows(self) -> Int32Array:
        """Return int32 [T, n], the rows of ids, in the order of the schema."""
        names = list(self.settings.data.columns_as("categorical"))
        if not names:
            return np.zeros((0, self.count), np.int32)
        hashes = np.stack([self.hashes[name] for name in names])
        return table_rows_of(hashes, tuple(self.settings.table_rows[name] for name in names))

    def _groups(self) -> Uint64Array:
        """Return uint64 [S, n], in the order of the schema."""
        names = self.settings.data.columns_as("group")
        return np.stack([self.groups[name] for name in names]) if names else no_groups()

    def _bags(self) -> Bags:
        rows, keys = [], []
        for name in self._bag_lengths:
            hashes = self.hashes[name]
            rows.append(table_rows_of(hashes[None], (self.settings.table_rows[name],)).reshape(-1))
            keys.append(hashes if name in self.settings.growing else None)
        return Bags.of_tables(rows, list(self._bag_lengths.values()), self._item_weights, keys)

    def _keys(self) -> Uint64Array:
        """Return uint64 [G, n], the hashes of the ids of growing one-hot tables."""
        names = [name for name in self.settings.growing if name not in self._bag_lengths]
        return np.stack([self.hashes[name] for name in names]) if names else no_keys()
