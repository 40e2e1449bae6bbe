"""Blocks of lines of plain or compressed text, in bounded memory."""

from __future__ import annotations

from bisect import bisect_right
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa

from ...config.kafka import KafkaSection
from ...errors import DataError
from ...types import Uint8Array
from ..hashing import PADDING_BYTES
from ..span import Span
from .gunzip import Gunzip
from .kafka_client import PLAINTEXT
from .paths import EmptyFile, open_raw, read_errors, suffix_of
from .topic import open_offsets

BLOCK_BYTES = 1 << 19
MAX_LINE_BYTES = 1 << 20
_NEWLINE = 10

Compression = Literal["gzip", "zstd"]
Encoding = Literal["utf-8", "latin-1", "cp1252"]
_SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_UTF_16 = "text in UTF-16"
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"\xff\xfe": _UTF_16,
    b"\xfe\xff": _UTF_16,
}


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, valid until the next block is requested.

    Attributes:
        buffer: uint8, C-contiguous; at least PADDING_BYTES of any content follow the lines.
        stop: length of the lines in bytes; buffer[stop - 1] is a newline.
    """

    buffer: Uint8Array
    stop: int


def _without_first_line(block: LineBlock) -> LineBlock:
    first = int(np.flatnonzero(block.buffer[: block.stop] == _NEWLINE)[0]) + 1
    return LineBlock(block.buffer[first:], block.stop - first)


def compression_of(path: str) -> Compression | None:
    """Return how a text file is compressed, by its name.

    Raises DataError when the file's first bytes do not fit its name, or it cannot be read.
    """
    named = _SUFFIXES.get(suffix_of(path))
    with read_errors(path), open_raw(path) as file:
        head = file.read(8)
    actual = _kind_of(head)
    if actual != named and head:
        kinds = {"gzip": "a name ending in .gz", "zstd": "a name ending in .zst"}
        if actual is None:
            remedy = f"drop {suffix_of(path)} from its name, or copy it anew"
        elif actual == "Parquet":
            remedy = 'set data.format = "parquet"'
        elif actual == _UTF_16:
            remedy = "convert it to UTF-8: iconv -f utf-16 -t utf-8"
        else:
            remedy = f"give it {kinds[actual]}" if actual in kinds else "decompress it, or use gzip or zstd"
        raise DataError(f"is {actual or f'not {named}'}, by its first bytes", where=path, remedy=remedy)
    return named


def too_long(path: str) -> DataError:
    """Return the error for a line above MAX_LINE_BYTES."""
    return DataError(
        f"has a line of more than {MAX_LINE_BYTES} bytes",
        where=path,
        remedy="check that it is text with one example a line, in which quotes and delimiters are as stated",
    )


def line_blocks(
    span: Span,
    block_bytes: int = BLOCK_BYTES,
    *,
    encoding: Encoding = "utf-8",
    kafka: KafkaSection = PLAINTEXT,
    header: bool = False,
) -> Iterator[LineBlock]:
    """Yield the lines of a text span as UTF-8, in blocks of about `block_bytes`.

    The span is of kind "bytes", "stream" or "offsets". Blocks have whole lines; a last line without a newline
    gets one. A line belongs to the byte range that has its first byte. Blocks of UTF-8 share one buffer of
    `block_bytes` + MAX_LINE_BYTES; text in another `encoding` is converted into new memory.
    `kafka` is for a topic's span. With `header` the first line of the file is left out.

    Raises DataError for a file that cannot be read or decompressed, or became shorter, for a line that does
    not fit the buffer, and for bytes that are no character of `encoding`.
    """
    for block in _line_blocks(span, block_bytes, kafka, header=header):
        yield block if encoding == "utf-8" else _to_utf_8(block, encoding, span.path)


def _line_blocks(span: Span, block_bytes: int, kafka: KafkaSection, *, header: bool) -> Iterator[LineBlock]:
    at_start = span.start == 0 and span.kind != "offsets"
    for block in _raw_blocks(span, block_bytes, kafka):
        if at_start and bytes(block.buffer[: len(BOM_UTF8)]) == BOM_UTF8:
            # A mark of UTF-8, which some programs write first, is no part of the first field.
            block = LineBlock(block.buffer[len(BOM_UTF8) :], block.stop - len(BOM_UTF8))
        if header and span.start == 0:
            block, header = _without_first_line(block), False
        at_start = False
        if block.stop:
            yield block


def _raw_blocks(span: Span, block_bytes: int, kafka: KafkaSection) -> Iterator[LineBlock]:
    memory = bytearray(MAX_LINE_BYTES + block_bytes + 1 + PADDING_BYTES)
    buffer, view = np.frombuffer(memory, np.uint8), memoryview(memory)
    held_bytes = 0
    with read_errors(span.path), _open_span(span, kafka) as source:
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


def _to_utf_8(block: LineBlock, encoding: Encoding, path: str) -> LineBlock:
    text = _decoded(block.buffer[: block.stop].tobytes(), encoding, path).encode()
    return LineBlock(np.frombuffer(text + bytes(PADDING_BYTES), np.uint8), len(text))


def _decoded(text: bytes, encoding: Encoding, path: str) -> str:
    """Return the text decoded; raises DataError for bytes that are not valid."""
    try:
        return text.decode(encoding)
    except UnicodeDecodeError as error:
        byte = text[error.start : error.start + 1].hex()
        raise DataError(
            f"has a byte {byte} that is not valid {encoding}",
            where=path,
            remedy="set data.encoding to the encoding of the file, or convert the file",
        ) from error


def bytes_after(span: Span, limit: int) -> bytes:
    """Return up to `limit` bytes after a span's last line.

    At the end of the file this is b"". Raises DataError if the file cannot be read.
    """
    if span.kind != "bytes" or span.stop == 0:
        return b""
    with read_errors(span.path), open_raw(span.path) as file:
        file.seek(span.stop - 1)
        block = bytes(file.read(limit + MAX_LINE_BYTES))
    end = block.find(b"\n")
    return block[end + 1 :][:limit] if end >= 0 else b""


def first_line(span: Span, encoding: Encoding = "utf-8", kafka: KafkaSection = PLAINTEXT) -> bytes:
    """Return the first line of a span's file as UTF-8, without its line end.

    In a topic it is that of the span. Raises DataError if the file cannot be read or is empty.
    """
    path, head = span.path, b""
    opened = span if span.kind == "offsets" else Span(0, path, "stream", 0, 1)
    with read_errors(path), _open_span(opened, kafka) as source:
        buffer = memoryview(bytearray(1 << 16))
        while b"\n" not in head and (count := source.readinto(buffer)):
            head += buffer[:count].tobytes()
            if len(head) > MAX_LINE_BYTES:
                raise too_long(path)
    if not head:
        raise EmptyFile(path, "is empty")
    return _decoded(head.split(b"\n", 1)[0].removesuffix(b"\r"), encoding, path).encode()


def line_numbers(span: Span, *, header: bool = False) -> Callable[[int], int]:
    """Return a function that turns a line's index into its number.

    The index counts the lines of the span from 0, without a `header`; the number those of the file from 1. In
    a topic the number is the message's offset, if no message is missing. The function may read the file up to
    the span.
    """
    skipped = int(header and span.start == 0)
    if span.kind == "offsets":
        return lambda index: span.start + skipped + index
    before: list[int] = []

    def line_number(index: int) -> int:
        if not before:
            before.append(skipped if span.start == 0 else LineCounts().before(span))
        return before[0] + index + 1

    return line_number


class LineCounts:
    """How many lines of a file come before a span; used by one thread.

    Counts are kept, and each goes on from the nearest one before it.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[tuple[int, int]]] = {}

    def before(self, span: Span) -> int:
        """Return how many lines begin before the span; 0 if it is a whole file.

        May read the file up to the span. Raises DataError if it cannot be read.
        """
        if span.start == 0:
            return 0
        # A line begins at byte 0 and after each newline. After one at start - 1 it is the span's own.
        stop, known = span.start - 1, self._known.setdefault(span.path, [(0, 0)])
        place = bisect_right(known, stop, key=lambda entry: entry[0])
        start, count = known[place - 1]
        if start < stop:
            count += count_newlines(span.path, stop, start)
            known.insert(place, (stop, count))
        return 1 + count


def count_newlines(path: str, stop: int, start: int = 0) -> int:
    """Return the newlines in the bytes `start` to `stop` - 1 of a plain file.

    Raises DataError if it cannot be read.
    """
    count, left = 0, stop - start
    with read_errors(path), open_raw(path) as file:
        file.seek(start)
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


def _kind_of(head: bytes) -> str | None:
    """Return a file's kind by its first bytes; None for text."""
    if head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:
        return "zstd"  # a skippable frame, which some compressors put first
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


class _ByteRange:
    """Read the lines of a plain file that begin in a byte range.

    `readinto` returns 0 after the last line.
    """

    def __init__(self, file: Any, span: Span) -> None:
        self._file, self._span = file, span
        self._position = self._line_start(span.start)
        self._ended = self._position >= span.stop
        file.seek(self._position)

    def _line_start(self, start: int) -> int:
        """Return the offset of the first line at `start` or later."""
        if start == 0:
            return 0
        self._file.seek(start - 1)
        position = start - 1
        while block := self._file.read(1 << 16):
            newline = int(block.find(b"\n"))
            if newline >= 0:
                return position + newline + 1
            position += len(block)
        return position

    def readinto(self, buffer: memoryview, /) -> int:
        if self._ended:
            return 0
        count = int(self._file.readinto(buffer))
        # The range ends with the line that has byte stop - 1.
        last = max(self._span.stop - 1 - self._position, 0)
        if count > last:
            newlines = np.flatnonzero(np.frombuffer(buffer, np.uint8)[last:count] == _NEWLINE)
            if len(newlines):
                self._ended = True
                return int(last + newlines[0] + 1)
        if count == 0 and self._position < self._span.stop:
            raise DataError(
                f"ends at byte {self._position}; the plan has it end at byte {self._span.stop} or later",
                where=self._span.path,
                remedy="it became shorter since the job began: leave input files alone while a job runs",
            )
        self._position += count
        return count


@contextmanager
def _open_span(span: Span, kafka: KafkaSection = PLAINTEXT) -> Iterator[_Readable]:
    if span.kind == "offsets":
        with open_offsets(span, kafka) as reader:
            yield reader
        return
    compression = compression_of(span.path)
    with open_raw(span.path, forward=span.kind != "bytes") as file:
        if span.kind == "bytes":
            yield _ByteRange(file, span)
        elif compression is None:
            yield file
        elif compression == "gzip":
            yield Gunzip(file)
        else:
            with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), compression) as stream:
                yield stream
