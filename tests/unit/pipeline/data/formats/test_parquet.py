"""Parquet gives the same examples as text, from any type that can hold them, and tells what it cannot use."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batches.span_plan import plan_spans
from shadowsync.pipeline.data.columns.fields import hash_ids
from shadowsync.pipeline.data.formats.criteo_tsv import read_tsv
from shadowsync.pipeline.data.formats.parquet import read_parquet
from shadowsync.pipeline.data.hashing import hash_bytes
from shadowsync.pipeline.data.schema import Examples, FeatureShape
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError
from shadowsync.tests.support.data.schemas import assert_same_examples

NAMES = ["label", "I1", "I2", "C1", "C2", "C3"]


def _write(
    path: Path, texts: list[str], text_type: Any = None, missing: str | None = "", group: int = 300
) -> None:
    columns = list(zip(*[line.split("\t") for line in texts], strict=True))
    arrays = [pa.array([int(value) if value else None for value in column]) for column in columns[:3]]
    for column in columns[3:]:
        plain = pa.array([value or missing for value in column], pa.string())
        arrays.append(plain.cast(text_type) if text_type is not None else plain)
    pq.write_table(pa.table(dict(zip(NAMES, arrays, strict=True))), path, row_group_size=group)


def _read(span: Span, shape: FeatureShape, limit: int = 0, batch_rows: int = 16_384) -> Examples:
    return Examples.join(list(read_parquet(span, shape, BadRows(limit), batch_rows)))


@pytest.mark.parametrize(
    ("text_type", "missing"),
    [
        (None, ""),
        (None, None),
        (pa.large_string(), None),
        (pa.binary(), None),
        (pa.string_view(), None),
        (pa.dictionary(pa.int32(), pa.string()), None),
    ],
    ids=str,
)
def test_the_same_log_in_text_and_parquet(
    tmp_path: Path,
    shape: FeatureShape,
    lines: Callable[..., list[str]],
    log: Path,
    whole: Callable[..., Span],
    text_type: Any,
    missing: str | None,
) -> None:
    path = tmp_path / "a.parquet"
    _write(path, lines(1000), text_type, missing)
    want = Examples.join(list(read_tsv(whole(log), shape, BadRows(0))))
    # One row at a time is slow, and what a string begins with in its buffer is the same for 77.
    for batch_rows in (77, 5000):
        assert_same_examples(_read(whole(path, "parquet"), shape, 0, batch_rows), want)
    assert_same_examples(
        Examples.join([_read(s, shape) for s in plan_spans([str(path)], "parquet", 1)]), want
    )


@pytest.mark.parametrize(
    "number_type", [pa.int8(), pa.uint64(), pa.float32(), pa.float64(), pa.float16()], ids=str
)
@pytest.mark.parametrize("label_type", [pa.bool_(), pa.int8(), pa.float64()], ids=str)
def test_types_of_numbers(
    tmp_path: Path, shape: FeatureShape, whole: Callable[..., Span], number_type: Any, label_type: Any
) -> None:
    path = tmp_path / "a.parquet"
    table = {
        "label": pa.array([1, 0], pa.int8()).cast(label_type),
        "I1": pa.array([None, 3.0], pa.float32()).cast(number_type),
        "I2": pa.nulls(2),
        **{name: pa.array(["a", "b"]) for name in NAMES[3:]},
    }
    pq.write_table(pa.table(table), path)
    got = _read(whole(path, "parquet"), shape)
    assert got.labels.tolist() == [1, 0]
    np.testing.assert_allclose(got.dense, [[0.0, 0.0], [math.log(4), 0.0]], rtol=1e-7)


def test_integer_ids_hash_as_eight_bytes(
    tmp_path: Path, shape: FeatureShape, whole: Callable[..., Span]
) -> None:
    path = tmp_path / "a.parquet"
    table = {
        **{name: pa.array([0, 1, 1]) for name in NAMES[:3]},
        "C1": pa.array([-1, None, 70_000]),
        "C2": pa.nulls(3),
        "C3": pa.array([2**64 - 1, None, 70_000], pa.uint64()),
    }
    pq.write_table(pa.table(table), path)
    ones, number = b"\xff" * 8, (70_000).to_bytes(8, "little")
    values = [[ones, b"", number], [b"", b"", b""], [ones, b"", number]]
    want = [
        [((hash_bytes(t, value) >> 32) * shape.table_rows[t]) >> 32 for value in values[t]] for t in range(3)
    ]
    assert _read(whole(path, "parquet"), shape).rows.tolist() == want


def test_strings_anywhere_in_their_buffers() -> None:
    """A slice of a column, and a null whose place in the buffer is not empty, as Arrow allows both."""
    offsets = pa.py_buffer(np.array([0, 2, 5, 9, 10], np.int32))
    valid = pa.py_buffer(bytes([0b1011]))
    column = pa.StringArray.from_buffers(4, offsets, pa.py_buffer(b"aabbbccccd"), valid)
    assert column.to_pylist() == ["aa", "bbb", None, "d"]
    want = [hash_bytes(4, value) for value in (b"aa", b"bbb", b"", b"d")]
    assert hash_ids(column, 4).tolist() == want
    assert hash_ids(column.slice(1, 2), 4).tolist() == want[1:3]


@pytest.mark.parametrize("batch_rows", [1, 2, None])
def test_bad_rows(tmp_path: Path, shape: FeatureShape, batch_rows: int | None) -> None:
    """Numbered by their row in the file, also in later row groups."""
    path = tmp_path / "a.parquet"
    table = {
        "label": pa.array([0.0, 2.0, None, 1.0, 1.0, 0.0, 0.5, 1.0]),
        "I1": pa.array([1.0, 1.0, 1.0, 1.0, math.inf, None, math.nan, 1.0]),
        "I2": pa.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -math.inf]),
        **{name: pa.array(list("abcdefgh")) for name in NAMES[3:]},
    }
    pq.write_table(pa.table(table), path, row_group_size=3)
    bad_rows = BadRows(10)
    spans = plan_spans([str(path)], "parquet", 1, shape)
    got = [rows for span in spans for rows in read_parquet(span, shape, bad_rows, batch_rows)]
    assert len(spans) == 3
    assert sum(map(len, got)) == 3
    assert bad_rows.count == 5
    assert [row.line for row in bad_rows.first] == [2, 3, 5, 7, 8]
    assert [row.why.split()[0] for row in bad_rows.first] == ["label", "label", "I1", "label", "I2"]
    assert bad_rows.first[0].text == "label=2.0"
    with pytest.raises(DataError, match=r"a\.parquet:2: label is neither 0 nor 1"):
        _read(spans[0], shape, limit=1)


def test_damaged_and_changed_files(
    tmp_path: Path, shape: FeatureShape, lines: Callable[..., list[str]]
) -> None:
    path = tmp_path / "a.parquet"
    _write(path, lines(1000))
    spans = plan_spans([str(path)], "parquet", 1, shape)
    data = bytearray(path.read_bytes())
    data[50 : len(data) // 2] = b"\x55" * (len(data) // 2 - 50)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        [_read(span, shape, 1000) for span in spans]
    _write(path, lines(10))
    with pytest.raises(DataError, match="has 1 row groups; 4 were planned; it changed"):
        _read(spans[-1], shape)
    path.unlink()
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read"):
        _read(spans[0], shape)
