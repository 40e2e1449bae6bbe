"""Some rows of files that nobody has described yet."""

from __future__ import annotations

import glob
import io
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import polars as pl

from ...data.files.kafka_client import is_topic
from ...data.files.paths import (
    absolute_path,
    file_size_bytes,
    is_url,
    match_files,
    suffix_of,
    without_marks,
)
from ...data.formats.line_parser import LineParser
from ...errors import DataError, JobFileError
from ...text.format import counted
from .missing import numbers_of
from .places import SAMPLE_ROWS, TextFile, other_columns, read_parquet, read_text, require_own_names

_TEXT_SUFFIXES: Final = (".csv", ".tsv", ".txt", ".tab")
_PARQUET_SUFFIXES: Final = (".parquet", ".pq")
_COMPRESSED: Final = (".gz", ".zst", ".zstd")
_DELIMITERS: Final = (",", "\t", ";", "|")
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_OF_QUOTES: Final = 'correct its quotes, or write [data] by hand, with data.quote = "" if it has none'
Encoding = Literal["utf-8", "cp1252"]


@dataclass(frozen=True)
class InputSample:
    """Rows at places that are spread over all files.

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
        to_end: whether the rows are of the whole input; else there was no time to read a file to its end.
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
    to_end: bool = True


def read_sample(source: str, like: InputSample | None = None) -> InputSample:
    """Read rows at several places of every file, within some seconds.

    With `like`, files of the test, text is read with its delimiter and header. Raises DataError for files
    that cannot be read, are not of one kind or lack columns of `like`, JobFileError for text without a clear
    delimiter.
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
    if like is not None and (like.format == "parquet") != (kinds == {"parquet"}):
        known = "Parquet" if like.format == "parquet" else "text"
        raise DataError(
            f"is not {known}, as the training data is", where=source, remedy="convert one of them"
        )
    if kinds != {"parquet"}:
        # As a job does. A Parquet file without a byte is a damaged one.
        paths = [path for path in paths if file_size_bytes(path) != 0] or paths
    sizes = [file_size_bytes(path) or 0 for path in paths]
    if kinds == {"parquet"}:
        sample = _of_parquet(pattern, paths, sizes)
    else:
        sample = _of_text(pattern, paths, sizes, like)
    if like is not None and (lacks := set(like.frame.columns) - set(sample.frame.columns)):
        raise other_columns(paths[0], sample.frame.columns, like.pattern, sorted(lacks))
    return sample


def _of_folder(folder: Path) -> str:
    files = without_marks(str(path) for path in folder.iterdir() if path.is_file())
    names = sorted(name for name in map(os.path.basename, files) if not name.startswith("."))
    endings = {
        "".join(Path(name).suffixes[-2:]) if name.endswith(_COMPRESSED) else Path(name).suffix
        for name in names
    }
    if len(endings) != 1:
        named = ", ".join(sorted(ending or "none" for ending in endings)) or "no file"
        raise DataError(
            f"has files of several endings ({named})" if endings else "has no file",
            where=str(folder),
            remedy='give the files to train on, as in "folder/*.csv"',
        )
    return os.path.join(glob.escape(str(folder)), f"*{glob.escape(endings.pop())}")


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
    read = read_parquet(paths, sizes)
    whole = len(read.frame) == read.rows
    return InputSample(pattern, "parquet", "", True, "utf-8", read.frame, read.rows, whole, sum(sizes))


def _of_text(
    pattern: str, paths: list[str], sizes: list[int], like: InputSample | None = None
) -> InputSample:
    files = read_text(paths)
    first = files[0]
    if not any(first.pieces):
        raise DataError("has no rows", where=paths[0], remedy="give a file with rows")
    encoding: Encoding = "utf-8" if all(map(_is_utf_8, files)) else "cp1252"
    lines = _decoded(first.pieces[0], encoding).split("\n")[:-1]
    if "\r" in lines[0]:
        raise DataError(
            "has carriage returns within its first line",
            where=paths[0],
            remedy="if lines end with these alone, convert them to line feeds: tr '\\r' '\\n' < FILE > NEW",
        )
    if like is None:
        delimiter = _delimiter_of(lines, paths[0])
    else:
        delimiter = like.delimiter or {"csv": ",", "tsv": "\t"}[like.format]
    fields = _fields_of(lines[0], delimiter, paths[0])
    # A number in quotes may be a name.
    named = not any(_NUMBER.fullmatch(field) for field in lines[0].split(delimiter))
    repeated = tuple(name for name, times in Counter(fields).items() if named and times > 1)
    header = named and not repeated if like is None else like.header
    width = 0 if like is None or header else like.frame.width
    frames = [_rows_of_file(file, delimiter, encoding, header=header, width=width) for file in files]
    frame = _one_frame(frames, files)
    if frame.is_empty():
        raise DataError("has no rows besides its header", where=paths[0], remedy="give a file with rows")
    if strip := _has_blanks_around(frame):
        frame = frame.select(pl.all().str.strip_chars().name.map(str.strip))
    read = sum(len(piece) for file in files for piece in file.pieces)
    text_bytes = sum(file.text_bytes for file in files) * len(paths) / len(files)
    whole = all(file.whole for file in files) and len(files) == len(paths)
    rows = len(frame) if whole else round(len(frame) * max(1.0, text_bytes / read))
    to_end = all(file.to_end for file in files)
    if len(frame) > SAMPLE_ROWS:
        frame, whole = _thinned(frame), False
    kind: Literal["csv", "tsv"] = "tsv" if delimiter == "\t" else "csv"
    return InputSample(
        pattern,
        kind,
        "" if delimiter in (",", "\t") else delimiter,
        header,
        encoding,
        frame,
        rows,
        whole,
        sum(sizes),
        repeated,
        strip,
        to_end,
    )


def _is_utf_8(file: TextFile) -> bool:
    try:
        for piece in file.pieces:
            piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(piece: bytes, encoding: Encoding) -> str:
    return piece.decode(encoding, "replace").removeprefix("\ufeff").replace("\r\n", "\n")


def _rows_of_file(
    file: TextFile, delimiter: str, encoding: Encoding, *, header: bool, width: int
) -> pl.DataFrame:
    """Return the rows of a file's pieces, as texts.

    `width` is the number of fields, or 0 if the first line has it. Raises DataError for what are no rows of
    fields.
    """
    text, names = "".join(_decoded(piece, encoding) for piece in file.pieces), []
    if header:
        # By polars a doubled quote would stay doubled.
        line, _, text = text.partition("\n")
        names = _names_of(line, delimiter, file.path)
        width = len(names)
    try:
        frame = pl.read_csv(
            io.StringIO(text),
            separator=delimiter,
            has_header=False,
            schema={f"column_{number}": pl.String for number in range(1, width + 1)} if width else None,
            infer_schema=False,
            truncate_ragged_lines=True,
        )
    except pl.exceptions.NoDataError:
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read as rows of fields ({str(error).splitlines()[0]})",
            where=file.path,
            remedy=_OF_QUOTES,
        ) from error
    frame.columns = names or [f"column_{number}" for number in range(1, frame.width + 1)]
    for name in frame.columns:
        if broken := int(frame[name].str.contains("\n", literal=True).sum()):
            raise DataError(
                f"column {name!r} has line breaks within {counted(broken, 'field')} of the rows looked at",
                where=file.path,
                remedy="remove the line breaks, or convert the file to Parquet",
            )
    return frame


def _fields_of(line: str, delimiter: str, path: str) -> list[str]:
    """Return the fields of a first line as a job reads them; DataError for quotes that do not match."""
    try:
        return LineParser(["a"], ["a"], delimiter, '"', path).split_line(line.encode())
    except ValueError as error:
        raise DataError(f"its first line has {error}", where=path, remedy=_OF_QUOTES) from error


def _names_of(line: str, delimiter: str, path: str) -> list[str]:
    """Return the names in a header; raises DataError as `_fields_of`, and for a name that is there twice."""
    names = _fields_of(line, delimiter, path)
    require_own_names(path, names)
    return names


def _one_frame(frames: list[pl.DataFrame], files: list[TextFile]) -> pl.DataFrame:
    """Return the rows of all files.

    Raises DataError for a file with other columns than the first.
    """
    first = frames[0].columns
    for file, frame in zip(files, frames, strict=True):
        if frame.width and set(frame.columns) != set(first):
            raise other_columns(file.path, frame.columns, files[0].path, first)
    return pl.concat([frame.select(first) for frame in frames if frame.width])


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """Return about SAMPLE_ROWS rows in runs that are spread over the frame."""
    runs = 32
    each = SAMPLE_ROWS // runs
    starts = [number * (len(frame) - each) // (runs - 1) for number in range(runs)]
    return pl.concat([frame.slice(start, each) for start in starts])


def _delimiter_of(lines: list[str], path: str) -> str:
    """Return the delimiter that splits the lines into the most fields.

    Every line must have at least as many as the first one. Raises JobFileError if no delimiter fits.
    """
    some = [line for line in _rows_of(lines[:20]) if line]
    counts = {delimiter: _count(some[0], delimiter) for delimiter in _DELIMITERS} if some else {}
    # A delimiter within quotes makes a line longer, never shorter.
    fitting = {
        delimiter: n
        for delimiter, n in counts.items()
        if n and all(line.count(delimiter) >= n for line in some)
    }
    if not fitting:
        raise JobFileError(
            f"{path}: no delimiter splits its lines alike (tried comma, tab, semicolon and bar)",
            remedy="write [data] by hand: data.delimiter, and [data.columns]",
        )
    return max(fitting, key=lambda delimiter: fitting[delimiter])


def _count(line: str, delimiter: str) -> int:
    """Return how often a delimiter is in a line, outside of quotes if those of the line match."""
    try:
        return len(_fields_of(line, delimiter, "")) - 1
    except DataError:
        return line.count(delimiter)


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
    if columns[1:] and all(len(column) and column.str.starts_with(" ").all() for column in columns[1:]):
        return True
    return any(
        bool(column.str.contains(r"^\s|\s$").any()) and numbers_of(column) is not None
        for column in columns
        if len(column)
    )
