"""Blocks of lines of plain or compressed text, and their columns.

Memory is bounded. For lines that cannot be parsed the reason is stated.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
from numpy.typing import NDArray

from ..errors import DataError
from ..types import IndexArray, Uint8Array
from .hashing import PADDING_BYTES
from .paths import open_raw, read_errors, suffix_of
from .span import Span

BLOCK_BYTES = 1 << 19
MAX_LINE_BYTES = 1 << 20
_NEWLINE = 10

Compression = Literal["gzip", "zstd"]
_SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
}

_RETURN = 13


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Hold whole lines, valid until the next block is requested.

    Attributes:
        buffer: uint8, C-contiguous; at least PADDING_BYTES of any content follow the lines.
        stop: length of the lines in bytes; buffer[stop - 1] is a newline.
    """

    buffer: Uint8Array
    stop: int


def without_first_line(block: LineBlock) -> LineBlock:
    """Return the lines of a block except the first; perhaps none."""
    first = int(np.flatnonzero(block.buffer[: block.stop] == _NEWLINE)[0]) + 1
    return LineBlock(block.buffer[first:], block.stop - first)


def compression_of(path: str) -> Compression | None:
    """Return how a text file is compressed, by its name.

    Raises DataError when the file's first bytes say something else, or it cannot be read.
    """
    named = _SUFFIXES.get(suffix_of(path))
    with read_errors(path), open_raw(path) as file:
        head = file.read(8)
    found = _kind_of(head)
    if found != named and head:
        kinds = {"gzip": "a name ending in .gz", "zstd": "a name ending in .zst"}
        if found is None:
            remedy = f"drop {suffix_of(path)} from its name, or copy it anew"
        elif found == "Parquet":
            remedy = 'set data.format = "parquet"'
        else:
            remedy = f"give it {kinds[found]}" if found in kinds else "decompress it, or use gzip or zstd"
        raise DataError(f"is {found or f'not {named}'}, by its first bytes", where=path, remedy=remedy)
    return named


def too_long(path: str) -> DataError:
    """Return the error for a line above MAX_LINE_BYTES."""
    return DataError(
        f"has a line of more than {MAX_LINE_BYTES} bytes",
        where=path,
        remedy="check that it is text with one example a line, in which quotes and delimiters are as stated",
    )


def line_blocks(span: Span, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """Yield the lines of a text span, in blocks of about `block_bytes`.

    The span is of kind "bytes" or "stream"; blocks end at line ends.

    A line belongs to the byte range in which its first byte lies. A last line without a newline gets one.
    All blocks share one buffer of `block_bytes` + MAX_LINE_BYTES. Raises DataError for a file that cannot
    be read or decompressed, or became shorter, and for a line that does not fit the buffer.
    """
    memory = bytearray(MAX_LINE_BYTES + block_bytes + 1 + PADDING_BYTES)
    buffer, view = np.frombuffer(memory, np.uint8), memoryview(memory)
    held_bytes = 0
    with read_errors(span.path), _open_span(span) as source:
        while count := source.readinto(view[held_bytes : held_bytes + block_bytes]):
            end = memory.rfind(b"\n", held_bytes, held_bytes + count) + 1
            held_bytes += count
            if end:
                yield LineBlock(buffer, end)
                buffer[: held_bytes - end] = buffer[end:held_bytes]
                held_bytes -= end
            if held_bytes > MAX_LINE_BYTES:
                raise too_long(span.path)
        if held_bytes:
            buffer[held_bytes] = _NEWLINE
            yield LineBlock(buffer, held_bytes + 1)


def first_line(path: str) -> bytes:
    """Return the first line of a text file, without its end.

    Raises DataError if it cannot be read or is empty.
    """
    head = b""
    with read_errors(path), _open_span(Span(0, path, "stream", 0, 1)) as source:
        buffer = memoryview(bytearray(1 << 16))
        while b"\n" not in head and (count := source.readinto(buffer)):
            head += buffer[:count].tobytes()
            if len(head) > MAX_LINE_BYTES:
                raise too_long(path)
    if not head:
        raise DataError("is empty", where=path, remedy="remove it from data.path, or fill it")
    return head.split(b"\n", 1)[0].removesuffix(b"\r")


def line_numbers(span: Span) -> Callable[[int], int]:
    """Return a function that turns a line's index into its number.

    The index counts lines of the span from 0, the number lines of the file from 1.
    """
    before: list[int] = []

    def line_number(index: int) -> int:
        if not before:
            before.append(0 if span.start == 0 else _lines_before(span))
        return before[0] + index + 1

    return line_number


def count_newlines(path: str, stop: int) -> int:
    """Return the newlines in the first `stop` bytes of a plain file.

    Raises DataError if it cannot be read.
    """
    count, left = 0, stop
    with read_errors(path), open_raw(path) as file:
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count


@dataclass(frozen=True, slots=True)
class ParsedLines:
    """Hold the parsed lines of a block.

    Attributes:
        columns: by name, strings [n], not checked to be UTF-8.
        lines: int64 [n], which line of the block, from 0, each row is.
        bad: the reason, by the index of the line.
        starts: int64 [lines + 1], where each line of the block starts, and where one after the last would.
    """

    columns: dict[str, pa.Array]
    lines: IndexArray
    bad: dict[int, str]
    starts: IndexArray


class LineParser:
    """Parse lines that have the columns `names`; return the columns `wanted`.

    A field in quotes may hold the delimiter, and a doubled quote for one quote. A quoted field ends on its
    line. An empty line is skipped. One thread at a time.

    Args:
        delimiter, quote: one ASCII character each; no quote: "".
    """

    def __init__(self, names: list[str], wanted: list[str], delimiter: str, quote: str) -> None:
        self._wanted, self._width = wanted, len(names)
        places = {name: f"f{index}" for index, name in enumerate(names)}
        fields = [places[name] for name in wanted]
        self._convert = pcsv.ConvertOptions(
            check_utf8=False,
            strings_can_be_null=False,
            include_columns=fields,
            column_types=dict.fromkeys(fields, pa.string()),
        )
        self._names = list(places.values())
        self._delimiter, self._quote = delimiter, quote.encode()
        d, q = re.escape(delimiter.encode()), re.escape(self._quote)
        quoted = rb"%s(?:[^%s]|%s%s)*%s|" % (q, q, q, q, q) if quote else b""
        # With quotes a field is a whole quoted one, or one that does not begin with a quote.
        plain = rb"(?:[^%s%s][^%s]*)?" % (d, q, d)
        field = rb"(?:%s%s)" % (quoted, plain)
        self._line = re.compile(rb"%s(?:%s%s)*" % (field, d, field), re.DOTALL)

    def split_line(self, line: bytes) -> list[str]:
        """Return the fields of one line, for a header.

        Raises ValueError where quotes do not match.
        """
        if not self._line.fullmatch(line):
            raise ValueError("quotes that do not match")
        text = line.decode("utf-8", "backslashreplace").removeprefix("\ufeff")
        if not self._quote:
            return text.split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter, quotechar=self._quote.decode()), [])

    def parse(self, block: LineBlock) -> ParsedLines:
        """Parse all lines of a block."""
        data = block.buffer[: block.stop]
        starts = np.concatenate([[0], np.flatnonzero(data == _NEWLINE) + 1])
        bad: dict[int, str] = {}
        lines = np.arange(len(starts) - 1)
        odd = self._odd_lines(data, starts)
        if len(odd):
            lines = lines[~np.isin(lines, self._exclude_lines(data, starts, odd, bad))]
            kept = [data[starts[line] : starts[line + 1]] for line in lines.tolist()]
            data = np.concatenate(kept) if kept else data[:0]
        ragged: list[int] = []

        def skip(row: pcsv.InvalidRow) -> str:
            line = int(lines[row.number - 1])
            ragged.append(row.number - 1)
            bad[line] = f"{row.actual_columns} columns, not {row.expected_columns}"
            return "skip"

        if not len(data):
            return ParsedLines({name: pa.array([], pa.string()) for name in self._wanted}, lines, bad, starts)
        options = pcsv.ReadOptions(
            use_threads=False, block_size=max(len(data), 1 << 16), column_names=self._names
        )
        table = pcsv.read_csv(pa.py_buffer(data), options, self._parse_options(skip), self._convert)
        columns = [column.combine_chunks() for column in table.columns]
        rows = np.delete(lines, ragged) if ragged else lines
        return ParsedLines(dict(zip(self._wanted, columns, strict=True)), rows, bad, starts)

    def _odd_lines(self, data: NDArray[np.uint8], starts: IndexArray) -> IndexArray:
        """Return lines with a quote or carriage return, and empty lines."""
        returns = np.flatnonzero(data == _RETURN)
        marks = [returns[(data[returns + 1] != _NEWLINE) | np.isin(returns, starts)]]
        if self._quote:
            marks.append(np.flatnonzero(data == self._quote[0]))
        marks.append(starts[:-1][np.diff(starts) == 1])
        return np.unique(np.searchsorted(starts, np.concatenate(marks), side="right") - 1)

    def _exclude_lines(
        self, data: NDArray[np.uint8], starts: IndexArray, odd: IndexArray, bad: dict[int, str]
    ) -> list[int]:
        """Return the odd lines to leave out; add reasons to `bad`."""
        excluded = []
        for line in odd.tolist():
            text = data[starts[line] : starts[line + 1]].tobytes()
            text = text.removesuffix(b"\n").removesuffix(b"\r")
            if not text:
                excluded.append(line)
            elif b"\r" in text:
                bad[line] = "a carriage return inside the line"
            elif not self._line.fullmatch(text):
                bad[line] = "quotes that do not match, or a line break inside quotes"
            else:
                continue
            excluded.append(line)
        return excluded

    def _parse_options(self, skip: object) -> pcsv.ParseOptions:
        return pcsv.ParseOptions(
            delimiter=self._delimiter,
            quote_char=self._quote.decode() or False,
            newlines_in_values=False,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        )


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


def _kind_of(head: bytes) -> str | None:
    """Return a file's kind by its first bytes; None for text."""
    if head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:
        return "zstd"  # a skippable frame, which some compressors put first
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


class _ByteRange:
    """Read lines of a plain file that begin in a byte range.

    `readinto` returns 0 after the last of them.
    """

    def __init__(self, file: Any, span: Span) -> None:
        self._file, self._span = file, span
        self._at = self._line_start(span.start)
        self._ended = self._at >= span.stop
        file.seek(self._at)

    def _line_start(self, start: int) -> int:
        """Return the offset of the first line at `start` or later."""
        if start == 0:
            return 0
        self._file.seek(start - 1)
        at = start - 1
        while block := self._file.read(1 << 16):
            newline = int(block.find(b"\n"))
            if newline >= 0:
                return at + newline + 1
            at += len(block)
        return at

    def readinto(self, buffer: memoryview, /) -> int:
        if self._ended:
            return 0
        count = int(self._file.readinto(buffer))
        # The last line is the one that holds byte stop - 1; where it ends, so does the range.
        last = max(self._span.stop - 1 - self._at, 0)
        if count > last:
            newlines = np.flatnonzero(np.frombuffer(buffer, np.uint8)[last:count] == _NEWLINE)
            if len(newlines):
                self._ended = True
                return int(last + newlines[0] + 1)
        if count == 0 and self._at < self._span.stop:
            raise DataError(
                f"ends at byte {self._at}; the plan has it end at byte {self._span.stop} or later",
                where=self._span.path,
                remedy="it became shorter since the job began: leave input files alone while a job runs",
            )
        self._at += count
        return count


@contextmanager
def _open_span(span: Span) -> Iterator[_Readable]:
    compression = compression_of(span.path)
    with open_raw(span.path, forward=span.kind != "bytes") as file:
        if span.kind == "bytes":
            yield _ByteRange(file, span)
        elif compression is None:
            yield file
        else:
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression) as stream:
                yield stream


def _lines_before(span: Span) -> int:
    """Return how many lines of the file begin before the span.

    The span does not start at 0.
    """
    # One begins at byte 0, and one after each newline but one at start - 1, whose line is the span's own.
    return 1 + count_newlines(span.path, span.start - 1)
