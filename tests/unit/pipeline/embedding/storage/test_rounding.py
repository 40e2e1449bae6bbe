"""bfloat16 at random: what it is on the mean, and that it repeats."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.storage.bf16_rows import (
    WidenedRows,
    nearest_bits,
    round_at_random,
    rounding_bits,
)
from shadowsync.pipeline.embedding.storage.first_values import mixed_key
from shadowsync.pipeline.types import Float32Array

EDGES = [0.0, -0.0, 1.0, -1.5, 3.0e38, -3.0e38, 2.0**-126, float("inf"), float("-inf")]


def widened(bits: torch.Tensor) -> Float32Array:
    return np.asarray(bits.view(torch.bfloat16).float().numpy(), np.float32)


def rounded(values: Float32Array, key: int) -> Float32Array:
    rows = np.arange(len(values), dtype=np.int64)
    bits = rounding_bits(key, rows, values.shape[1])
    return widened(round_at_random(torch.from_numpy(values.copy()), bits))


def test_it_goes_to_one_of_the_two_neighbours_and_on_the_mean_nowhere() -> None:
    # Of 1 and its neighbour 1 + 2^-7, at every quarter between, and below 0 too.
    parts = np.array([[0.0, 0.25, 0.5, 0.75]]) * 2.0**-7
    exact = np.repeat(np.concatenate([1.0 + parts, -1.0 - parts], 1), 4000, 0).astype(np.float32)
    values = rounded(exact, 3)
    away = np.sign(exact) * (np.abs(values) - 1.0)
    assert set(np.unique(np.abs(away))) == {0.0, 2.0**-7}
    # A mean of 4,000 of them has a deviation of 2^-7 * 0.5 / sqrt(4000).
    deviation = 2.0**-7 * 0.5 / np.sqrt(4000)
    np.testing.assert_allclose(values.mean(0), exact.mean(0), rtol=0, atol=4 * deviation)
    # The control: rounding to nearest is off by a quarter of the distance, whatever the number of values.
    nearest = np.asarray(WidenedRows(nearest_bits(exact)))
    assert np.abs(nearest.mean(0) - exact.mean(0)).max() > 20 * deviation


def test_what_bfloat16_has_stays() -> None:
    exact = np.array([[value] for value in EDGES], np.float32)
    exact = np.asarray(WidenedRows(nearest_bits(exact)))
    for key in range(20):
        np.testing.assert_array_equal(rounded(exact, key).view(np.uint32), exact.view(np.uint32))
    assert np.isnan(rounded(np.full((5, 4), np.nan, np.float32), 1)).all()


@pytest.mark.parametrize("dim", [1, 3, 4, 17])
def test_the_bits_hang_on_key_row_and_float_alone(dim: int) -> None:
    rows = np.array([5, 0, 2**31 - 1, 77], np.int64)
    bits = rounding_bits(9, rows, dim)
    assert bits.shape == (4, dim)
    assert bits.dtype == np.int32
    for place in range(4):
        np.testing.assert_array_equal(rounding_bits(9, rows[place:], dim)[0], bits[place])
    np.testing.assert_array_equal(rounding_bits(9, rows, dim + 5)[:, :dim], bits)
    assert (rounding_bits(10, rows, dim) != bits).any(1).all()
    assert len({tuple(row) for row in bits.tolist()}) == 4


def split_mix(counter: int) -> int:
    """Of Steele, Lea and Flood, in whole numbers."""
    value = counter * 0x9E3779B97F4A7C15 % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


def test_the_bits_are_those_of_the_hash_over_the_counters_of_a_row() -> None:
    key, rows = 2**64 - 12_345, np.array([0, 5, 2**31 - 1], np.int64)
    bits = rounding_bits(key, rows, 10)
    for place, row in enumerate(rows.tolist()):
        words = [split_mix((key + 1024 * row + word) % 2**64) for word in range(3)]
        quarters = [word >> 16 * quarter & 0xFFFF for word in words for quarter in range(4)]
        assert bits[place].tolist() == quarters[:10]


def chi_square(bits: NDArray[np.int32]) -> float:
    """Of the upper 8 bits over 256 bins: about 255 for random ones, with a deviation of 23."""
    counts = np.bincount(bits.reshape(-1) >> 8, minlength=256)
    expected = bits.size / 256
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_bits_are_even_over_rows_floats_and_keys() -> None:
    rows = np.arange(20_000, dtype=np.int64)
    by_row = rounding_bits(1, rows, 16)
    assert (by_row.min() >= 0, by_row.max() < 65_536) == (True, True)
    for column in range(16):
        assert 255 - 5 * 23 < chi_square(by_row[:, column]) < 255 + 5 * 23
    by_key = np.concatenate([rounding_bits(mixed_key(key), rows[:1], 16) for key in range(2000)])
    assert 255 - 5 * 23 < chi_square(by_key) < 255 + 5 * 23
    # The control: bits that count up are too even.
    assert chi_square((np.arange(20_000, dtype=np.int32) * 65_536 // 20_000).astype(np.int32)) < 50


def test_nearest_is_that_of_torch() -> None:
    draw = np.random.default_rng(4)
    bits = draw.integers(0, 2**32, 100_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), np.array(EDGES, np.float32)]).reshape(-1, 1)
    wanted = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(np.asarray(WidenedRows(nearest_bits(values))), wanted)
    # The control: cutting the lower half off is something else.
    cut = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert (cut[~np.isnan(values)] != wanted[~np.isnan(values)]).mean() > 0.4


def test_widened_rows_read_and_write_as_float32() -> None:
    rows = WidenedRows(np.zeros((6, 3), np.uint16))
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    rows[1:5] = values
    np.testing.assert_array_equal(np.asarray(rows[1:5]), values)
    assert (rows.shape, len(rows), rows.nbytes, rows.bits.nbytes) == ((6, 3), 6, 72, 36)
    copy = rows.copy()
    rows[0:6] = np.ones((6, 3), np.float32)
    np.testing.assert_array_equal(np.asarray(copy[1:5]), values)
    with pytest.raises(ValueError, match="without a copy"):
        np.array(rows, copy=False)
