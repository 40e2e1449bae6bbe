"""Blocks of whole lines from a plain or compressed text file, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import pyarrow as pa

from ..errors import DataError
from .hashing import PADDING_BYTES, Uint8Array

if TYPE_CHECKING:  # spans.py imports this module to look into the files that it plans
    from .spans import Span

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


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines, valid until the next block is asked for.

    Attributes:
        buffer: uint8, C-contiguous; at least PADDING_BYTES of any content follow the lines.
        stop: length of the lines in bytes; buffer[stop - 1] is a newline.
    """

    buffer: Uint8Array
    stop: int


class _Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int: ...


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Makes the errors of reading `path` (of the system, a decompressor, or Arrow) a DataError."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"cannot be read ({why})", where=path, remedy="check its path and permissions, or copy it anew"
        ) from None


def _kind_of(head: bytes) -> str | None:
    """What a file is that begins with `head`, or None when it may be text."""
    if head[1:4] == b"\x2a\x4d\x18" and head[0] >> 4 == 5:
        return "zstd"  # a skippable frame, which some compressors put first
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def compression_of(path: str) -> Compression | None:
    """How a text file is compressed, by its name.

    Raises DataError when the file's first bytes say something else, or it cannot be read.
    """
    named = _SUFFIXES.get(Path(path).suffix.lower())
    with reading(path), open(path, "rb") as file:
        head = file.read(8)
    found = _kind_of(head)
    if found != named and head:
        kinds = {"gzip": "a name ending in .gz", "zstd": "a name ending in .zst"}
        if found is None:
            remedy = f"drop {Path(path).suffix} from its name, or copy it anew"
        elif found == "Parquet":
            remedy = 'set data.format = "parquet"'
        else:
            remedy = f"give it {kinds[found]}" if found in kinds else "decompress it, or use gzip or zstd"
        raise DataError(f"is {found or f'not {named}'} by its first bytes", where=path, remedy=remedy)
    return named


class _Range:
    """The lines that begin in a byte range of a plain file; `readinto` gives 0 after the last of them."""

    def __init__(self, file: FileIO, span: Span) -> None:
        self._file, self._span = file, span
        self._at = self._line_start(span.start)
        self._ended = self._at >= span.stop
        file.seek(self._at)

    def _line_start(self, start: int) -> int:
        """Offset of the first line that begins at `start` or later."""
        if start == 0:
            return 0
        self._file.seek(start - 1)
        at = start - 1
        while block := self._file.read(1 << 16):
            newline = block.find(b"\n")
            if newline >= 0:
                return at + newline + 1
            at += len(block)
        return at

    def readinto(self, buffer: memoryview, /) -> int:
        if self._ended:
            return 0
        count = self._file.readinto(buffer)
        # The last line is the one that holds byte stop - 1; where it ends, so does the range.
        last = max(self._span.stop - 1 - self._at, 0)
        if count > last:
            newlines = np.flatnonzero(np.frombuffer(buffer, np.uint8)[last:count] == _NEWLINE)
            if len(newlines):
                self._ended = True
                return last + int(newlines[0]) + 1
        if count == 0 and self._at < self._span.stop:
            raise DataError(
                f"ends at byte {self._at}, before byte {self._span.stop}",
                where=self._span.path,
                remedy="it became shorter since the job began: leave input files alone while a job runs",
            )
        self._at += count
        return count


@contextmanager
def _opened(span: Span) -> Iterator[_Readable]:
    compression = compression_of(span.path)
    if span.kind == "bytes":
        with open(span.path, "rb", buffering=0) as file:
            yield _Range(file, span)
    else:
        with pa.OSFile(span.path, "rb") as packed, pa.CompressedInputStream(packed, compression) as stream:
            yield stream


def too_long(path: str) -> DataError:
    """The error for a line above MAX_LINE_BYTES."""
    return DataError(
        f"has a line of more than {MAX_LINE_BYTES} bytes",
        where=path,
        remedy="check that it is tab-separated text with one example a line",
    )


def line_blocks(span: Span, block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """The lines of a span of kind "bytes" or "stream", in blocks of about `block_bytes` ending at line ends.

    A line belongs to the byte range in which its first byte lies. A last line without a newline gets one.
    All blocks share one buffer of `block_bytes` + MAX_LINE_BYTES. Raises DataError for a file that cannot
    be read or decompressed, or became shorter, and for a line that does not fit the buffer.
    """
    memory = bytearray(MAX_LINE_BYTES + block_bytes + 1 + PADDING_BYTES)
    buffer, view = np.frombuffer(memory, np.uint8), memoryview(memory)
    held = 0
    with reading(span.path), _opened(span) as source:
        while count := source.readinto(view[held : held + block_bytes]):
            end = memory.rfind(b"\n", held, held + count) + 1
            held += count
            if end:
                yield LineBlock(buffer, end)
                buffer[: held - end] = buffer[end:held]
                held -= end
            if held > MAX_LINE_BYTES:
                raise too_long(span.path)
        if held:
            buffer[held] = _NEWLINE
            yield LineBlock(buffer, held + 1)


def count_newlines(path: str, stop: int) -> int:
    """How many newlines the first `stop` bytes of a plain file have; DataError if it cannot be read."""
    count, left = 0, stop
    with reading(path), open(path, "rb", buffering=0) as file:
        while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
            count += block.count(b"\n")
            left -= len(block)
    return count
