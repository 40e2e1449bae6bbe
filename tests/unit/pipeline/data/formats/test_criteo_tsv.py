"""Lines become the numbers and rows of a plain reading, and bad ones are told with their true line."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.formats.criteo_tsv import read_tsv
from shadowsync.pipeline.data.hashing import hash_bytes
from shadowsync.pipeline.data.schema import Examples, FeatureShape
from shadowsync.pipeline.data.span import Span

GOOD = "1\t-4\t\t68fd1e64\t\tx"


def _plain_reading(line: str, shape: FeatureShape) -> tuple[float, list[float], list[int]]:
    """The format, line by line, with nothing clever."""
    label, *fields = line.split("\t")
    numbers = [float(field or 0) for field in fields[: shape.dense]]
    dense = [float(np.float32(math.copysign(math.log1p(abs(x)), x))) for x in numbers]
    ids = enumerate(fields[shape.dense :])
    return (
        float(label),
        dense,
        [((hash_bytes(t, value.encode()) >> 32) * shape.table_rows[t]) >> 32 for t, value in ids],
    )


def _read(span: Span, shape: FeatureShape, bad_rows: BadRows, block_bytes: int = 1 << 19) -> Examples:
    return Examples.join(list(read_tsv(span, shape, bad_rows, block_bytes)))


def test_values(log: Path, shape: FeatureShape, whole: Callable[..., Span]) -> None:
    got = _read(whole(log), shape, BadRows(0))
    want = [_plain_reading(line, shape) for line in log.read_text().splitlines()]
    assert got.labels.tolist() == [label for label, _, _ in want]
    np.testing.assert_allclose(got.dense, [dense for _, dense, _ in want], rtol=2e-7)
    assert got.rows.T.tolist() == [rows for _, _, rows in want]


def test_transform_of_a_line_by_hand(tmp_path: Path, shape: FeatureShape, whole: Callable[..., Span]) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{GOOD}\r\n0\t0\t-0\t\t\t\r\n{GOOD}")
    got = _read(whole(path), shape, BadRows(0))
    assert got.labels.tolist() == [1, 0, 1]
    np.testing.assert_allclose(got.dense, [[-math.log(5), 0.0], [0.0, 0.0], [-math.log(5), 0.0]], rtol=1e-7)
    assert not np.signbit(got.dense[1]).any()
    assert got.rows[:, 0].tolist() == got.rows[:, 2].tolist(), "a line's end became part of its last id"


LINES = st.sampled_from(
    [
        GOOD,
        GOOD,
        GOOD,
        "0\t1\t2\ta\tb\tc",
        "0\t1\t2\ta\tb",
        "",
        "2\t1\t2\ta\tb\tc",
        "0\tx\t2\ta\tb\tc",
        "\t" * 7,
    ]
)


@given(st.lists(LINES, min_size=1, max_size=40), st.sampled_from(["\n", "\r\n"]), st.integers(1, 60))
def test_block_size_changes_nothing(
    tmp_path: Path, shape: FeatureShape, lines: list[str], end: str, block_bytes: int
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(end.join(lines) + end, newline="")
    span = Span(0, str(path), "bytes", 0, path.stat().st_size)
    big, small = BadRows(100), BadRows(100)
    want, got = _read(span, shape, big), _read(span, shape, small, block_bytes)
    for part in ("labels", "dense", "rows"):
        np.testing.assert_array_equal(getattr(got, part), getattr(want, part))
    good = [number for number, line in enumerate(lines, 1) if line in (GOOD, "0\t1\t2\ta\tb\tc")]
    assert len(got) == len(good)
    assert small.count == big.count == len(lines) - len(good)
    assert small.first == big.first
    assert [row.line for row in small.first] == [n for n in range(1, len(lines) + 1) if n not in good][:5]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0\t1\t2\ta\tb", "5 columns, not 6"),
        ("0\t1\t2\ta\tb\tc\td", "7 columns, not 6"),
        ("", "1 columns, not 6"),
        ("2\t1\t2\ta\tb\tc", "label '2' is neither 0 nor 1"),
        ("\t1\t2\ta\tb\tc", "label '' is neither 0 nor 1"),
        ("01\t1\t2\ta\tb\tc", "label '01' is neither"),
        ("label\tI1\tI2\tC1\tC2\tC3", "label 'label' is neither"),
        ("0\tten\t2\ta\tb\tc", "I1 'ten' is not a number"),
        ("0\t1\tnan\ta\tb\tc", "I2 'nan' is not a number"),
        ("0\t1\t1 000\ta\tb\tc", "I2 '1 000' is not a number"),
    ],
)
def test_why_a_row_is_bad(tmp_path: Path, shape: FeatureShape, line: str, why: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    bad_rows = BadRows(1)
    (span,) = plan_spans([str(path)], "criteo_tsv", 1 << 16)
    assert len(_read(span, shape, bad_rows)) == 2
    (bad,) = bad_rows.first
    assert bad.why.startswith(why)
    assert (bad.path, bad.line) == (str(path), 2)


def test_line_numbers_are_those_of_the_file_in_every_span(
    tmp_path: Path, shape: FeatureShape, lines: Callable[..., list[str]]
) -> None:
    """Each span, cut at any byte, numbers its bad lines as the file has them."""
    texts = lines(60)
    bad = [1, 2, 17, 30, 31, 59, 60]
    for number in bad:
        texts[number - 1] = f"bad {number}"
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(texts))
    for span_bytes in (1, 7, 50, 333, 1000, 10_000):
        reported = []
        for span in plan_spans([str(path)], "criteo_tsv", span_bytes):
            bad_rows = BadRows(100)
            list(read_tsv(span, shape, bad_rows))
            reported += [(row.line, row.text) for row in bad_rows.first]
        atomic_file = span_bytes == 10_000
        assert reported == [(number, f"bad {number}") for number in bad][: 5 if atomic_file else None]


def test_ids_may_be_any_bytes(tmp_path: Path, shape: FeatureShape, whole: Callable[..., Span]) -> None:
    path = tmp_path / "a.tsv"
    value = b'"\xff\x00\xc3,\r' + b"long" * 1000
    path.write_bytes(b"1\t\t\t" + value + b"\t\xe2\x82\xac\t#\n")
    got = _read(whole(path), shape, BadRows(0))
    want = [hash_bytes(0, value), hash_bytes(1, "€".encode()), hash_bytes(2, b"#")]
    assert got.rows[:, 0].tolist() == [
        ((h >> 32) * rows) >> 32 for h, rows in zip(want, shape.table_rows, strict=True)
    ]


def test_without_dense_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("1\ta\n0\tb\n")
    got = _read(Span(0, str(path), "bytes", 0, 8), FeatureShape(0, 1, (9,)), BadRows(0))
    assert got.dense.shape == (2, 0)
    assert got.rows.shape == (1, 2)
