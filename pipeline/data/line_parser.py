"""Lines of delimited text to columns of texts, with what is wrong with each line that has none."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
from numpy.typing import NDArray

from ..types import IndexArray
from .text import LineBlock

_RETURN, _NEWLINE = 13, 10


@dataclass(frozen=True, slots=True)
class Parsed:
    """The lines of a block.

    Attributes:
        columns: by name, strings [n], not checked to be UTF-8.
        lines: int64 [n], which line of the block, from 0, each row is.
        bad: why, by the index of the line.
        starts: int64 [lines + 1], where each line of the block starts, and where one after the last would.
    """

    columns: dict[str, pa.Array]
    lines: IndexArray
    bad: dict[int, str]
    starts: IndexArray


class LineParser:
    """Parses lines that have the columns `names`, of which `wanted` are given.

    A field in quotes may hold the delimiter, and a quote twice for one. A quoted field ends on its line. A
    line without a character is passed over. One thread at a time.

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
        """The fields of one line, for a header; raises ValueError where quotes do not match."""
        if not self._line.fullmatch(line):
            raise ValueError("quotes that do not match")
        text = line.decode("utf-8", "backslashreplace").removeprefix("\ufeff")
        if not self._quote:
            return text.split(self._delimiter)
        return next(csv.reader([text], delimiter=self._delimiter, quotechar=self._quote.decode()), [])

    def parse(self, block: LineBlock) -> Parsed:
        """All lines of a block."""
        data = block.buffer[: block.stop]
        starts = np.concatenate([[0], np.flatnonzero(data == _NEWLINE) + 1])
        bad: dict[int, str] = {}
        lines = np.arange(len(starts) - 1)
        odd = self._odd_lines(data, starts)
        if len(odd):
            lines = lines[~np.isin(lines, self._set_aside(data, starts, odd, bad))]
            kept = [data[starts[line] : starts[line + 1]] for line in lines.tolist()]
            data = np.concatenate(kept) if kept else data[:0]
        ragged: list[int] = []

        def skip(row: pcsv.InvalidRow) -> str:
            line = int(lines[row.number - 1])
            ragged.append(row.number - 1)
            bad[line] = f"{row.actual_columns} columns, not {row.expected_columns}"
            return "skip"

        if not len(data):
            return Parsed({name: pa.array([], pa.string()) for name in self._wanted}, lines, bad, starts)
        options = pcsv.ReadOptions(
            use_threads=False, block_size=max(len(data), 1 << 16), column_names=self._names
        )
        table = pcsv.read_csv(pa.py_buffer(data), options, self._parse_options(skip), self._convert)
        columns = [column.combine_chunks() for column in table.columns]
        rows = np.delete(lines, ragged) if ragged else lines
        return Parsed(dict(zip(self._wanted, columns, strict=True)), rows, bad, starts)

    def _odd_lines(self, data: NDArray[np.uint8], starts: IndexArray) -> IndexArray:
        """Lines with a quote, or a return that does not end them, and lines without a character."""
        returns = np.flatnonzero(data == _RETURN)
        marks = [returns[(data[returns + 1] != _NEWLINE) | np.isin(returns, starts)]]
        if self._quote:
            marks.append(np.flatnonzero(data == self._quote[0]))
        marks.append(starts[:-1][np.diff(starts) == 1])
        return np.unique(np.searchsorted(starts, np.concatenate(marks), side="right") - 1)

    def _set_aside(
        self, data: NDArray[np.uint8], starts: IndexArray, odd: IndexArray, bad: dict[int, str]
    ) -> list[int]:
        """Of the odd lines those that are not to be parsed; notes in `bad` what is wrong with them."""
        aside = []
        for line in odd.tolist():
            text = data[starts[line] : starts[line + 1]].tobytes()
            text = text.removesuffix(b"\n").removesuffix(b"\r")
            if not text:
                aside.append(line)
            elif b"\r" in text:
                bad[line] = "a carriage return inside the line"
            elif not self._line.fullmatch(text):
                bad[line] = "quotes that do not match, or a line break inside quotes"
            else:
                continue
            aside.append(line)
        return aside

    def _parse_options(self, skip: object) -> pcsv.ParseOptions:
        return pcsv.ParseOptions(
            delimiter=self._delimiter,
            quote_char=self._quote.decode() or False,
            newlines_in_values=False,
            ignore_empty_lines=False,
            invalid_row_handler=skip,
        )
