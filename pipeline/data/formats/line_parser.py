"""Parsing of delimited text into columns, with the reason for malformed lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
from numpy.typing import NDArray

from ...errors import DataError
from ...types import IndexArray
from ..bad_rows import printable
from ..files.text import LineBlock

_NEWLINE: Final = 10
_RETURN: Final = 13
# The end of an open quoted field is looked for in this many bytes after its line.
FOLLOWING_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class ParsedLines:
    """The parsed lines of a block.

    Attributes:
        columns: columns by name, strings [n], in UTF-8.
        lines: int64 [n], number of each row's line in the block, from 0.
        bad: for each malformed line the reason, by the line's number in the block.
        starts: int64 [lines + 1], where each line of the block starts, and where the last one ends.
    """

    columns: dict[str, pa.Array]
    lines: IndexArray
    bad: dict[int, str]
    starts: IndexArray


class LineParser:
    """Parse lines that have the columns `names`; return those of `columns`.

    A field in quotes may hold the delimiter, and a doubled quote for one quote. It must end on its line. If
    it does not, the row is bad; if a later line ends it, DataError is raised, because that line would be
    taken for a row. An empty line is skipped. One thread at a time may use a parser.

    Args:
        delimiter: one ASCII character.
        quote: one ASCII character; "" for no quotes.
        where: name of the file in error messages.
        messages: whether each line is a message of a topic. No field continues on the next line then: a line
            break within a message, which its reader makes a carriage return, is a bad row.
    """

    def __init__(
        self,
        names: list[str],
        columns: list[str],
        delimiter: str,
        quote: str,
        where: str = "",
        *,
        messages: bool = False,
    ) -> None:
        self._columns, self._where, self._messages = columns, where, messages
        places = {name: f"f{index}" for index, name in enumerate(names)}
        fields = [places[name] for name in columns]
        self._convert = pcsv.ConvertOptions(
            check_utf8=False,
            strings_can_be_null=False,
            include_columns=fields,
            column_types=dict.fromkeys(fields, pa.string()),
        )
        # A name that is not wanted may be there twice.
        self._names = [f"f{index}" for index in range(len(names))]
        self._delimiter, self._quote = delimiter, quote.encode()
        d, q = re.escape(delimiter.encode()), re.escape(self._quote)
        quoted = rb"%s(?:[^%s]|%s%s)*%s|" % (q, q, q, q, q) if quote else b""
        # A field is quoted as a whole, or does not begin with a quote.
        plain = rb"(?:[^%s%s][^%s]*)?" % (d, q, d)
        field = rb"(?:%s%s)" % (quoted, plain)
        self._line = re.compile(rb"%s(?:%s%s)*" % (field, d, field), re.DOTALL)
        inside = rb"(?:[^%s]|%s%s)*" % (q, q, q) if quote else b"(?!)"
        self._open = re.compile(rb"(?:%s%s)*%s%s" % (field, d, q, inside), re.DOTALL)
        self._to_quote = re.compile(rb"%s%s" % (inside, q), re.DOTALL)
        self._rest = re.compile(rb"(?:%s%s)*(?:%s%s%s)?" % (d, field, d, q, inside), re.DOTALL)
        # A line with an open quote near the end of a block, and the bytes after it so far.
        self._unfinished = b""

    def split_line(self, line: bytes) -> list[str]:
        """Return the fields of one line, for a header.

        Raises ValueError if quotes do not match or the line has a carriage return.
        """
        if b"\r" in line:
            raise ValueError("carriage returns; if lines end with these alone, convert them to line feeds")
        if not self._line.fullmatch(line):
            raise ValueError("quotes that do not match")
        text = line.decode("utf-8", "backslashreplace").removeprefix("\ufeff")
        if not self._quote:
            return text.split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter, quotechar=self._quote.decode()), [])

    def parse(self, block: LineBlock) -> ParsedLines:
        """Parse all lines of a block.

        Blocks must come in the order of the file. Raises DataError for a quoted field that continues on the
        next line.
        """
        data = block.buffer[: block.stop]
        if self._unfinished:
            self.finish(data[:FOLLOWING_BYTES].tobytes())
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
            return ParsedLines(
                {name: pa.array([], pa.string()) for name in self._columns}, lines, bad, starts
            )
        options = pcsv.ReadOptions(
            use_threads=False, block_size=max(len(data), 1 << 16), column_names=self._names
        )
        table = pcsv.read_csv(pa.py_buffer(data), options, self._parse_options(skip), self._convert)
        columns = [column.combine_chunks() for column in table.columns]
        rows = np.delete(lines, ragged) if ragged else lines
        if wrong := _not_utf_8(dict(zip(self._columns, columns, strict=True))):
            bad |= {int(rows[row]): f"text in column {name} that is not UTF-8" for row, name in wrong.items()}
            good = np.delete(np.arange(len(rows)), list(wrong))
            rows, columns = rows[good], [column.take(pa.array(good)) for column in columns]
        return ParsedLines(dict(zip(self._columns, columns, strict=True)), rows, bad, starts)

    def finish(self, following: bytes = b"") -> None:
        """Check the bytes after the last block, if a quote may be open there.

        Raises DataError for a quoted field that continues on them.
        """
        unfinished, self._unfinished = self._unfinished, b""
        if unfinished:
            self._check_quote(unfinished, following)

    @property
    def unfinished(self) -> bool:
        """Whether a quote may be open at the end of the last block."""
        return bool(self._unfinished)

    def _check_quote(self, line: bytes, following: bytes) -> bool:
        """Return whether a line's open quote is still open after `following`.

        Raises DataError if the quoted field ends there.
        """
        closed = self._to_quote.match(following)
        if closed is None:
            return True
        rest = following[closed.end() :].split(b"\n", 1)[0].removesuffix(b"\r")
        if self._rest.fullmatch(rest):
            raise DataError(
                f"a quoted field continues on the next line: {printable(line)}",
                where=self._where,
                remedy="remove the line breaks from the fields, or convert the file to Parquet; if the quotes"
                ' are part of the texts, set data.quote = ""',
            )
        return False

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
                inside = (
                    "line break inside the message" if self._messages else "carriage return inside the line"
                )
                bad[line] = f"a {inside}"
            elif not self._line.fullmatch(text):
                bad[line] = "quotes that do not match"
                if not self._messages and self._open.fullmatch(text):
                    after = data[starts[line + 1] :][:FOLLOWING_BYTES].tobytes()
                    self._check_quote(text, after)
                    if len(after) < FOLLOWING_BYTES and not self._unfinished:
                        self._unfinished = text + b"\n" + after
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


def _not_utf_8(columns: Mapping[str, pa.Array]) -> dict[int, str]:
    """Return the rows with text that is not UTF-8, and their columns."""
    names: dict[int, str] = {}
    for name, column in columns.items():
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for row, value in enumerate(column):
                try:
                    value.as_buffer().to_pybytes().decode()
                except UnicodeDecodeError:
                    names.setdefault(row, name)
    return names
