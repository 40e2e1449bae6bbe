"""Columns that are handled together give what each gives by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.pipeline.config.columns import ColumnSection
from shadowsync.pipeline.config.data import DataSection
from shadowsync.pipeline.data.columns import column_groups
from shadowsync.pipeline.data.columns.column_groups import MOST_ROWS, are_short, groups_of, hash_id_columns
from shadowsync.pipeline.data.columns.fields import hash_ids
from shadowsync.pipeline.data.columns.record_schema import Records, RecordSchema

SECTIONS = {
    "y": ColumnSection(kind="label"),
    "plain": ColumnSection(kind="dense", transform="none"),
    "log": ColumnSection(kind="dense", transform="log"),
    "scaled": ColumnSection(kind="dense", transform="none", shift=2.0, scale=0.5),
    "count": ColumnSection(kind="dense", transform="log"),
    "user": ColumnSection(kind="categorical"),
    "page": ColumnSection(kind="categorical"),
    "shop": ColumnSection(kind="categorical"),
    "item": ColumnSection(kind="categorical"),
    "both": ColumnSection(kind="cross", columns=["user", "shop"]),
}
TEXTS = st.one_of(st.none(), st.sampled_from(["", "NA", "a", "abcdefgh", "a longer text than a word", "é"]))
NUMBERS = st.one_of(st.none(), st.floats(width=64), st.sampled_from([1e300, -3.5, float("nan")]))
NUMBER_TEXTS = st.one_of(TEXTS, st.sampled_from(["1", "-2.5", "1e400", "12345678"]))
COUNTS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
VALUES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "y": (st.sampled_from([0.0, 1.0, 2.0]), pa.float64()),
    "plain": (NUMBERS, pa.float64()),
    "log": (NUMBERS, pa.float64()),
    "scaled": (NUMBER_TEXTS, pa.string()),
    "count": (COUNTS, pa.int64()),
    "user": (TEXTS, pa.string()),
    "page": (TEXTS, pa.string()),
    "shop": (COUNTS, pa.int64()),
    "item": (TEXTS, pa.string()),
}


def _schema() -> RecordSchema:
    data = DataSection(format="parquet", path=["log-*.parquet"], columns=SECTIONS, missing=["", "NA"])
    return RecordSchema(data, (1000,) * len(data.table_columns))


def _plain(records: Records) -> list[Any]:
    examples = records.examples
    arrays: list[NDArray[Any]] = [
        *(examples.labels, examples.dense, examples.rows, records.times, records.bad)
    ]
    faults = [(fault.name, fault.why, fault.rows.tolist()) for fault in records.faults]
    return [[array.tobytes() for array in arrays], faults]


@given(data=st.data(), count=st.integers(1, 6))
def test_rows_and_faults_are_those_of_columns_one_by_one(data: st.DataObject, count: int) -> None:
    columns = {
        name: pa.array(data.draw(st.lists(values, min_size=count, max_size=count), label=name), kind)
        for name, (values, kind) in VALUES.items()
    }
    together = _plain(_schema().records(columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_groups, "MOST_ROWS", 0)
        assert not are_short(columns)
        assert together == _plain(_schema().records(columns))


def test_only_short_columns_of_one_type_are_together() -> None:
    columns = {
        "a": pa.array(["x", None]),
        "n": pa.array([1, 2]),
        "b": pa.array(["y", "z"]),
        "lists": pa.array([["x"], []]),
        "others": pa.array([["x"], []]),
        "none": pa.nulls(2),
    }
    assert are_short(columns)
    assert groups_of(columns, together=True) == [["a", "b"], ["n"], ["lists"], ["others"], ["none"]]
    assert groups_of(columns, together=False) == [[name] for name in columns]
    assert not are_short({name: pa.array(["x"] * (MOST_ROWS + 1)) for name in "ab"})
    assert not are_short({name: pa.array(["x" * (1 << 20)]) for name in "ab"})


def test_each_column_has_hashes_of_its_own() -> None:
    columns = {name: pa.array(["x", "a longer text than a word", None]) for name in "abc"}
    numbers = {"a": 0, "b": 2**62 + 5, "c": 7}
    found = hash_id_columns(columns, numbers, together=True)
    for name, number in numbers.items():
        np.testing.assert_array_equal(found[name], hash_ids(columns[name], number))
    # All numbers matter: no two columns have a hash in common.
    assert len({int(h) for own in found.values() for h in own}) == 9
