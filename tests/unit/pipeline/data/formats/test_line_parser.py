"""Delimited lines against Python's own parser of them, and the lines that have no fields."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.files.text import LineBlock
from shadowsync.pipeline.data.formats.line_parser import LineParser, ParsedLines
from shadowsync.pipeline.data.hashing import PADDING_BYTES
from shadowsync.pipeline.errors import DataError

NAMES = ["a", "b", "c"]


def _block(text: bytes) -> LineBlock:
    return LineBlock(np.frombuffer(text + bytes(PADDING_BYTES), np.uint8), len(text))


def _parse(text: bytes, delimiter: str = ",", quote: str = '"') -> ParsedLines:
    return LineParser(NAMES, NAMES, delimiter, quote).parse(_block(text))


def _rows(parsed: ParsedLines) -> list[tuple[str, ...]]:
    return list(zip(*(column.to_pylist() for column in parsed.columns.values()), strict=True))


FIELD = st.text(st.sampled_from('ab,"; é\t'), max_size=6)


@given(st.lists(st.tuples(FIELD, FIELD, FIELD), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read_as_it_was(rows: list[tuple[str, ...]], end: str) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator=end).writerows(rows)
    parsed = _parse(file.getvalue().encode())
    assert not parsed.bad
    assert _rows(parsed) == rows
    assert parsed.lines.tolist() == list(range(len(rows)))


@given(st.lists(st.text(st.sampled_from('a,"\r'), max_size=9), max_size=8), st.integers(0, 8))
def test_a_line_is_read_alike_whatever_is_around_it(lines: list[str], cut: int) -> None:
    """A quote that is not closed must not swallow the lines after it.

    Where a later line closes it, that is an error, and never half a row.
    """
    first, second = lines[:cut], lines[cut:]
    try:
        _parse("".join(f"{line}\n" for line in lines).encode())
    except DataError:
        file = io.StringIO("".join(f"{line}\n" for line in lines), newline="")
        assert any("\n" in field for row in csv.reader(file) for field in row)
        return

    def read(part: list[str]) -> tuple[list[tuple[str, ...]], list[str]]:
        text = "".join(f"{line}\n" for line in part).encode()
        parsed = _parse(text)
        return _rows(parsed), [parsed.bad[line] for line in sorted(parsed.bad)]

    whole, one, two = read(lines), read(first), read(second)
    assert whole == (one[0] + two[0], one[1] + two[1])


def test_bad_lines_are_told_with_their_place() -> None:
    text = b'1,2,3\r\n\r\n4,5\n"6,7,8\n9,"x,y",z\n1,2\r,3\n"a""b",,\n1,2,3,4\n"q"r,2,3\n'
    parsed = _parse(text)
    assert _rows(parsed) == [("1", "2", "3"), ("9", "x,y", "z"), ('a"b', "", "")]
    assert parsed.lines.tolist() == [0, 4, 6]
    quotes = "quotes that do not match"
    assert parsed.bad == {
        2: "2 columns, not 3",
        3: quotes,
        5: "a carriage return inside the line",
        7: "4 columns, not 3",
        8: quotes,
    }


BROKEN = b'1,2,3\n4,"5\n6",7\n8,9,0\n'


def test_a_quoted_field_that_goes_on_in_the_next_line_is_refused() -> None:
    with pytest.raises(DataError, match=r"a quoted field continues on the next line: 4,\"5; remove the line"):
        _parse(BROKEN)
    with pytest.raises(DataError, match="continues on the next line"):
        _parse(b'1,"2\r\n\r\nand ""more"" of it",3\r\n')
    # Two fields of a row with a line break each.
    with pytest.raises(DataError, match="continues on the next line"):
        _parse(b'1,"2\n2","3\n3"\n')
    # The control: these are as many quotes, and no field that goes on.
    assert _rows(_parse(b'1,2,3\n4,"5\n6,"7",8\n8,9,0\n')) == [
        ("1", "2", "3"),
        ("6", "7", "8"),
        ("8", "9", "0"),
    ]


@pytest.mark.parametrize("cut", [b'1,2,3\n4,"5\n', b'1,2,3\n4,"5\n and\n'])
def test_it_is_noticed_where_blocks_or_spans_meet(cut: bytes) -> None:
    text = cut + b'6",7\n8,9,0\n'
    parser = LineParser(NAMES, NAMES, ",", '"', "a.csv")
    assert _rows(parser.parse(_block(cut))) == [("1", "2", "3")]
    assert parser.unfinished
    with pytest.raises(DataError, match=r"^a\.csv: a quoted field continues"):
        parser.parse(_block(text[len(cut) :]))
    parser.parse(_block(cut))
    with pytest.raises(DataError, match="continues on the next line"):
        parser.finish(text[len(cut) :])
    # The control: what follows has no such end, or there is nothing.
    for following in (b"", b'6,7\n8,"9",0\n'):
        parser.parse(_block(cut))
        parser.finish(following)
        assert not parser.unfinished


def test_what_is_not_utf_8_is_a_bad_row() -> None:
    parsed = _parse(b"1,caf\xe9,3\n1,caf\xc3\xa9,3\n\xff,2,3\n")
    assert _rows(parsed) == [("1", "caf\u00e9", "3")]
    assert parsed.bad == {
        0: "text in column b that is not UTF-8",
        2: "text in column a that is not UTF-8",
    }
    # A column that is not read may be anything.
    assert LineParser(NAMES, ["a"], ",", '"').parse(_block(b"1,\xe9,3\n")).bad == {}


def test_without_quotes_a_quote_is_a_character() -> None:
    assert _rows(_parse(b'1,"2,3\n', quote="")) == [("1", '"2', "3")]
    assert _rows(_parse(b"1;'2;x';3\n", delimiter=";", quote="'")) == [("1", "2;x", "3")]


def test_only_wanted_columns_are_given() -> None:
    parsed = LineParser(NAMES, ["c", "a"], "\t", '"').parse(_block(b"1\t2\t3\n"))
    assert {name: column.to_pylist() for name, column in parsed.columns.items()} == {"c": ["3"], "a": ["1"]}


@pytest.mark.parametrize("text", [b"\n", b"\r\n\n", b'"\n'])
def test_no_row(text: bytes) -> None:
    assert _rows(_parse(text)) == []


def test_headers() -> None:
    parser = LineParser(NAMES, NAMES, ",", '"')
    assert parser.split_line(b'a,"b,c",1') == ["a", "b,c", "1"]
    assert parser.split_line("\ufeffa,b".encode()) == ["a", "b"]
    with pytest.raises(ValueError, match=r"carriage returns; if lines end with these alone"):
        parser.split_line(b"a,b,c\r1,2,3\r")
    with pytest.raises(ValueError, match=r"quotes that do not match"):
        parser.split_line(b'a,"b')


def test_a_name_that_is_not_used_may_be_there_twice() -> None:
    """Any number of them, before and after those that are used."""
    parser = LineParser(["x", "y", "x", "z", "x"], ["y", "z"], ",", '"')
    text = b"1,a,2,b,3\n4,c,5,d,6\n"
    block = LineBlock(np.frombuffer(text + bytes(8), np.uint8), len(text))
    parsed = parser.parse(block)
    assert parsed.bad == {}
    assert {name: column.to_pylist() for name, column in parsed.columns.items()} == {
        "y": ["a", "c"],
        "z": ["b", "d"],
    }


def test_a_message_is_a_row_whatever_quotes_and_breaks_it_has() -> None:
    text = b'1,"a\r2,b"\n3,"open\n4,c"\n5,d\n'
    block = LineBlock(np.frombuffer(text + bytes(8), np.uint8), len(text))
    parsed = LineParser(["x", "y"], ["y"], ",", '"', messages=True).parse(block)
    assert parsed.bad == {0: "a line break inside the message", 1: "quotes that do not match"}
    assert parsed.columns["y"].to_pylist() == ['c"', "d"]
    with pytest.raises(DataError, match="a quoted field continues on the next line"):
        LineParser(["x", "y"], ["y"], ",", '"').parse(block)
