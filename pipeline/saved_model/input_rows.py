"""Input rows for scoring: every row of a file, in order.

Rows that cannot be scored are included. Scoring needs no label, weight or timestamp, so a file may lack these
columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config.columns import ColumnSection, column_fault, places_of
from ..config.data import DataSection
from ..config.job import Job
from ..data.bad_rows import printable
from ..data.batches.span_plan import plan_spans
from ..data.columns.fields import decoded, display_bytes, plain_type
from ..data.columns.record_schema import Records, RecordSchema
from ..data.files.text import first_line, line_blocks, line_numbers
from ..data.formats.line_parser import LineParser, ParsedLines
from ..data.formats.parquet import IdClass, check_parquet, id_class, parquet_rows
from ..data.formats.schema_check import delimiter_of
from ..data.schema import LABEL, Examples
from ..data.span import Span
from ..errors import DataError
from ..types import Float32Array, IndexArray

Columns: TypeAlias = Mapping[str, pa.Array]


@dataclass(frozen=True)
class InputSchema:
    """The schemas of one model's input; used by one thread at a time.

    Attributes:
        inputs: schema of the columns that the model needs.
        labels: name of each label column in files, and its schema, the headline first.
        file_columns: columns of a file without a header, in order.
        data: format of files: delimiter, quotes and so on.
        id_classes: type of the ids that training saw in each column of a file, if known.
        read: schema of those of `inputs` that are read; the others are as if they were missing in each row.
    """

    inputs: RecordSchema
    labels: tuple[tuple[str, RecordSchema], ...]
    file_columns: list[str]
    data: DataSection
    id_classes: Mapping[str, IdClass]
    read: RecordSchema

    @property
    def label_sources(self) -> list[str]:
        """Return the label columns of files, each once."""
        return list(dict.fromkeys(source for source, _ in self.labels))

    @cached_property
    def known_sources(self) -> frozenset[str]:
        """Return the columns that the job's files may have, by their names there."""
        columns = self.data.columns.items()
        names = (section.source or name for name, section in columns if section.of_kind.in_file)
        return frozenset((*names, *self.inputs.sources))

    @property
    def kinds_in_file(self) -> dict[str, str]:
        """Return the kinds of the files' columns that are read, by name."""
        columns = [
            (name, column) for name, column in self.read.data.columns.items() if column.of_kind.in_file
        ]
        kinds: dict[str, str] = {column.source or name: column.kind for name, column in columns}
        return kinds | {
            column.weights: f"weights of {column.source or name}"
            for name, column in columns
            if column.weights
        }


def input_schema(
    job: Job, id_classes: Mapping[str, IdClass], only: Collection[str] | None = None
) -> InputSchema:
    """Build the schema of a job's input, with or without [data.columns].

    The keys of `id_classes` are the columns' names in the job. With `only`, no other columns of the job are
    read, but for what crosses among them combine; hard negatives never are. Raises JobFileError if the
    label's expression cannot be used.
    """
    data = job.data if job.data.columns else _criteo_columns(job.data)
    needed = {name: column for name, column in data.columns.items() if column.of_kind.is_input}
    if only is None and job.model.negatives:
        only = needed.keys() - {job.model.negatives}
    inputs = RecordSchema(
        data.model_copy(update={"columns": needed}), job.column_rows, growing=job.growing_columns
    )
    return InputSchema(
        inputs=inputs,
        read=inputs if only is None else _reading(job, data, needed, only),
        labels=tuple(
            (column.source or name, RecordSchema(data.model_copy(update={"columns": {name: column}}), ()))
            for name, column in data.columns_as("label").items()
        ),
        file_columns=places_of(data.columns),
        data=data,
        id_classes={data.columns[name].source or name: known for name, known in id_classes.items()},
    )


@dataclass(frozen=True, slots=True)
class InputRows:
    """A chunk of n rows of one file.

    Attributes:
        path: the file.
        numbers: int64 [n], from 1: the line of each row in a text file, or the number of the row in Parquet.
        examples: the m rows that can be scored; their labels have no meaning.
        scored: int64 [m], indices of the scored rows among the n rows.
        why: fault of each row that cannot be scored, by index.
        labels: float32 [T, n], by label; NaN for a row without it.
        kept: the requested columns, n values each.
    """

    path: str
    numbers: IndexArray
    examples: Examples
    scored: IndexArray
    why: dict[int, str]
    labels: Float32Array
    kept: dict[str, pa.Array]


def read_input(span: Span, schema: InputSchema, keep: Sequence[str] = ()) -> Iterator[InputRows]:
    """Yield all rows of a span, in order.

    Empty lines of a text file are not rows. Memory is bounded for any file. `keep` has the names of further
    columns to return. Raises DataError for a file that cannot be read or lacks a column.
    """
    read = _parquet_rows if span.kind == "row_groups" else _text_rows
    return read(span, schema, list(keep))


def read_files(patterns: Sequence[str], schema: InputSchema, keep: Sequence[str] = ()) -> Iterator[InputRows]:
    """Yield all rows of the files that match; raises DataError as `plan_spans` and `read_input`."""
    data = schema.data
    spans = plan_spans(patterns, data.format, data.span_bytes, kafka=data.kafka)
    return (rows for span in spans for rows in read_input(span, schema, keep))


def rows_of_columns(
    columns: Columns, schema: InputSchema, keep: Sequence[str], path: str, numbers: IndexArray
) -> InputRows:
    """Build a chunk from columns with one value for each row.

    Raises DataError for texts in a column where the model was trained on integers.
    """
    raw = {name: as_trained(columns[name], name, schema, path) for name in schema.read.sources}
    absent = dict.fromkeys(schema.inputs.sources, pa.nulls(len(numbers)))
    records = schema.inputs.records(absent | raw)
    return InputRows(
        path=path,
        numbers=numbers,
        examples=records.good()[0],
        scored=np.flatnonzero(~records.bad),
        why=_faults(records, columns),
        labels=np.stack([_labels(columns, *label, len(numbers)) for label in schema.labels]),
        kept={name: columns[name] for name in keep},
    )


def value_array(values: Sequence[Any]) -> pa.Array:
    """Return values of one type as an array; integers beyond int64 as uint64.

    Raises ValueError for integers of more than 64 bits, and as `pa.array` does for other values that have no
    type in common.
    """
    try:
        return pa.array(values)
    except OverflowError:
        # Arrow takes the type of integers for int64, whatever they are.
        for kind in (pa.uint64(), pa.list_(pa.uint64())):
            with suppress(pa.ArrowException, OverflowError, TypeError, ValueError):
                return pa.array(values, kind)
    raise ValueError("has integers that do not fit into 64 bits")


def _reading(
    job: Job, data: DataSection, needed: Mapping[str, ColumnSection], only: Collection[str]
) -> RecordSchema:
    """Return the schema of the columns `only`, and of those that crosses among them combine."""
    parts = {part for name in only if name in needed for part in needed[name].columns}
    columns = {name: column for name, column in needed.items() if name in only or name in parts}
    embedded = [column for column in job.embedded_columns if column.name in columns]
    rows = tuple(column.table.rows for column in embedded)
    return RecordSchema(data.model_copy(update={"columns": columns}), rows)


def _criteo_columns(data: DataSection) -> DataSection:
    """Add Criteo's columns: a label, numbers I1, I2, ... and ids C1, C2, ..."""
    columns = {LABEL: ColumnSection(kind="label")}
    columns |= {f"I{number + 1}": ColumnSection(kind="dense") for number in range(data.dense_features)}
    columns |= {
        f"C{number + 1}": ColumnSection(kind="categorical") for number in range(data.categorical_features)
    }
    # Training on Criteo's files uses none of these settings, whatever the job has.
    plain = {"missing": [""], "strip": False, "decimal": "."}
    text = {"format": "tsv", "header": False, "quote": "", "delimiter": ""}
    settings = plain | (text if data.format == "criteo_tsv" else {})
    return data.model_copy(update={"columns": columns} | settings)


def _parquet_rows(span: Span, schema: InputSchema, keep: list[str]) -> Iterator[InputRows]:
    def columns_to_read(arrow: pa.Schema) -> list[str]:
        check_parquet(span.path, arrow, schema.read)
        return _columns_to_read(span.path, schema, arrow.names, keep)

    for done, rows in parquet_rows(span, columns_to_read):
        columns = {name: rows.column(name) for name in rows.schema.names}
        numbers = np.arange(done + 1, done + 1 + len(rows))
        yield rows_of_columns(columns, schema, keep, span.path, numbers)


def _text_rows(span: Span, schema: InputSchema, keep: list[str]) -> Iterator[InputRows]:
    data = schema.data
    delimiter = delimiter_of(data)
    names = _text_names(span, schema, delimiter)
    sources, messages = _columns_to_read(span.path, schema, names, keep), span.kind == "offsets"
    parser = LineParser(names, sources, delimiter, data.quote, span.path, messages=messages)
    line_number = line_numbers(span, header=data.header)
    passed = 0
    for block in line_blocks(span, encoding=data.encoding, kafka=data.kafka, header=data.header):
        parsed = parser.parse(block)
        yield _merged(parsed, schema, keep, span.path, line_number(passed))
        passed += len(parsed.starts) - 1


def _merged(parsed: ParsedLines, schema: InputSchema, keep: list[str], path: str, first: int) -> InputRows:
    """Merge a block's parsed rows with its bad lines, in order."""
    rows = rows_of_columns(parsed.columns, schema, keep, path, parsed.lines + first)
    if not parsed.bad:
        return rows
    lines = np.union1d(parsed.lines, np.fromiter(parsed.bad, np.int64))
    places = np.searchsorted(lines, parsed.lines)
    why = {int(places[row]): text for row, text in rows.why.items()}
    why |= {int(np.searchsorted(lines, line)): text for line, text in parsed.bad.items()}
    labels = np.full((len(rows.labels), len(lines)), np.nan, np.float32)
    labels[:, places] = rows.labels
    source = np.full(len(lines), -1)
    source[places] = np.arange(len(places))
    take = pa.array(np.where(source < 0, 0, source), mask=source < 0)
    kept = {name: column.take(take) for name, column in rows.kept.items()}
    return InputRows(path, lines + first, rows.examples, places[rows.scored], why, labels, kept)


def _text_names(span: Span, schema: InputSchema, delimiter: str) -> list[str]:
    """Find the columns of a text file, or of a topic, in order.

    The labels' columns that the model does not need may be missing from a file without a header, all of them;
    and where only some columns of the job are read, all others.
    """
    data = schema.data
    line = first_line(span, data.encoding, data.kafka)
    parser = LineParser(["a"], ["a"], delimiter, data.quote)
    try:
        fields = parser.split_line(line)
    except ValueError as error:
        raise DataError(f"its first line has {error}: {printable(line)}", where=span.path) from error
    if not data.header:
        read = [name for name in schema.file_columns if name in schema.read.sources]
        if schema.read is not schema.inputs and len(fields) == len(read):
            return read
        # A label may be made of a column that the model needs, too.
        absent = set(schema.label_sources) - set(schema.inputs.sources)
        without = [name for name in schema.file_columns if name not in absent]
        return without if len(fields) == len(without) else schema.file_columns
    return [name.strip() for name in fields] if data.strip else fields


def _columns_to_read(path: str, schema: InputSchema, names: list[str], keep: Sequence[str]) -> list[str]:
    """List the columns to read.

    Raises DataError for a needed column that the file lacks or has more than once.
    """
    for name in (*schema.read.sources, *keep):
        if fault := column_fault(name, names):
            raise DataError(
                f"has {fault}",
                where=path,
                remedy="give a file with the columns of the job's [data]; the label is not needed",
            )
    labels = [source for source in schema.label_sources if names.count(source) == 1]
    return list(dict.fromkeys([*schema.read.sources, *labels, *keep]))


def _labels(columns: Columns, source: str, label: RecordSchema, count: int) -> Float32Array:
    if source not in columns:
        return np.full(count, np.nan, np.float32)
    records = label.records({source: columns[source]})
    labels: Float32Array = np.where(records.bad, np.float32(np.nan), records.examples.labels)
    return labels


def _faults(records: Records, columns: Columns) -> dict[int, str]:
    why: dict[int, str] = {}
    for fault in records.faults:
        for row in np.flatnonzero(fault.rows).tolist():
            text = printable(display_bytes(columns[fault.source][row]), 20)
            why.setdefault(row, f"{fault.name} '{text}' {fault.why}")
    return why


def as_trained(column: pa.Array, source: str, schema: InputSchema, path: str) -> pa.Array:
    """Convert integer ids to texts if training read texts.

    Raises DataError for texts if it read integers; `path` is the file.
    """
    trained, in_file = schema.id_classes.get(source), id_class(column.type)
    if trained == "text" and in_file == "integer":
        return _integers_as_text(column)
    if trained == "integer" and in_file == "text":
        raise DataError(
            f"column {source!r} has texts, but the model was trained on integers there: a text would get "
            "another table row",
            where=path,
            remedy="give the column as integers",
        )
    return column


def _integers_as_text(column: pa.Array) -> pa.Array:
    """Convert integers, or lists or dictionaries of integers, to decimal digits."""
    column = decoded(column)
    if pa.types.is_integer(column.type):
        return column.cast(pa.string())
    ids = column.flatten()
    ids = ids.cast(plain_type(ids.type)).cast(pa.string())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return pa.LargeListArray.from_arrays(pa.array(offsets), ids, mask=column.is_null())
