"""A value means the same whatever carries it: labels and missing values by text, number and truth value."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.columns.fields import TextRules, hash_ids
from shadowsync.pipeline.errors import DataError
from shadowsync.tests.support.data.schemas import read_all, schema_job, write_lines


def labels(tmp_path: Path, positive: list[Any], values: Any) -> list[float]:
    table = pa.table({"y": values, "x": ["a"] * len(values)})
    pq.write_table(table, tmp_path / "log.parquet")
    columns = {"y": {"kind": "label", "positive": positive}, "x": "categorical"}
    bad = BadRows(len(values))
    read = read_all(schema_job(tmp_path / "log.parquet", "parquet", columns), bad)
    found: list[float] = read.labels.tolist()
    assert bad.count + len(found) == len(values)
    return found


ONES = [
    pa.array([1, 0, 1, 0]),
    pa.array([1.0, 0.0, 1.0, 0.0]),
    pa.array(["1", "0", "1", "0"]),
    pa.array(["1.0", "0.0", "1", "0"]),
    pa.array([True, False, True, False]),
    pa.array([Decimal("1.0"), Decimal("0.0"), Decimal("1.0"), Decimal("0.0")]),
    pa.array(["1", "0", "1", "0"]).dictionary_encode(),
]


@pytest.mark.parametrize("values", ONES, ids=lambda values: str(values.type))
@pytest.mark.parametrize("positive", [[1], [1.0], ["1"], ["1.0"], [True]], ids=str)
def test_one_number_is_one_label(tmp_path: Path, positive: list[Any], values: pa.Array) -> None:
    assert labels(tmp_path, positive, values) == [1, 0, 1, 0]


def test_true_and_false_as_texts(tmp_path: Path) -> None:
    words = pa.array(["true", "False", "TRUE", "false"])
    assert labels(tmp_path, [True], words) == [1, 0, 1, 0]
    assert labels(tmp_path, ["true"], pa.array([True, False])) == [1, 0]
    assert labels(tmp_path, ["true"], pa.array(["true", "yes"])) == [1, 0]
    assert labels(tmp_path, [False], words) == [0, 1, 0, 1]
    raw = pa.array([b"true", b"\xff", b"False"], pa.binary()).view(pa.string())
    assert labels(tmp_path, [True], raw) == [1, 0], "the row in between is malformed"


@pytest.mark.parametrize(
    ("positive", "values", "said"),
    [
        ([1], ["yes", "no"], r"'yes', 'no' are a text that cannot be one of positive \(1\)"),
        ([True], ["yes", "no"], r"a text that cannot be one of positive \(True\)"),
        (["click"], [1, 0], r"of type int64 that cannot be one of positive \('click'\)"),
        (["click"], [True, False], r"of type bool that cannot be one of positive \('click'\)"),
    ],
)
def test_what_cannot_match_is_refused(
    tmp_path: Path, positive: list[Any], values: list[Any], said: str
) -> None:
    with pytest.raises(DataError, match=f"{said}; give positive the values as they are"):
        labels(tmp_path, positive, pa.array(values))
    text = write_lines(tmp_path / "log.csv", *["1,a"] * 990, *["yes,a"] * 10, header="y,x")
    columns = {"y": {"kind": "label", "positive": [1]}, "x": "categorical"}
    bad = BadRows(10)
    assert read_all(schema_job(text, columns=columns), bad).labels.tolist() == [1] * 990
    assert bad.count == 10


@pytest.mark.parametrize(
    "values",
    [
        pa.array([-999, 5, None, 0]),
        pa.array([-999.0, 5.0, None, 0.0]),
        pa.array([-999, 5, None, 0], pa.int16()),
        pa.array([-999, 5, None, 0]).dictionary_encode(),
        pa.array([Decimal(-999), Decimal(5), None, Decimal(0)], pa.decimal128(9, 3)),
        pa.array(["-999", "5", None, "0"]),
    ],
    ids=lambda values: str(values.type),
)
def test_a_missing_number_is_missing_whatever_carries_it(values: pa.Array) -> None:
    assert TextRules(("", "-999")).clean(values).is_null().to_pylist() == [True, False, True, False]
    assert TextRules(("NA", "-99")).clean(values).is_null().to_pylist() == [False, False, True, False]


def test_missing_numbers_follow_the_decimal_and_lists_have_them_too(tmp_path: Path) -> None:
    assert TextRules(("-1,5",), decimal=",").clean(pa.array([-1.5, 1.5])).is_null().to_pylist() == [
        True,
        False,
    ]
    table = pa.table({"y": [1, 0], "n": [-999, 4], "x": [-999, 4], "tags": [[-999, 4], [4]]})
    pq.write_table(table, tmp_path / "log.parquet")
    columns = {
        "y": "label",
        "n": {"kind": "dense", "transform": "none"},
        "x": "categorical",
        "b": {"kind": "bucket", "source": "n", "boundaries": [0]},
        "tags": "multi_hot",
    }
    found = read_all(schema_job(tmp_path / "log.parquet", "parquet", columns, missing=["", "-999"]))
    assert found.dense[:, 0].tolist() == [0, 4]
    assert found.rows[1].tolist() == [2, 1]
    assert found.bags.lengths.tolist() == [[1, 1]]
    text = write_lines(tmp_path / "log.csv", "1,-999,-999,-999|4", "0,4,4,4", header="y,n,x,tags")
    again = read_all(schema_job(text, columns=columns, missing=["", "-999"]))
    np.testing.assert_array_equal(again.dense, found.dense)
    assert again.rows[1].tolist() == [2, 1]
    assert again.rows[0, 0] == found.rows[0, 0], "the row of a missing id"
    plain = read_all(schema_job(tmp_path / "log.parquet", "parquet", columns))
    assert plain.dense[:, 0].tolist() == [-999, 4], "the control"


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "NA", "b"])], ids=str)
def test_categories_of_polars_are_texts(kind: Any) -> None:
    """Arrow has them as a dictionary of views, which it cannot decode itself."""
    (column,) = pa.table(pl.DataFrame({"x": pl.Series(["a", None, "NA", "b"], dtype=kind)})).columns
    (chunk,) = column.chunks
    assert TextRules(("NA",)).clean(chunk).to_pylist() == ["a", None, None, "b"]
    texts = TextRules(("NA",)).clean(pa.array(["a", None, "NA", "b"]))
    np.testing.assert_array_equal(hash_ids(chunk.slice(3), 1), hash_ids(texts.slice(3), 1))


@pytest.mark.parametrize(
    "kind", [pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.decimal128(4, 1)], ids=str
)
@pytest.mark.parametrize("value", [0.1, "0.1"])
def test_a_fraction_is_the_same_in_fewer_bits(tmp_path: Path, value: float | str, kind: pa.DataType) -> None:
    texts = ["0.1", "0.2", "0.1"]
    made = [np.float16(text) for text in texts] if kind == pa.float16() else [float(text) for text in texts]
    column = (
        pa.array(texts).cast(kind) if kind in (pa.string(), pa.decimal128(4, 1)) else pa.array(made, kind)
    )
    assert labels(tmp_path, [value], column) == [1, 0, 1]
    assert TextRules(missing=("", "0.1")).clean(column).is_null().to_pylist() == [True, False, True]


def test_a_missing_number_has_the_texts_of_floats_and_integers() -> None:
    """Pandas writes integers with a gap as -999.0."""
    texts = pa.array(["-999.0", "-999", "-999.5", "-99", "7"])
    for missing in ("-999", "-999.0"):
        assert (
            TextRules(missing=("", missing)).clean(texts).is_null().to_pylist() == [True, True] + [False] * 3
        )
    commas = pa.array(["-999,0", "-999.0"])
    found = TextRules(missing=("", "-999"), decimal=",").clean(commas)
    assert found.is_null().to_pylist() == [True, False]
    assert not TextRules(missing=("", "NA")).clean(texts).null_count
