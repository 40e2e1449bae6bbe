"""The first rows of a job's input, and what is trained of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

import pyarrow as pa

from ..config.job import Job
from ..data.bad_rows import UnreportedBadRows, printable
from ..data.columns.fields import display_bytes
from ..data.columns.record_schema import Records, RecordSchema
from ..data.files.text import line_blocks
from ..data.formats.line_parser import LineParser
from ..data.formats.parquet import open_parquet
from ..data.formats.schema_check import columns_of, delimiter_of
from ..data.schema import Examples
from ..data.span import Span
from ..input.job_input import JobInput
from ..types import Float64Array, IndexArray

SHOWN_ROWS: Final = 3
_SHOWN_CHARACTERS: Final = 24
_PEEK_BYTES: Final = 1 << 16

_Raw: TypeAlias = tuple[dict[str, pa.Array], IndexArray | None]
"""A file's first rows by column, and their numbers in the file; None for 0, 1, ..."""


@dataclass(frozen=True)
class ShownRow:
    """A row by column: the value in the file, and what is trained.

    Attributes:
        values: by the column's name (value, trained); the value is "" where the file's is not shown.
        fault: why the row is malformed; "" if it is not.
    """

    values: Mapping[str, tuple[str, str]]
    fault: str = ""


def first_rows(job: Job, span: Span) -> list[ShownRow]:
    """Return the first rows of a span, malformed ones included.

    A prepared folder, and files without `data.columns`, are shown as they are trained alone; of a topic there
    are none. Raises DataError for a file that cannot be read.
    """
    if span.kind == "offsets":
        return []
    if not job.data.columns or job.data.prepared:
        chunk = next(iter(JobInput(job).chunks(span, UnreportedBadRows())), None)
        if chunk is None:
            return []
        examples = chunk.examples.slice(0, SHOWN_ROWS)
        return [ShownRow(_trained(job, examples, row, {})) for row in range(len(examples))]
    schema = RecordSchema(job.data, job.column_rows, None, job.growing_columns)
    raw, numbers = _parquet(span, schema) if job.data.format == "parquet" else _text(span, schema)
    records = schema.records(raw, numbers)
    return [
        ShownRow(_trained(job, records.examples, row, raw, records.times), _fault(records, row))
        for row in range(len(records.bad))
    ]


def _text(span: Span, schema: RecordSchema) -> _Raw:
    data = schema.data
    names = columns_of(span.path, schema)
    parser = LineParser(names, schema.sources, delimiter_of(data), data.quote, span.path)
    for block in line_blocks(span, _PEEK_BYTES, encoding=data.encoding, header=data.header):
        parsed = parser.parse(block)
        columns = {name: column.slice(0, SHOWN_ROWS) for name, column in parsed.columns.items()}
        return columns, parsed.lines[:SHOWN_ROWS]
    return {name: pa.array([], pa.string()) for name in schema.sources}, None


def _parquet(span: Span, schema: RecordSchema) -> _Raw:
    with open_parquet(span.path) as file:
        batch = next(file.iter_batches(SHOWN_ROWS, columns=schema.sources, use_threads=False), None)
    return ({} if batch is None else {name: batch.column(name) for name in schema.sources}), None


def _fault(records: Records, row: int) -> str:
    return next((f"{fault.name} is {fault.why}" for fault in records.faults if fault.rows[row]), "")


def _trained(
    job: Job, examples: Examples, row: int, raw: Mapping[str, pa.Array], times: Float64Array | None = None
) -> dict[str, tuple[str, str]]:
    """Return each column's value in the file and what is trained."""
    seen = {
        **_labels(job, examples, row),
        **_numbers(job, examples, row),
        **_table_rows(job, examples, row),
    }
    if times is not None:
        seen |= {name: _time(float(times[row])) for name in job.data.columns_as("timestamp")}
    seen |= _groups(job, examples, row)
    if len(examples.weights):
        seen |= dict.fromkeys(job.data.columns_as("weight"), f"{examples.weights[row]:g}")
    values = {}
    for name, column in job.data.columns.items():
        source = column.source or name
        value = _shown(raw[source][row]) if source in raw and column.of_kind.in_file else ""
        if name in seen:
            values[name] = (value, seen[name])
    return values or {name: ("", text) for name, text in seen.items()}


def _labels(job: Job, examples: Examples, row: int) -> dict[str, str]:
    names: Sequence[str] = job.data.label_names or ("label",)
    values = (examples.labels[row], *(others[row] for others in examples.other_labels))
    return {name: f"{value:g}" for name, value in zip(names, values, strict=True)}


def _groups(job: Job, examples: Examples, row: int) -> dict[str, str]:
    stored = {
        name: values[row] for name, values in zip(job.data.columns_as("group"), examples.groups, strict=True)
    }
    return {
        name: f"row {value}"
        if name == job.data.row_number
        else (f"group {value:016x}" if value else "no group")
        for name, value in stored.items()
    }


def _numbers(job: Job, examples: Examples, row: int) -> dict[str, str]:
    return {
        name: f"{value:.4g}" for name, value in zip(job.data.dense_names, examples.dense[row], strict=True)
    }


def _table_rows(job: Job, examples: Examples, row: int) -> dict[str, str]:
    single = [column for column in job.embedded_columns if not column.pooling]
    rows_of_column = {
        column.name: "a row of its own" if column.grows else f"row {examples.rows[number, row]}"
        for number, column in enumerate(single)
    }
    bags = [column for column in job.embedded_columns if column.pooling]
    begin = 0
    for number, column in enumerate(bags):
        lengths = examples.bags.lengths[number]
        first = begin + int(lengths[:row].sum())
        rows = examples.bags.rows[first : first + int(lengths[row])].tolist()
        begin += int(lengths.sum())
        rows_of_column[column.name] = f"{len(rows)} rows of their own" if column.grows else f"rows {rows}"
    return rows_of_column


def _time(seconds: float) -> str:
    """Return a time in UTC; the number itself beyond the calendar's years."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%a %Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g}"


def _shown(value: pa.Scalar) -> str:
    return printable(display_bytes(value), _SHOWN_CHARACTERS) if value.is_valid else "none"
