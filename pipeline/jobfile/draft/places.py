"""Rows at places that are spread over all files, read within a bounded time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ...data.columns.fields import is_text, plain_type
from ...data.files.paths import can_seek, file_size_bytes, read_errors
from ...data.files.text import compression_of, line_blocks
from ...data.formats.parquet import BATCH_ROWS, open_parquet
from ...data.span import Span
from ...errors import DataError

SAMPLE_BYTES = 16 << 20
SAMPLE_ROWS = 100_000
SAMPLE_SECONDS = 5.0
_PLACES: Final = 32
_LEAST_PLACES: Final = 3
_MOST_FILES: Final = 512
_LEAST_BYTES: Final = 1 << 14
# Compression shrinks text to about a quarter.
_COMPRESSION: Final = 4


@dataclass
class TextFile:
    """Lines of a text file.

    Attributes:
        pieces: whole lines at places of the file, in order; the first piece has the first line.
        whole: whether the pieces are the whole file.
        text_bytes: bytes of its text without compression; an estimate if its end was not seen.
        to_end: whether the places reach to its end.
    """

    path: str
    pieces: list[bytes]
    whole: bool
    text_bytes: float
    to_end: bool


@dataclass
class ParquetRows:
    """Rows of Parquet files at places that are spread over them.

    `rows` is the number of rows of all files, an estimate if not all were opened.
    """

    frame: pl.DataFrame
    rows: int
    to_end: bool


def spread(items: Sequence[str], most: int) -> list[str]:
    """Return up to `most` of the items, evenly spread from first to last."""
    if len(items) <= most:
        return list(items)
    return [items[number * (len(items) - 1) // (most - 1)] for number in range(most)]


def read_text(paths: Sequence[str]) -> list[TextFile]:
    """Read lines at places of the files, about `SAMPLE_BYTES` in all.

    Of more than 512 files only so many are read. A file that cannot be read in the middle, as a compressed
    one, is read through while there is time. Raises DataError as `line_blocks`.
    """
    chosen = spread(paths, _MOST_FILES)
    until = time.monotonic() + SAMPLE_SECONDS
    places = max(_LEAST_PLACES, _PLACES // len(chosen))
    files = []
    for number, path in enumerate(chosen):
        left = len(chosen) - number
        deadline = time.monotonic() + max(0.0, until - time.monotonic()) / left
        files.append(_read_file(path, SAMPLE_BYTES // len(chosen), places, deadline))
    return files


def _read_file(path: str, most_bytes: int, places: int, until: float) -> TextFile:
    with read_errors(path):
        size = file_size_bytes(path)
    compressed = compression_of(path) is not None
    if compressed or size is None or not can_seek(path):
        guess = (size or 0) * (_COMPRESSION if compressed else 1)
        return _read_through(path, guess, most_bytes, places, until)
    if size <= most_bytes:
        return TextFile(path, [_lines(path, 0, size, size)], True, size, True)
    each = max(_LEAST_BYTES, most_bytes // places)
    places = min(places, max(1, size // each))
    starts = [number * (size - each) // max(1, places - 1) for number in range(places)]
    pieces = [_lines(path, start, size, each) for start in starts]
    return TextFile(path, [piece for piece in pieces if piece], False, size, places > 1)


def _lines(path: str, start: int, size: int, size_wanted: int) -> bytes:
    """Return the lines of a plain file that begin within `size_wanted` bytes of `start`."""
    lines = bytearray()
    for block in line_blocks(
        Span(0, path, "bytes", start, min(size, start + size_wanted)), max(1, size_wanted)
    ):
        lines += block.buffer[: block.stop].tobytes()
    return bytes(lines)


def _read_through(path: str, guess: float, most_bytes: int, places: int, until: float) -> TextFile:
    """Read a file from its start; keep evenly spread blocks, as many as fit."""
    places = max(2, places)
    each = max(_LEAST_BYTES, most_bytes // places)
    kept: list[tuple[int, bytes]] = []
    stride, read, ended = 1, 0, True
    for number, block in enumerate(line_blocks(Span(0, path, "stream", 0, 1), each)):
        read += block.stop
        if number % stride == 0:
            kept.append((number, block.buffer[: block.stop].tobytes()))
        if len(kept) > places:
            stride *= 2
            kept = [line for line in kept if line[0] % stride == 0]
        if time.monotonic() > until:
            ended = False
            break
    whole = ended and stride == 1
    return TextFile(path, [text for _, text in kept], whole, read if ended else max(guess, read), ended)


def read_parquet(paths: Sequence[str], sizes: Sequence[int]) -> ParquetRows:
    """Read rows at places of the files, about `SAMPLE_ROWS` in all.

    Files without rows are passed over. Raises DataError for a file that cannot be read, has other columns
    than the first, or if no file has rows.
    """
    chosen = spread(list(paths), _MOST_FILES)
    until = time.monotonic() + SAMPLE_SECONDS
    rows = {path: _parquet_rows(path) for path in chosen}
    total = sum(rows.values())
    if not total:
        raise DataError("has no rows", where=paths[0], remedy="give a file with rows")
    frames: list[pl.DataFrame] = []
    filled = [path for path in chosen if rows[path]]
    for number, path in enumerate(filled):
        deadline = time.monotonic() + max(0.0, until - time.monotonic()) / (len(filled) - number)
        frames += _parquet_frames(path, rows[path], total, deadline)
        if (names := frames[-1].columns) != frames[0].columns and set(names) != set(frames[0].columns):
            raise other_columns(path, names, filled[0], frames[0].columns)
    try:
        frame = pl.concat([sampled.select(frames[0].columns) for sampled in frames], how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0]
        remedy = "give each column one type in all files"
        raise DataError(
            f"its files have columns of other types ({why})", where=paths[0], remedy=remedy
        ) from error
    known = sum(size for path, size in zip(paths, sizes, strict=True) if path in rows)
    return ParquetRows(frame, round(total * sum(sizes) / known) if known else total, len(frames) > 1)


def other_columns(path: str, names: Sequence[str], first: str, needed: Sequence[str]) -> DataError:
    """Return the error for a file that has other columns than the first one."""
    lacks, more = set(needed) - set(names), set(names) - set(needed)
    said = [f"lacks {', '.join(map(repr, sorted(lacks)[:5]))}"] * bool(lacks)
    said += [f"has {', '.join(map(repr, sorted(more)[:5]))}"] * bool(more)
    return DataError(
        f"has other columns than {first}: it {' and '.join(said)}",
        where=path,
        remedy="give files of one kind, or name the columns alike",
    )


def require_own_names(path: str, names: Sequence[str]) -> None:
    """Raise DataError for a name that a file has twice."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(
            f"has column {twice[0]!r} more than once", where=path, remedy="give each column a name of its own"
        )


def _parquet_rows(path: str) -> int:
    with open_parquet(path) as file:
        require_own_names(path, file.schema_arrow.names)
        return int(file.metadata.num_rows)


def _parquet_frames(path: str, rows: int, total: int, until: float) -> Iterator[pl.DataFrame]:
    """Yield runs of rows of a file: its share of the sample."""
    sample_rows = max(1, min(rows, SAMPLE_ROWS * rows // total))
    with open_parquet(path) as file:
        if sample_rows == rows:
            yield _frame(file.read())
            return
        each = max(1, sample_rows // _PLACES)
        starts = [number * (rows - each) // (_PLACES - 1) for number in range(_PLACES)]
        first = 0
        for group in range(file.num_row_groups):
            last = first + file.metadata.row_group(group).num_rows
            inside = [start - first for start in starts if first <= start < last]
            if inside and (time.monotonic() < until or not group):
                yield from _runs(file, group, inside, each)
            first = last


def _runs(file: pq.ParquetFile, group: int, starts: Sequence[int], each: int) -> Iterator[pl.DataFrame]:
    """Yield up to `each` rows of a row group from each start on."""
    left, begin = list(starts), 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group]):
        end = begin + len(batch)
        while left and left[0] < end:
            yield _frame(batch.slice(left.pop(0) - begin, each))
        begin = end
        if not left:
            return


def _frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    """Return rows for polars, which ends the process at a text that is not UTF-8, and knows fewer zones.

    A column of texts or bytes has texts if all are UTF-8, else bytes: training reads both alike. Times have
    no zone.
    """
    columns = []
    for column in rows.columns:
        raw = column.cast(_plain(column.type, pa.large_binary()))
        try:
            columns.append(raw.cast(_plain(column.type, pa.large_string())))
        except pa.ArrowInvalid:
            columns.append(raw)
    return pl.DataFrame(pl.from_arrow(pa.Table.from_arrays(columns, names=rows.schema.names)))


def _plain(kind: pa.DataType, text: pa.DataType) -> pa.DataType:
    """Return a type with texts of type `text` and times without a zone, also within lists and structs."""
    if is_text(plain_type(kind)):
        return text
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_plain(kind.value_type, text))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type, text)) for field in kind.fields])
    return kind
