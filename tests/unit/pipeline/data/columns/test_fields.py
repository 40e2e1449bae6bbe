"""Fields as numbers, moments, hashes and bags, from texts and from Parquet's types."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shadowsync.pipeline.data.columns.fields import (
    TextRules,
    display_bytes,
    equals_any,
    hash_ids,
    parse_number,
    parse_number_column,
)
from shadowsync.pipeline.data.columns.id_lists import IdBags
from shadowsync.pipeline.data.columns.time_values import parse_times
from shadowsync.pipeline.data.hashing import column_number, hash_bytes, hash_integers, table_rows_of

RULES = TextRules(("", "?"), strip=True)


@given(st.lists(st.text(st.sampled_from("0123456789+-.eE infa"), max_size=9), min_size=1, max_size=6))
@example(["1.", ".5", "-.5", "1e-999", "1e999", "+5", "-0"])
@example(["0.1", "123456789.25", "1e22"])
def test_a_number_is_the_same_whatever_is_beside_it(texts: list[str]) -> None:
    """Arrow reads a column at once where it can; the values must not tell."""
    found = parse_number_column(pa.array(texts))
    want = [parse_number(text.encode()) for text in texts]
    np.testing.assert_array_equal(found, want)


def test_missing_texts_and_blanks() -> None:
    column = pa.array([" 1 ", "?", "", " ", "x?", "2"])
    clean = RULES.clean(column)
    assert clean.to_pylist() == ["1", None, None, None, "x?", "2"]
    assert TextRules(("NA",)).clean(pa.array(["", "NA", " NA"])).to_pylist() == ["", None, " NA"]
    assert parse_number_column(RULES.clean(pa.array(["3", "?", "x"]))).tolist()[:2] == [3.0, 0.0]
    # An empty field that does not count as missing is no number.
    assert math.isnan(parse_number_column(pa.array([""])).item())


def test_bytes_that_are_no_text() -> None:
    raw = pa.array([b"\xff", b"?", b" a"], pa.binary())
    clean = RULES.clean(raw)
    assert hash_ids(clean, 3).tolist() == [hash_bytes(3, value) for value in (b"\xff", b"", b"a")]


@pytest.mark.parametrize("kind", [pa.int32(), pa.float64(), pa.bool_()])
def test_typed_numbers(kind: pa.DataType) -> None:
    assert parse_number_column(pa.array([1, None, 0]).cast(kind)).tolist() == [1.0, 0.0, 0.0]
    assert np.isnan(parse_number_column(pa.array([math.inf, math.nan]))).all()


AT = datetime(2026, 3, 31, 12, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["2026-03-31T12:30", "2026-03-31 12:30:00", "2026-03-31T14:30+02:00"], [AT.timestamp()] * 3),
        (["881250949", "8.5", "-1"], [881250949.0, 8.5, -1.0]),
        (["soon", "", "2026-13-01"], [math.nan] * 3),
        ([881250949, 7], [881250949.0, 7.0]),
        ([AT, None], [AT.timestamp(), math.nan]),
        ([AT.replace(tzinfo=None)], [AT.timestamp()]),
        ([date(1970, 1, 2)], [86_400.0]),
    ],
)
def test_moments(values: list[Any], seconds: list[float]) -> None:
    np.testing.assert_array_equal(parse_times(RULES.clean(pa.array(values))), seconds)


@pytest.mark.parametrize("zone", [None, "Europe/Vienna"])
@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_moments_of_every_unit(unit: str, per_second: int, zone: str | None) -> None:
    at = 1_767_225_600
    column = pa.array([at * per_second + per_second // 4, None, 0]).cast(pa.timestamp(unit, zone))
    np.testing.assert_array_equal(parse_times(column), [at + (0.0 if unit == "s" else 0.25), np.nan, 0.0])


def test_nanoseconds_are_cut_to_what_texts_have() -> None:
    """As pandas writes them; and a time that microseconds cannot hold is one like any other."""
    (found,) = parse_times(pa.array([1_767_225_600_123_456_789], pa.timestamp("ns")))
    assert found == parse_times(pa.array(["2026-01-01T00:00:00.123456"])).item()
    assert found != parse_times(pa.array(["2026-01-01T00:00:00.123457"])).item(), "the control"
    assert parse_times(pa.array([-1], pa.timestamp("ns"))).item() == -1e-6
    assert np.isnan(parse_times(pa.array([10**14], pa.timestamp("s"))).item()), "not in year 1 to 9999"
    assert parse_times(pa.array([86_400_000], pa.date64())).item() == 86_400.0


def test_column_numbers_stay_when_columns_are_added() -> None:
    assert [column_number(name) for name in ("C1", "C2", "C26")] == [0, 1, 25]
    others = ["user", "item", "C", "C01", "C0", "c1", "C1x", "é"]
    found = [column_number(name) for name in others]
    assert len(set(found)) == len(others)
    assert all(2**62 <= number < 2**63 for number in found)


def _bags(column: pa.Array, max_ids: int = 100) -> tuple[list[int], list[int]]:
    bags = IdBags.of(RULES.clean(column), RULES, delimiter="|", max_ids=max_ids)
    found, lengths = bags.hashes(9)
    assert found.dtype == np.uint64
    assert lengths.dtype == np.int32
    rows = table_rows_of(found[None], (1000,)).reshape(-1)
    return rows.tolist(), lengths.tolist()


def _rows(*ids: str | int) -> list[int]:
    found = [
        hash_bytes(9, value.encode())
        if isinstance(value, str)
        else hash_integers(9, np.array([value])).item()
        for value in ids
    ]
    return table_rows_of(np.array(found, np.uint64)[None], (1000,)).reshape(-1).tolist()


def test_bags_of_texts_and_of_lists_are_the_same() -> None:
    want = (_rows("a", "b", "c"), [2, 0, 1, 0])
    assert _bags(pa.array(["a|b", "", "?|c|", "?"])) == want
    assert _bags(pa.array([["a", "b"], None, ["?", "c", None, ""], []])) == want
    assert _bags(pa.array([["a", " b "], None, ["c"], []], pa.large_list(pa.string()))) == want
    whole = pa.array([["x"], ["a", "b"], None, ["c"], []])
    assert _bags(whole.slice(1)) == want
    assert _bags(pa.array([[5, None], [7]])) == (_rows(5, 7), [1, 1])
    # A file in which nothing has a value.
    assert _bags(pa.nulls(3)) == ([], [0, 0, 0])
    assert _bags(pa.array([[], [None]])) == ([], [0, 0])


def test_a_bag_keeps_its_first_ids() -> None:
    assert _bags(pa.array(["?|a|b|c", "d"]), max_ids=2) == (_rows("a", "b", "d"), [2, 1])


def test_one_of_some_values() -> None:
    assert equals_any(pa.array(["a", "b", None]), ["a"], RULES).tolist() == [True, False, False]
    assert equals_any(pa.array(["1.0", "2", None]), [1, 3], RULES).tolist() == [True, False, False]
    assert equals_any(pa.array([1, 0, None]), [0], RULES).tolist() == [False, True, False]
    assert equals_any(pa.array([1, 0]), ["1"], RULES).tolist() == [True, False]


def test_missing_texts_of_a_slice_are_null_and_no_others() -> None:
    texts = pa.array(["?", "1", "", None, "?", "2", "", "3"])
    for column in (texts, texts.cast(pa.large_string())):
        clean = TextRules(("", "?")).clean(column.slice(1, 6))
        assert clean.to_pylist() == ["1", None, None, None, "2", None]
        assert clean.null_count == 4
        assert parse_number_column(clean).tolist() == [1.0, 0.0, 0.0, 0.0, 2.0, 0.0]
        assert hash_ids(clean, 3).tolist() == [hash_bytes(3, t) for t in (b"1", b"", b"", b"", b"2", b"")]


def _time(ticks: int, kind: pa.DataType) -> pa.Scalar:
    return pa.array([ticks], pa.int64()).view(kind)[0]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (_time(0, pa.timestamp("us")), b"1970-01-01 00:00:00"),
        (_time(0, pa.timestamp("us", "Europe/Paris")), b"1970-01-01 01:00:00+01:00"),
        (_time(0, pa.timestamp("us", "Mars/Olympus")), b"1970-01-01 00:00:00.000000"),
        (_time(1, pa.timestamp("ns", "Mars/Olympus")), b"1970-01-01 00:00:00.000000001"),
        (_time(-62_167_219_200, pa.timestamp("s")), b"0000-01-01 00:00:00"),
        (_time(253_402_300_800, pa.timestamp("s", "UTC")), b"10000-01-01 00:00:00"),
        (_time(2**62, pa.timestamp("us")), b"<value out of range: 4611686018427387904>"),
        (pa.array([4_000_000], pa.int32()).view(pa.date32())[0], b"12921-08-18"),
        (pa.scalar([_time(253_402_300_800, pa.timestamp("s"))]), b"[10000-01-01 00:00:00]"),
        (pa.array([b"a\xff"]).view(pa.string())[0], b"a\xff"),
        (pa.ListArray.from_arrays([0, 2], pa.array([b"a\xff", None]).view(pa.string()))[0], b"[a\xff, None]"),
        (pa.DictionaryArray.from_arrays([0], pa.array([b"a\xff"]).view(pa.string()))[0], b"a\xff"),
        (pa.scalar(None, pa.timestamp("ns")), b"None"),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Scalar) else "",
)
def test_every_value_can_be_shown(value: pa.Scalar, shown: bytes) -> None:
    assert display_bytes(value) == shown
