"""The first values of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.storage import first_values as rows_module
from shadowsync.pipeline.embedding.storage.first_values import row_values

MASK = 2**64 - 1
WRONG_OUTS: list[Any] = [np.zeros((3, 5), np.float32), np.zeros((3, 4)), np.zeros((4, 3), np.float32).T]
# Rows 0, 1 and 2^31 - 2 of table 0 under seed 1. If these change, so do the results of older releases.
GOLDEN = [
    ["0x1.a4d2800000000p-6", "-0x1.2920780000000p-2", "-0x1.4efb9c0000000p-1", "0x1.2b70400000000p-3"],
    ["0x1.6abf480000000p-1", "-0x1.3f14440000000p-1", "-0x1.0233640000000p-1", "0x1.fe052c0000000p-1"],
    ["-0x1.399e100000000p-1", "0x1.52c4e00000000p-4", "0x1.ff01e00000000p-2", "0x1.d572900000000p-3"],
]


def mixed(word: int) -> int:
    """SplitMix64's step in plain integers."""
    word = (word * 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def expected(seed: int, table: int, row: int, k: int, scale: float) -> np.float32:
    """One value by the rule in the module's text, in plain integers."""
    key = mixed((mixed(seed + 1) + table + 1) & MASK)
    half = (mixed((key + row * 2048 + k // 2) & MASK) >> (32 * (k % 2))) & 0xFFFFFFFF
    signed = half - 2**32 if half >= 2**31 else half
    return np.float32(signed >> 8) * np.float32(scale * 2.0**-23)


@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 4095),
    st.lists(st.integers(0, 2**31 - 1), max_size=5),
    st.integers(1, 20),
    st.sampled_from([1.0, 0.05, 1e-3]),
)
def test_values_follow_the_stated_rule(
    seed: int, table: int, rows: list[int], dim: int, scale: float
) -> None:
    got = row_values(seed, table, np.array(rows, np.int64), dim, scale)
    wanted = [[expected(seed, table, row, k, scale) for k in range(dim)] for row in rows]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array(wanted, np.float32).reshape(len(rows), dim))


def test_splitmix64_is_the_published_one() -> None:
    # The first outputs of the reference implementation (Vigna, splitmix64.c) seeded with 1234567.
    golden = 0x9E3779B97F4A7C15
    reference = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    inverse = pow(golden, -1, 2**64)
    for step, word in enumerate(reference, start=1):
        assert mixed((1234567 + step * golden) * inverse & MASK) == word


def test_golden_values() -> None:
    got = row_values(1, 0, np.array([0, 1, 2**31 - 2]), 4, 1.0)
    assert [[float(value).hex() for value in row] for row in got] == GOLDEN


def test_a_row_is_the_same_alone_in_any_company_and_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).integers(0, 10**6, 5000)
    together = row_values(7, 3, numbers, 16, 0.1)
    monkeypatch.setattr(rows_module, "CHUNK_COUNTERS", 24)
    np.testing.assert_array_equal(row_values(7, 3, numbers, 16, 0.1), together)
    np.testing.assert_array_equal(row_values(7, 3, numbers[4321:4322], 16, 0.1), together[4321:4322])
    np.testing.assert_array_equal(row_values(7, 3, numbers, 5, 0.1), together[:, :5])


def test_seeds_and_tables_give_unrelated_values_in_the_stated_range() -> None:
    numbers = np.arange(20_000)
    samples = [row_values(seed, table, numbers, 8, 0.5).ravel() for seed in (0, 1) for table in (0, 1)]
    for sample in samples:
        assert sample.min() >= -0.5
        assert sample.max() < 0.5
        # 160,000 draws: the standard error of the mean is 0.0007, of the deviation about 0.0004.
        assert abs(sample.mean()) < 0.004
        assert abs(sample.std() - 1 / 12**0.5) < 0.002
        assert len(np.unique(sample)) > 150_000
    correlations = np.corrcoef(samples) - np.eye(4)
    assert np.abs(correlations).max() < 0.015


def test_out_is_filled_and_checked() -> None:
    out = np.zeros((3, 4), np.float32)
    assert row_values(1, 2, np.arange(3), 4, 0.1, out=out) is out
    np.testing.assert_array_equal(out, row_values(1, 2, np.arange(3), 4, 0.1))
    for wrong in WRONG_OUTS:
        with pytest.raises(ValueError, match="out must be"):
            row_values(1, 2, np.arange(3), 4, 0.1, out=wrong)
    with pytest.raises(ValueError, match="1 to 4096 floats"):
        row_values(1, 2, np.arange(3), 4097, 0.1)
