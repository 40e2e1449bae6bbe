"""Check of a file's first rows against the schema, before training starts.

`columns_of` finds the columns of a delimited text file: by its first line, or by their order in the job file.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ...config.columns import column_fault
from ...config.data import DataSection
from ...errors import DataError
from ..bad_rows import printable
from ..columns.fields import display_bytes
from ..columns.kinds.chunk import ColumnFault
from ..columns.record_schema import RecordSchema
from ..columns.time_values import formats_of_all
from ..files.paths import EmptyFile
from ..files.text import LineBlock, first_line, line_blocks
from ..span import Span
from .line_parser import LineParser
from .parquet import open_parquet

PEEK_BYTES = 1 << 16
PEEK_ROWS = 1000
SAMPLES = 3
# If more than this fraction of the first rows does not fit, the schema is wrong; if fewer, they are bad rows.
MISFIT_SHARE = 0.5
_REMEDY = "change its kind or options in [data.columns], or data.missing"


def columns_of(path: str, schema: RecordSchema) -> list[str]:
    """Return the names of a file's columns, in order.

    Reads the file's first line if it is a header. Raises DataError when the header lacks a column of the
    schema or has it twice.
    """
    if not schema.data.header:
        return schema.places
    names = header_of(path, schema.data)
    for source in schema.sources_in(names):
        if fault := column_fault(source, names):
            raise DataError(
                f"its header has {fault}",
                where=path,
                remedy="name the columns of [data.columns] as the file does, or set data.header = false",
            )
    return names


def header_of(path: str, data: DataSection) -> list[str]:
    """Return the names in the first line of a text file.

    Raises DataError if it cannot be read or split.
    """
    line = first_line(Span(0, path, "stream", 0, 1), data.encoding)
    parser = LineParser(["a"], ["a"], delimiter_of(data), data.quote)
    try:
        names = parser.split_line(line)
    except ValueError as error:
        raise DataError(f"the header has {error}: {printable(line)}", where=path) from error
    return [name.strip() for name in names] if data.strip else names


def delimiter_of(data: DataSection) -> str:
    return data.delimiter or ("," if data.format == "csv" else "\t")


def check_text(path: str, schema: RecordSchema) -> None:
    """Raise DataError unless a file has rows and the first ones fit the schema."""
    names = columns_of(path, schema)
    block = _first_rows(path, schema)
    sources = schema.sources_in(names)
    parser = LineParser(names, sources, delimiter_of(schema.data), schema.data.quote, path)
    parsed = parser.parse(block)
    lines = len(parsed.lines) + len(parsed.bad)
    if len(parsed.bad) > MISFIT_SHARE * lines:
        line = min(parsed.bad)
        text = block.buffer[parsed.starts[line] : parsed.starts[line + 1]].tobytes().rstrip(b"\r\n")
        raise DataError(
            f"{len(parsed.bad)} of its first {lines} lines do not fit; the first has {parsed.bad[line]}: "
            f"{printable(text)}",
            where=path,
            remedy="change [data.columns], data.delimiter, data.quote or data.encoding; the columns are"
            f" {_some(names)}",
        )
    _check_values(path, parsed.columns, schema)


def check_groups(path: str, schema: RecordSchema) -> None:
    """Raise DataError unless a Parquet file's first rows fit the schema."""
    with open_parquet(path) as file:
        sources = schema.sources_in(file.schema_arrow.names)
        rows = next(file.iter_batches(PEEK_ROWS, columns=sources, use_threads=False), None)
    if rows is not None:
        _check_values(path, {name: rows.column(name) for name in sources}, schema)


def _first_rows(path: str, schema: RecordSchema) -> LineBlock:
    whole = Span(0, path, "stream", 0, 1)
    data = schema.data
    for rows in line_blocks(whole, PEEK_BYTES, encoding=data.encoding, header=data.header):
        return rows
    raise EmptyFile(path, "has no rows")


def _check_values(path: str, columns: Mapping[str, pa.Array], schema: RecordSchema) -> None:
    records = schema.records(columns)
    for fault in records.faults:
        if fault.rows.sum() > MISFIT_SHARE * len(fault.rows):
            raise DataError(
                f"column {fault.name}: {_samples(fault, columns)} are {fault.why}",
                where=path,
                remedy=f"{fault.remedy}; or {_REMEDY}" if fault.remedy else _REMEDY,
            )

    _check_times(path, columns, schema)


def _check_times(path: str, columns: Mapping[str, pa.Array], schema: RecordSchema) -> None:
    """Raise DataError for times that are seconds one by one, and dates or days together.

    A run that began reads its times as it did.
    """
    if schema.has_begun:
        return
    for name, section in schema.data.columns.items():
        if not section.has_times or section.format:
            continue
        source = schema.source_of(name)
        if formats := formats_of_all(columns[source], of_calendar=section.part is not None):
            texts = [f'"{time_format}"' for time_format in formats]
            some = _samples(ColumnFault(name, source, "", np.ones(len(columns[source]), np.bool_)), columns)
            raise DataError(
                f"column {name}: {some} are not clearly seconds",
                where=path,
                remedy=f"state the format of the times: {name} = {{ ..., format = {' or '.join(texts)} }}; a"
                " time of day needs its date",
            )


def _samples(fault: ColumnFault, columns: Mapping[str, pa.Array]) -> str:
    """Return up to three different values that do not fit."""
    samples: dict[str, None] = {}
    for row in np.flatnonzero(fault.rows).tolist():
        samples[f"'{printable(display_bytes(columns[fault.source][row]), 20)}'"] = None
        if len(samples) == SAMPLES:
            break
    return ", ".join(samples)


def _some(names: list[str]) -> str:
    return ", ".join(names[:20]) + (f", ... ({len(names)})" if len(names) > 20 else "")
