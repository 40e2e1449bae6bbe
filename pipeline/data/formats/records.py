"""Chunks of records from text or Parquet files with a schema.

Bad rows are reported to `BadRows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...config.data import DataSection
from ...errors import DataError
from ...types import Float64Array
from ..bad_rows import BadRows, printable
from ..columns.fields import display_bytes
from ..columns.kinds.chunk import ColumnFault
from ..columns.record_schema import Records, RecordSchema
from ..files.text import LineBlock, LineCounts, bytes_after, line_blocks, line_numbers
from ..schema import Examples
from ..span import Span
from .line_parser import FOLLOWING_BYTES, LineParser, ParsedLines
from .parquet import check_parquet, parquet_rows
from .schema_check import columns_of, delimiter_of

# Large, because each column of a block needs some calls into Arrow, which cost as much as a hundred rows.
RECORD_BLOCK_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class RecordChunk:
    """Good rows in file order, with their times.

    `times` is float64 [n], or [0] without a timestamp column.
    """

    examples: Examples
    times: Float64Array

    def slice(self, start: int, stop: int) -> RecordChunk:
        """Return rows start to stop - 1."""
        return RecordChunk(self.examples.slice(start, stop), self.times[start:stop])

    def take(self, rows: NDArray[np.intp]) -> RecordChunk:
        """Return the rows with these indices, as copies."""
        return RecordChunk(self.examples.take(rows), self.times[rows] if len(self.times) else self.times)


def read_records(
    span: Span,
    schema: RecordSchema,
    bad_rows: BadRows,
    block_bytes: int = RECORD_BLOCK_BYTES,
    line_counts: LineCounts | None = None,
) -> Iterator[RecordChunk]:
    """Yield a span's good rows, in file order, by a schema.

    A row is bad if its label or weight is missing, if a value does not fit the schema, or if it has text
    where a number is expected. A missing timestamp is bad only if rows are read in the order of time. A row
    of text is also bad if it has another number of columns, quotes that do not match, a carriage return
    inside, or a text that is not UTF-8. An empty line is not a row.

    `block_bytes` changes only the size of the chunks. For a schema with row numbers, `line_counts` has what
    was counted for other spans; in a text file each line counts, empty and bad ones too. Raises DataError for
    a file that cannot be read or lacks columns, for a line break within quotes, past the limit of `bad_rows`,
    and for a topic with row numbers.
    """
    if schema.data.format == "parquet":
        yield from _parquet_chunks(span, schema, bad_rows)
    else:
        yield from _text_chunks(span, schema, bad_rows, block_bytes, line_counts or LineCounts())


def _text_chunks(
    span: Span, schema: RecordSchema, bad_rows: BadRows, block_bytes: int, line_counts: LineCounts
) -> Iterator[RecordChunk]:
    data = schema.data
    names = columns_of(span.path, schema)
    messages = span.kind == "offsets"
    sources = schema.sources_in(names)
    parser = LineParser(names, sources, delimiter_of(data), data.quote, span.path, messages=messages)
    line_number = line_numbers(span, header=data.header)
    first_row = _first_row(span, data, line_counts) if schema.numbers_rows else None
    lines_before = 0
    for block in line_blocks(span, block_bytes, encoding=data.encoding, kafka=data.kafka, header=data.header):
        parsed = parser.parse(block)
        numbers = None if first_row is None else parsed.lines + (first_row + lines_before)
        records = schema.records(parsed.columns, numbers)
        _report_bad_lines(
            records, parsed, block, span.path, bad_rows, partial(_numbered, line_number, lines_before)
        )
        yield RecordChunk(*records.good())
        lines_before += len(parsed.starts) - 1
    if parser.unfinished:
        # The next line is in another span, whose reader may take it for a row.
        parser.finish(bytes_after(span, FOLLOWING_BYTES))


def _first_row(span: Span, data: DataSection, line_counts: LineCounts) -> int:
    """Return the number of a span's first row; raises DataError for a topic."""
    if span.kind == "offsets":
        raise DataError(
            f"is a topic, and column {data.row_number} has row numbers, which its messages do not have",
            where=span.path,
            remedy="give files",
        )
    return line_counts.before(span) - int(data.header and span.start > 0)


def _numbered(line_number: Callable[[int], int], lines_before: int, line: int) -> int:
    return line_number(lines_before + line)


def _report_bad_lines(
    records: Records,
    parsed: ParsedLines,
    block: LineBlock,
    path: str,
    bad_rows: BadRows,
    line_number: Callable[[int], int],
) -> None:
    """Report the bad lines of a block, in order."""
    why = dict(parsed.bad)
    for row in np.flatnonzero(records.bad).tolist():
        why[int(parsed.lines[row])] = _reason(
            records.faults, row, lambda f, r: display_bytes(parsed.columns[f.source][r])
        )
    for line in sorted(why):
        text = block.buffer[parsed.starts[line] : parsed.starts[line + 1]].tobytes().rstrip(b"\r\n")
        bad_rows.add(path, partial(line_number, line), why[line], text)


def _reason(faults: tuple[ColumnFault, ...], row: int, value: Callable[[ColumnFault, int], bytes]) -> str:
    fault = next(fault for fault in faults if fault.rows[row])
    return f"{fault.name} '{printable(value(fault, row), 20)}' is {fault.why}"


def _parquet_chunks(span: Span, schema: RecordSchema, bad_rows: BadRows) -> Iterator[RecordChunk]:
    def sources(arrow: pa.Schema) -> list[str]:
        check_parquet(span.path, arrow, schema)
        return schema.sources_in(arrow.names)

    for done, rows in parquet_rows(span, sources):
        columns = {name: rows.column(name) for name in rows.schema.names}
        numbers = np.arange(done, done + len(rows)) if schema.numbers_rows else None
        records = schema.records(columns, numbers)
        _report_bad_rows(records, columns, span.path, done, bad_rows)
        yield RecordChunk(*records.good())


def _report_bad_rows(
    records: Records, columns: dict[str, pa.Array], path: str, done: int, bad_rows: BadRows
) -> None:
    """Report the bad rows of a Parquet chunk.

    `done` is the number of rows of the file before the chunk.
    """
    for row in np.flatnonzero(records.bad).tolist():
        why = _reason(records.faults, row, lambda fault, index: display_bytes(columns[fault.source][index]))
        text = b", ".join(
            name.encode() + b"=" + display_bytes(column[row]) for name, column in columns.items()
        )
        bad_rows.add(path, partial(int, done + row + 1), why, text)
