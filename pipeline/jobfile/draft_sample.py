"""The first rows of files that nobody has described yet."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl
import pyarrow.parquet as pq

from ..data.kafka_client import is_topic
from ..data.paths import (
    absolute_path,
    file_size_bytes,
    is_url,
    match_files,
    open_for_arrow,
    read_errors,
    suffix_of,
)
from ..data.span import Span
from ..data.text import line_blocks
from ..errors import DataError, JobFileError
from ..text.format import counted
from .draft_missing import numbers_of

SAMPLE_BYTES: Final = 16 << 20
SAMPLE_ROWS: Final = 100_000
_TEXT_SUFFIXES: Final = (".csv", ".tsv", ".txt", ".tab")
_PARQUET_SUFFIXES: Final = (".parquet", ".pq")
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_DELIMITERS: Final = (",", "\t", ";", "|")
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
Encoding = Literal["utf-8", "cp1252"]


@dataclass(frozen=True)
class InputSample:
    """The first rows of the first file.

    Attributes:
        pattern: the pattern of the files for the job file.
        format: "csv", "tsv" or "parquet".
        delimiter: delimiter of text; "" for the format's own.
        header: whether the first line of a text file names the columns.
        encoding: encoding of text.
        frame: the rows. Columns of a text file are texts, with nulls for empty fields.
        rows: approximate number of rows of all files; exact if `whole`.
        whole: whether the frame has all rows of all files.
        bytes: bytes of all files on disk.
        repeated: names that the first line has more than once, so that it is no header.
        strip: whether fields of text have blanks around them, which the frame has not.
    """

    pattern: str
    format: Literal["csv", "tsv", "parquet"]
    delimiter: str
    header: bool
    encoding: Encoding
    frame: pl.DataFrame
    rows: int
    whole: bool
    bytes: int
    repeated: tuple[str, ...] = ()
    strip: bool = False


def read_sample(source: str) -> InputSample:
    """Read the first rows of a file.

    From a glob or folder the first file is read. Raises DataError for files that cannot be read or are not of
    one kind, JobFileError for text without a clear delimiter.
    """
    if is_topic(source):
        raise DataError(
            "is a topic, whose columns have no names",
            where=source,
            remedy="write its rows to a file for this, and then set data.path, header and [data.kafka]",
        )
    pattern = absolute_path(source)
    if not is_url(pattern) and Path(pattern).is_dir():
        pattern = _of_folder(Path(pattern))
    paths = match_files([pattern])
    kinds = {_kind_of(path) for path in paths}
    if len(kinds) > 1:
        raise DataError(
            f"has files of several kinds: {', '.join(sorted(kinds))}",
            where=source,
            remedy='give those of one kind, as in "folder/*.csv"',
        )
    sizes = [file_size_bytes(path) or 0 for path in paths]
    return (_of_parquet if kinds == {"parquet"} else _of_text)(pattern, paths, sizes)


def _of_folder(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    endings = {
        "".join(Path(name).suffixes[-2:]) if name.endswith(_COMPRESSED) else Path(name).suffix
        for name in names
    }
    if len(endings) != 1:
        found = ", ".join(sorted(ending or "none" for ending in endings)) or "no file"
        raise DataError(
            f"has files of several endings ({found})" if endings else "has no file",
            where=str(folder),
            remedy='give the files to train on, as in "folder/*.csv"',
        )
    return str(folder / f"*{endings.pop()}")


def _kind_of(path: str) -> str:
    suffix = suffix_of(path)
    if suffix in _COMPRESSED:
        suffix = suffix_of(path[: -len(suffix)])
    if suffix in _PARQUET_SUFFIXES:
        return "parquet"
    if suffix in _TEXT_SUFFIXES or not suffix:
        return "text"
    raise DataError(
        f"has the ending {suffix}",
        where=path,
        remedy="give text (.csv, .tsv, .txt, also .gz or .zst) or Parquet (.parquet)",
    )


def _of_parquet(pattern: str, paths: list[str], sizes: list[int]) -> InputSample:
    with read_errors(paths[0]), open_for_arrow(paths[0]) as source, pq.ParquetFile(source) as file:
        in_file = file.metadata.num_rows
        batch = next(file.iter_batches(SAMPLE_ROWS), None)
        frame = pl.DataFrame() if batch is None else pl.DataFrame(pl.from_arrow(batch))
    if frame.is_empty():
        raise DataError("has no rows", where=paths[0], remedy="give a file with rows")
    rows = round(in_file * _files_of_first(sizes))
    whole = len(paths) == 1 and in_file == len(frame)
    return InputSample(pattern, "parquet", "", True, "utf-8", frame, rows, whole, sum(sizes))


def _files_of_first(sizes: list[int]) -> float:
    """Return how many files of the first one's size all files are.

    It is their number if the size is unknown.
    """
    return sum(sizes) / sizes[0] if sizes[0] else len(sizes)


def _of_text(pattern: str, paths: list[str], sizes: list[int]) -> InputSample:
    blocks = line_blocks(Span(0, paths[0], "stream", 0, 1), SAMPLE_BYTES)
    block = next(blocks, None)
    if block is None:
        raise DataError("has no rows", where=paths[0], remedy="give a file with rows")
    raw = block.buffer[: block.stop].tobytes()
    encoding: Encoding = "utf-8"
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        encoding, text = "cp1252", raw.decode("cp1252", "replace")
    lines = text.replace("\r\n", "\n").split("\n")[:-1]
    if "\r" in lines[0]:
        raise DataError(
            "has carriage returns within its first line",
            where=paths[0],
            remedy="if lines end with these alone, convert them to line feeds: tr '\\r' '\\n' < FILE > NEW",
        )
    delimiter = _delimiter_of(lines, paths[0])
    fields = lines[0].split(delimiter)
    named = not any(_NUMBER.fullmatch(field) for field in fields)
    repeated = tuple(name for name, times in Counter(fields).items() if named and times > 1)
    header = named and not repeated
    try:
        frame = pl.read_csv(
            io.StringIO(text),
            separator=delimiter,
            has_header=header,
            infer_schema=False,
            n_rows=SAMPLE_ROWS,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read as rows of fields ({str(error).splitlines()[0]})",
            where=paths[0],
            remedy='correct its quotes, or write [data] by hand, with data.quote = "" if it has none',
        ) from error
    if not header:
        frame.columns = [f"column_{number}" for number in range(1, frame.width + 1)]
    if frame.is_empty():
        raise DataError("has no rows besides its header", where=paths[0], remedy="give a file with rows")
    for name in frame.columns:
        if broken := int(frame[name].str.contains("\n", literal=True).sum()):
            raise DataError(
                f"column {name!r} has line breaks within {counted(broken, 'field')} of the first rows",
                where=paths[0],
                remedy="remove the line breaks, or convert the file to Parquet",
            )
    if strip := _has_blanks_around(frame):
        frame = frame.select(pl.all().str.strip_chars().name.map(str.strip))
    # The size of a compressed file's text is not known. Compression shrinks text to about a quarter.
    bytes_of_file = sizes[0] * (4 if suffix_of(paths[0]) in _COMPRESSED else 1)
    whole = len(paths) == 1 and len(frame) < SAMPLE_ROWS and next(blocks, None) is None
    rows = (
        len(frame)
        if whole
        else round(len(lines) * max(1.0, bytes_of_file / len(raw)) * _files_of_first(sizes))
    )
    kind: Literal["csv", "tsv"] = "tsv" if delimiter == "\t" else "csv"
    own = delimiter in (",", "\t")
    delimiter = "" if own else delimiter
    total = sum(sizes)
    return InputSample(pattern, kind, delimiter, header, encoding, frame, rows, whole, total, repeated, strip)


def _delimiter_of(lines: list[str], path: str) -> str:
    """Return the delimiter that splits the lines into the most fields.

    Every line must have at least as many as the first one. Raises JobFileError if no delimiter fits.
    """
    some = [line for line in _rows_of(lines[:20]) if line]
    counts = {one: some[0].count(one) for one in _DELIMITERS} if some else {}
    # A delimiter within quotes makes a line longer, never shorter.
    fitting = {one: n for one, n in counts.items() if n and all(line.count(one) >= n for line in some)}
    if not fitting:
        raise JobFileError(
            f"{path}: no delimiter splits its lines alike (tried comma, tab, semicolon and bar)",
            remedy="write [data] by hand: data.delimiter, and [data.columns]",
        )
    return max(fitting, key=lambda one: fitting[one])


def _rows_of(lines: list[str]) -> list[str]:
    """Join lines between which a quote is open; leave out an unfinished row."""
    rows: list[str] = []
    begun = ""
    for line in lines:
        begun = f"{begun}\n{line}" if begun else line
        if begun.count('"') % 2 == 0:
            rows.append(begun)
            begun = ""
    return rows or lines


def _has_blanks_around(frame: pl.DataFrame) -> bool:
    """Return whether a blank follows each delimiter, or numbers have blanks around them."""
    columns = [frame[name].drop_nulls() for name in frame.columns]
    if columns[1:] and all(len(one) and one.str.starts_with(" ").all() for one in columns[1:]):
        return True
    return any(
        bool(one.str.contains(r"^\s|\s$").any()) and numbers_of(one) is not None
        for one in columns
        if len(one)
    )
