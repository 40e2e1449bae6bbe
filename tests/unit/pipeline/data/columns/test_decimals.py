"""Numbers from text: the fast way and the slow way agree with Python, and what is no number is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data.columns.fields import parse_number, parse_numbers
from shadowsync.pipeline.data.hashing import PADDING_BYTES


def _parse(fields: list[bytes]) -> list[float]:
    buffer = np.frombuffer(b"\t".join(fields) + b"9" * PADDING_BYTES, np.uint8)
    lengths = np.array([len(field) for field in fields])
    starts = np.cumsum([0, *(lengths[:-1] + 1)])
    return [float(value) for value in parse_numbers(buffer, starts[None], lengths[None])[0]]


@given(st.lists(st.integers(-(2**70), 2**70) | st.integers(-999, 99_999_999), min_size=1, max_size=30))
def test_integers(values: list[int]) -> None:
    assert _parse([str(value).encode() for value in values]) == [float(value) for value in values]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=10))
def test_floats(values: list[float]) -> None:
    assert _parse([repr(value).encode() for value in values]) == values


@given(st.lists(st.binary(max_size=10).filter(lambda field: b"\t" not in field), min_size=1, max_size=30))
def test_any_bytes_go_the_same_way_fast_or_slow(fields: list[bytes]) -> None:
    want = [parse_number(field) if field else 0.0 for field in fields]
    np.testing.assert_array_equal(_parse(fields), want)


@pytest.mark.parametrize("text", ["007", "+5", "-0", "1e3", "-.5", "3.", "99999999", "-1234567", "123456789"])
def test_numbers_as_people_write_them(text: str) -> None:
    assert _parse([b"", text.encode(), b"1"]) == [0.0, float(text), 1.0]


@pytest.mark.parametrize(
    "text",
    ["-", "--5", "1-", "5a", " 5", "5 ", "nan", "inf", "1e999", "1_000", "0x10", "/", ":", "\x00", "٣"],
)
def test_what_is_no_number(text: str) -> None:
    assert math.isnan(_parse([text.encode()])[0])
