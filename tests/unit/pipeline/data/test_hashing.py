"""The hash: golden values for ever, one definition behind all forms, and rows that are spread evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.data import hashing
from shadowsync.pipeline.data.hashing import (
    PADDING_BYTES,
    hash_bytes,
    hash_fields,
    hash_integers,
    table_rows_of,
)


def _hash_all(values: list[bytes], first_column: int = 0, junk: bytes = b"\xff") -> list[int]:
    """hash_fields over values that lie one after the other with `junk` between and behind them."""
    text = junk + junk.join(values) + junk * PADDING_BYTES
    lengths = np.array([len(value) for value in values])
    starts = len(junk) + np.cumsum([0, *(lengths[:-1] + len(junk))])
    buffer = np.frombuffer(text, np.uint8)
    return [int(h) for h in hash_fields(buffer, starts[None], lengths[None], [first_column])[0]]


@pytest.mark.parametrize(
    ("column", "value", "golden", "row"),
    [
        (0, b"", 0x8B85E91566F75FBD, 54501),
        (0, b"68fd1e64", 0x29A638190275253B, 16269),
        (1, b"68fd1e64", 0x6E7738327F38467D, 43150),
        (25, b"", 0xAD42A2C837F555CB, 67679),
        (3, b"abc", 0x5EBA47E571FFECD1, 37002),
        (3, b"abc\0", 0x5CE8D3062EB3E993, 36292),
        (7, "größe, 12 Bytes".encode(), 0x57D5D3B58357ECB4, 34310),
    ],
)
def test_golden_values(column: int, value: bytes, golden: int, row: int) -> None:
    """A change of any of these makes checkpoints useless: it needs another HASH_VERSION."""
    assert hashing.HASH_VERSION == 1
    assert hash_bytes(column, value) == golden
    assert _hash_all([value], column) == [golden]
    assert table_rows_of(np.array([[golden]], np.uint64), (100_000,)).tolist() == [[row]]


def test_the_mixing_function_is_the_published_one() -> None:
    """The first number of splitmix64 from state 0, as its authors give it."""
    assert hashing.mix_one(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=60), st.integers(0, 4095), st.binary(max_size=9))
def test_vectorized_equals_definition(values: list[bytes], column: int, junk: bytes) -> None:
    assert _hash_all(values, column, junk + b"x") == [hash_bytes(column, value) for value in values]


def test_long_values_equal_the_definition() -> None:
    values = [b"a" * 8 * n + b"b" * (n % 8) for n in range(40)]
    assert _hash_all(values) == [hash_bytes(0, value) for value in values]


def test_columns_of_a_matrix_have_their_own_hashes_in_any_memory_order() -> None:
    buffer = np.frombuffer(b"abcdefghij" + bytes(PADDING_BYTES), np.uint8)
    starts, lengths = np.array([[0, 1], [2, 0], [0, 0]]), np.array([[8, 3], [8, 10], [0, 1]])
    want = [
        [hash_bytes(5, b"abcdefgh"), hash_bytes(5, b"bcd")],
        [hash_bytes(6, b"cdefghij"), hash_bytes(6, b"abcdefghij")],
        [hash_bytes(7, b""), hash_bytes(7, b"a")],
    ]
    for fields in ((starts, lengths), (np.asfortranarray(starts), np.asfortranarray(lengths))):
        assert hash_fields(buffer, *fields, (5, 6, 7)).tolist() == want


def test_integers_hash_as_their_eight_bytes() -> None:
    values = np.array([0, 1, -1, 2**63 - 1, -(2**63)])
    want = [hash_bytes(2, int(value).to_bytes(8, "little", signed=True)) for value in values]
    assert hash_integers(2, values).tolist() == want
    large = np.array([2**64 - 1], np.uint64)
    assert hash_integers(2, large).tolist() == [want[2]]


@pytest.mark.parametrize("rows", [1, 2, 997, 2**31 - 1])
def test_rows_stay_in_the_table(rows: int) -> None:
    hashes = np.array([[0, 2**64 - 1, 2**63, 2**32 - 1, 2**32]], np.uint64)
    got = table_rows_of(hashes, (rows,))
    assert got.dtype == np.int32
    assert got.min() >= 0
    assert got.max() < rows


@pytest.mark.parametrize("ids", ["consecutive", "hex", "integers"])
def test_rows_are_spread_evenly(ids: str) -> None:
    """Chi-square over 1,000 rows: 5 standard deviations, which an even spread exceeds once in a million."""
    count, rows = 100_000, 1000
    if ids == "integers":
        hashes = hash_integers(0, np.arange(count))[None]
    else:
        values = [(f"{n}" if ids == "consecutive" else f"{n:08x}").encode() for n in range(count)]
        hashes = np.array([_hash_all(values)], np.uint64)
    counts = np.bincount(table_rows_of(hashes, (rows,))[0], minlength=rows)
    chi_square = float(((counts - count / rows) ** 2).sum() / (count / rows))
    assert abs(chi_square - (rows - 1)) < 5 * (2 * (rows - 1)) ** 0.5
    assert len(set(hashes[0].tolist())) == count


def test_columns_are_independent() -> None:
    """The same ids in two columns fall on the same row about as often as chance has it."""
    values = [f"{n:08x}".encode() for n in range(50_000)]
    hashes = np.array([_hash_all(values, 0), _hash_all(values, 1)], np.uint64)
    first, second = table_rows_of(hashes, (100, 100))
    assert 0.008 < float((first == second).mean()) < 0.012
