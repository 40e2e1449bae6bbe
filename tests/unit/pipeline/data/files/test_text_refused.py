"""Text of other kinds: line breaks in quotes, encodings, line ends; read rightly or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.tests.support.data.schemas import (
    HEADER,
    assert_same_examples,
    read_all,
    read_spans,
    schema_job,
    write_lines,
)

LINES = ("5,30,ann,a|b,2026-01-01,1", '1,,"b,ob",,86400,0.5', "4,-2.5,,c,1970-01-01T00:00:09,2")


def test_a_line_break_in_quotes_is_refused_wherever_spans_are_cut(tmp_path: Path) -> None:
    """Otherwise the second half of the row would be taken for a row."""
    path = tmp_path / "log.csv"

    def written(*lines: str, every: int = 1) -> Iterator[list[Span]]:
        """The spans of the file, cut at each place below its header, or at some of them."""
        size = write_lines(path, *LINES, *lines, *LINES).stat().st_size
        for cut in range(len(HEADER) + 2, size, every):
            yield [Span(0, str(path), "bytes", 0, cut), Span(1, str(path), "bytes", cut, size)]

    for spans in written('1,,"b', 'ob",,86400,0.5'):
        with pytest.raises(DataError, match=r"log\.csv: a quoted field continues on the next line: 1,,\"b"):
            read_spans(schema_job(path), spans, BadRows(10))
    # The control: without the line break all of them are read.
    for spans in written('1,,"bob",,86400,0.5', every=5):
        assert len(read_spans(schema_job(path), spans)) == 7


def test_other_encodings_are_read_rightly_or_refused(tmp_path: Path) -> None:
    line = "5,30,caf\u00e9,\u00e4|b,9,1"
    utf_8 = read_all(schema_job(write_lines(tmp_path / "log.csv", line)))
    path = tmp_path / "latin.csv"
    path.write_bytes(f"{HEADER}\n{line}\n".encode("latin-1"))
    for encoding in ("latin-1", "cp1252"):
        assert_same_examples(read_all(schema_job(path, encoding=encoding)), utf_8)
    mixed = tmp_path / "mixed.csv"
    mixed.write_bytes(path.read_bytes() + f"{LINES[0]}\n{LINES[1]}\n".encode())
    bad = BadRows(1)
    assert len(read_all(schema_job(mixed), bad)) == 2
    assert [row.why for row in bad.first] == ["text in column user that is not UTF-8"]
    with pytest.raises(
        DataError, match=r"1 of its first 1 lines do not fit; .* data\.quote or data\.encoding"
    ):
        read_all(schema_job(path))
    path.write_bytes(f"{HEADER}\n5,30,\x81,a,9,1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"has a byte 81 that is not valid cp1252; set data\.encoding"):
        read_all(schema_job(path, encoding="cp1252"))
    path.write_bytes(f"{HEADER}\n{line}\n".encode("utf-16"))
    with pytest.raises(DataError, match="is text in UTF-16, by its first bytes; convert it to UTF-8: iconv"):
        read_all(schema_job(path))


def test_a_file_whose_lines_end_with_carriage_returns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_bytes("\r".join([HEADER, *LINES, ""]).encode())
    with pytest.raises(DataError, match="the header has carriage returns; if lines end with these alone"):
        read_all(schema_job(path))


def test_a_mark_of_utf_8_is_no_part_of_the_first_field(tmp_path: Path) -> None:
    plain = read_all(schema_job(write_lines(tmp_path / "log.csv", *LINES[1:], header=LINES[0]), header=False))
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "log.csv").read_bytes())
    assert_same_examples(read_all(schema_job(marked, header=False)), plain)
    # The columns in another order, so that an id is the first field.
    columns = {"user": "categorical", "y": "label"}
    for path, start in ((tmp_path / "log.csv", b""), (marked, b"\xef\xbb\xbf")):
        path.write_bytes(start + b"ann,1\nbob,0\n")
    rows = [
        read_all(schema_job(path, columns=columns, header=False)).rows
        for path in (tmp_path / "log.csv", marked)
    ]
    np.testing.assert_array_equal(rows[0], rows[1])
    # Later in a file the same bytes are text.
    marked.write_bytes(b"ann,1\n\xef\xbb\xbfbob,0\n")
    assert (read_all(schema_job(marked, columns=columns, header=False)).rows != rows[0]).any()
