"""A job file's schema: turns columns of a chunk into examples and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from ...config.columns import ColumnSection, places_of
from ...config.data import DataSection
from ...errors import JobFileError
from ...types import Float32Array, Float64Array, IndexArray, Int32Array, Mask, Uint64Array
from ..batch import Bags, no_keys, no_other_labels, no_weights
from ..hashing import column_number, hash_combinations, hashes_of_rows, table_rows_of
from ..schema import ColumnTap, Examples
from .column_groups import are_short, clean_columns, hash_id_columns, number_columns, scaled_numbers
from .fields import TextRules, compared, equals_any, is_text, null_mask
from .id_lists import IdBags
from .label_expression import LabelExpression
from .time_parts import rows_of_time_part
from .times import formats_of, parse_times

# With weights up to this, sums over a batch and products with the loss are finite in float32.
MAX_WEIGHT = 1e30


@dataclass(frozen=True, slots=True)
class ColumnFault:
    """Bad rows of one column, and what is wrong with them.

    Attributes:
        name: name of the column in the job file.
        source: name of the column in the input file.
        wanted: the end of a sentence after "is" or "are".
        rows: bool [n].
        remedy: what may help; "" for nothing special.
    """

    name: str
    source: str
    wanted: str
    rows: Mask
    remedy: str = ""


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
        tap: receives the good rows of each chunk.
        growing: names of the columns whose tables grow, in the order of their tables.

    Raises:
        JobFileError: an expression cannot be used.
    """

    def __init__(
        self,
        data: DataSection,
        table_rows: tuple[int, ...],
        tap: ColumnTap | None = None,
        growing: tuple[str, ...] = (),
    ) -> None:
        self.data = data
        self._growing = growing
        self._tap = tap
        self.rules = TextRules(tuple(data.missing), data.strip, data.decimal)
        self._rows = dict(zip((column.name for column in data.table_columns), table_rows, strict=True))
        self._expressions: dict[str, LabelExpression] = {}
        for name, column in data.columns.items():
            if column.expression:
                try:
                    self._expressions[name] = LabelExpression(column.expression, self.source_of(name))
                except ValueError as error:
                    raise JobFileError(f"data.columns.{name}.expression: {error}") from error

    def source_of(self, name: str) -> str:
        """Return the name that a column has in the file."""
        return self.data.columns[name].source or name

    @cached_property
    def sources(self) -> list[str]:
        """Return the columns of the file that are used, each once."""
        columns = self.data.columns.items()
        used = [name for name, column in columns if column.in_file and column.kind != "ignored"]
        weights = [column.weights for _, column in columns if column.weights]
        return list(dict.fromkeys([*map(self.source_of, used), *weights]))

    @cached_property
    def numbers(self) -> dict[str, ColumnSection]:
        """Return the columns of numbers, without those of times."""
        columns = self.data.columns.items()
        return {name: own for name, own in columns if own.kind == "dense" and own.transform != "time"}

    @cached_property
    def hashed_ids(self) -> dict[str, int]:
        """Return the hash's `column` of each column of the file with one hashed id."""
        columns = self.data.columns.items()
        hashed = [name for name, own in columns if own.has_ids and own.in_file and own.fixed_rows is None]
        return {name: column_number(name) for name in hashed}

    @property
    def places(self) -> list[str]:
        """Return the columns of a file without a header, in order."""
        return places_of(self.data.columns)

    def records(self, raw: Mapping[str, pa.Array]) -> Records:
        """Return the rows of a chunk.

        `raw` has the file's columns by name, as texts or in Parquet's types. Raises JobFileError when the
        label's expression cannot be computed.
        """
        together = are_short(raw)
        columns = clean_columns(self.rules, raw, together)
        count = len(next(iter(columns.values())))
        parser = _ChunkParser(self, columns, count, together)
        labels, dense, bag_rows, bag_lengths, item_weights, bag_keys = [], [], [], [], [], []
        weights, times = no_weights(), np.zeros(0)
        for name, section in self.data.columns.items():
            if section.kind == "label":
                label = parser.label(name, section, self._expressions.get(name))
                labels.append(label.astype(np.float32))
            elif section.kind == "dense":
                dense.append(parser.dense(name, section))
            elif section.has_ids and section.in_file:
                parser.ids(name, section)
            elif section.kind == "multi_hot":
                hashed, lengths, of_items = parser.bags(name, section)
                rows = table_rows_of(hashed[None], (self._rows[name],)).reshape(-1)
                bag_rows.append(rows)
                bag_lengths.append(lengths)
                item_weights.append(of_items)
                bag_keys.append(hashed if name in self._growing else None)
            elif section.kind == "timestamp":
                times = parser.times(name, section)
            elif section.kind == "weight":
                weights = parser.weights(name).astype(np.float32)
        examples = Examples(
            labels[0] if labels else np.zeros(count, np.float32),
            np.stack(dense, axis=1) if dense else np.zeros((count, 0), np.float32),
            self._table_rows(parser, count),
            weights,
            Bags.of_tables(bag_rows, bag_lengths, item_weights, bag_keys),
            other_labels=np.stack(labels[1:]) if labels[1:] else no_other_labels(),
            keys=self._keys(parser),
        )
        faults = tuple(parser.faults)
        bad = np.zeros(count, np.bool_)
        for fault in faults:
            bad |= fault.rows
        if self._tap is not None:
            parser.show(self._tap, ~bad)
        return Records(examples, times, faults, bad)

    def _keys(self, parser: _ChunkParser) -> Uint64Array:
        """Return uint64 [G, n], the hashes of the ids of growing one-hot tables."""
        found = [parser.hashes[name] for name in self._growing if self.data.columns[name].has_ids]
        return np.stack(found) if found else no_keys()

    def _table_rows(self, parser: _ChunkParser, count: int) -> Int32Array:
        """Return int32 [T, n], the rows of ids, in the order of the schema."""
        for name, section in self.data.columns.items():
            if section.kind == "cross":
                parser.cross(name, section)
        names = [name for name, section in self.data.columns.items() if section.has_ids]
        if not names:
            return np.zeros((0, count), np.int32)
        hashes = np.stack([parser.hashes[name] for name in names])
        return table_rows_of(hashes, tuple(self._rows[name] for name in names))


class _ChunkParser:
    """Parse one chunk's columns, and collect the faults."""

    def __init__(
        self, schema: RecordSchema, columns: Mapping[str, pa.Array], count: int, together: bool
    ) -> None:
        self._schema, self._columns, self._count = schema, columns, count
        self.faults: list[ColumnFault] = []
        numbers = {name: self._column(name) for name in schema.numbers}
        self._dense = number_columns(schema.rules, numbers, schema.numbers, together)
        ids = {name: self._column(name) for name in schema.hashed_ids}
        self.hashes = hash_id_columns(ids, schema.hashed_ids, together)
        # What a cross combines: hashes, or rows of a table that has one for each value.
        self._keys: dict[str, Uint64Array | IndexArray] = {**self.hashes}
        self._bag_lengths: dict[str, Int32Array] = {}
        self._missing: dict[str, Mask] = {}

    def _numbers(self, column: pa.Array) -> Float64Array:
        return self._schema.rules.numbers(column)

    def _column(self, name: str) -> pa.Array:
        return self._columns[self._schema.source_of(name)]

    def _fault(self, name: str, wanted: str, rows: Mask, remedy: str = "") -> None:
        self._add_fault(ColumnFault(name, self._schema.source_of(name), wanted, rows, remedy))

    def _add_fault(self, fault: ColumnFault) -> None:
        if fault.rows.any():
            self.faults.append(fault)

    def label(self, name: str, section: ColumnSection, expression: LabelExpression | None) -> Float64Array:
        """Return labels, 1.0 or 0.0."""
        column, rules = self._column(name), self._schema.rules
        missing = null_mask(column)
        if section.positive:
            positive, known = compared(column, section.positive, rules)
            if section.negative:
                known = positive | equals_any(column, section.negative, rules)
            self._fault(name, "missing, and each row needs a label", missing)
            if section.negative:
                self._fault(name, "neither its positive nor its negative values", ~known & ~missing)
            else:
                # Otherwise a label that no row can have would count as 0.
                kind = "a text" if is_text(column.type) else f"of type {column.type}"
                like = ", ".join(map(repr, section.positive[:3]))
                remedy = (
                    f"give positive the values as they are in the data: {name} = {{ ..., positive = [...] }}"
                )
                self._fault(
                    name, f"{kind} that cannot be one of positive ({like})", ~known & ~missing, remedy
                )
            return positive.astype(np.float64)
        if expression is not None:
            return self._by_expression(name, section, expression, column, missing)
        values = np.where(missing, np.nan, self._numbers(column))
        if section.threshold is not None:
            self._fault(name, "not numeric", np.isnan(values))
            return (values >= section.threshold).astype(np.float64)
        remedy = f'name the values that count as 1: {name} = {{ kind = "label", positive = [...] }}'
        self._fault(name, "neither 0 nor 1", (values != 0) & (values != 1), remedy)
        return np.nan_to_num(values)

    def _by_expression(
        self, name: str, section: ColumnSection, expression: LabelExpression, column: pa.Array, missing: Mask
    ) -> Float64Array:
        if section.type == "number":
            values = np.where(missing, np.nan, self._numbers(column))
            seen, missing = pa.array(values), np.isnan(values)
            self._fault(name, "not numeric", missing)
        else:
            seen = column if is_text(column.type) else column.cast(pa.string())
        try:
            labels = expression.labels(seen)
        except ValueError as error:
            raise JobFileError(f"data.columns.{name}.expression: {error}") from error
        self._fault(
            name, "neither true nor false by its expression", ~missing & (labels != 0) & (labels != 1)
        )
        self._fault(name, "missing", missing)
        return np.nan_to_num(labels)

    def dense(self, name: str, section: ColumnSection) -> Float32Array:
        """Return the numbers that a model sees; 0.0 where missing."""
        if section.transform == "time":
            column = self._column(name)
            missing = null_mask(column)
            values = np.where(missing, 0.0, parse_times(column, section.format))
            self._time_fault(name, section, np.isnan(values))
            seen: Float32Array = scaled_numbers(values[None], missing[None], [section])[0]
        else:
            found = self._dense[name]
            self._fault(name, "not numeric", found.wrong)
            seen, missing = found.seen, found.missing
        self._missing[name] = missing
        self._fault(name, "beyond the range of float32", ~np.isfinite(seen))
        return seen

    def ids(self, name: str, section: ColumnSection) -> None:
        """Hash parts of times and buckets: their hashes stand for their rows.

        Other ids are hashed already, missing ones as the empty text.
        """
        if section.fixed_rows is None:
            return
        rows = self._fixed_rows(name, section, section.fixed_rows)
        self._keys[name] = rows
        self.hashes[name] = hashes_of_rows(rows, section.fixed_rows)

    def cross(self, name: str, section: ColumnSection) -> None:
        """Hash the combinations of the columns of a cross, whose ids are read."""
        parts = [self._keys[part].astype(np.uint64, copy=False) for part in section.columns]
        self.hashes[name] = hash_combinations(column_number(name), parts)

    def _fixed_rows(self, name: str, section: ColumnSection, count: int) -> IndexArray:
        """Return the rows of parts of times, or of buckets.

        A missing value has the last row.
        """
        column = self._column(name)
        if section.part is not None:
            times = parse_times(column, section.format)
            wrong = np.isnan(times) & ~null_mask(column)
            self._time_fault(name, section, wrong)
            return rows_of_time_part(times, section.part)
        missing, numbers = null_mask(column), self._numbers(column)
        self._fault(name, "not numeric", np.isnan(numbers))
        rows = np.searchsorted(np.array(section.boundaries), numbers, side="right")
        return np.where(missing, count - 1, rows)

    def bags(self, name: str, section: ColumnSection) -> tuple[Uint64Array, Int32Array, Float32Array | None]:
        """Return hashes and lengths of bags, and their items' weights; None without weights."""
        rules, delimiter = self._schema.rules, section.delimiter
        bags = IdBags.of(self._column(name), rules, delimiter=delimiter, max_ids=section.max_ids)
        hashes, lengths = bags.hashes(column_number(name))
        self.hashes[name], self._bag_lengths[name] = hashes, lengths
        if not section.weights:
            return hashes, lengths, None
        weights = bags.weights(self._columns[section.weights], rules, delimiter)
        for wanted, rows in (
            (f"of another length than the list of {self._schema.source_of(name)}", weights.unlike),
            ("below 0 or not numeric", weights.rows_where(~(weights.values >= 0))),
            (f"above {MAX_WEIGHT:g}", weights.rows_where(weights.values > MAX_WEIGHT)),
        ):
            self._add_fault(ColumnFault(f"{name}.weights", section.weights, wanted, rows))
        return hashes, lengths, weights.usable(MAX_WEIGHT)

    def show(self, tap: ColumnTap, good: Mask) -> None:
        """Give the good rows to `tap`; call it after all columns are read."""
        tap.show(
            {
                name: h[np.repeat(good, self._bag_lengths[name]) if name in self._bag_lengths else good]
                for name, h in self.hashes.items()
            },
            {name: missing[good] for name, missing in self._missing.items()},
        )

    def times(self, name: str, section: ColumnSection) -> Float64Array:
        """Return seconds since 1970, or the column's numbers as they are.

        A missing time is NaN. If rows are read in the order of time, such a row is bad.
        """
        column = self._column(name)
        values = parse_times(column, section.format)
        wrong = np.isnan(values)
        if self._schema.data.order != "time":
            wrong &= ~null_mask(column)
        self._time_fault(name, section, wrong)
        return values

    def _time_fault(self, name: str, section: ColumnSection, rows: Mask) -> None:
        state = f"state the format of the times: {name} = {{ ..., format ="
        if section.format:
            self._fault(name, f"not in the format {section.format}", rows, f'{state} "%d/%m/%Y %H:%M" }}')
            return
        column, unclear = self._column(name), np.zeros_like(rows)
        formats: tuple[str, ...] = ()
        for row in np.flatnonzero(rows).tolist():
            found = formats_of(column[row])
            unclear[row] = bool(found)
            formats = formats or found
        texts = [f'"{one}"' for one in formats]
        wanted = f"not clearly one time: state its format, {' or '.join(texts)}"
        self._fault(name, wanted, unclear, f"{state} {''.join(texts[:1])} }}")
        self._fault(name, "not in seconds or ISO 8601", rows & ~unclear, f'{state} "%d/%m/%Y %H:%M" }}')

    def weights(self, name: str) -> Float64Array:
        """Return sample weights; those outside 0 to MAX_WEIGHT are faults."""
        column = self._column(name)
        values = np.where(null_mask(column), np.nan, self._numbers(column))
        self._fault(name, "below 0 or not numeric", ~(values >= 0))
        self._fault(name, f"above {MAX_WEIGHT:g}", values > MAX_WEIGHT)
        return np.nan_to_num(values)
