"""The hash from a categorical value to a row of its table.

The hash is the same in every version. For a value of `length` bytes in categorical column `column` (from 0),
with all arithmetic modulo 2**64, it is:

    h = mix(mix(HASH_SEED ^ ((column + 1) * GOLDEN_RATIO)) ^ (length * GOLDEN_RATIO))
    for each 8 bytes, read little-endian, the last ones padded with zero bytes:  h = mix(h ^ word)
    row = ((h >> 32) * table_rows) >> 32

`mix` is the finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014; constants by Stafford). It is a
bijection, so two values of at most 8 bytes and of equal length never share an h. The multiply-shift (Lemire,
2019) favours no row by more than table_rows / 2**32. A missing value is the empty string, which has a row
like any other. The seed is a constant and not `run.seed`, so that checkpoints of two runs have the same rows.

The first values of rows, stochastic rounding and the generator use the same `mix`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import IndexArray, Int32Array, Uint8Array, Uint64Array

HASH_VERSION = 1
HASH_SEED = 0x5348_4144_4F57_0001
PADDING_BYTES = 8
"""Bytes that must be readable after the last field, because fields are loaded as whole words."""

GOLDEN_RATIO = 0x9E37_79B9_7F4A_7C15
MULTIPLIER_1, MULTIPLIER_2 = 0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB
MASK = 2**64 - 1
# Below this many unfinished values a Python loop is faster than some 20 NumPy calls per word. Without it one
# field of a million bytes would take seconds.
_FEW = 16


def mix_one(value: int) -> int:
    """Return SplitMix64's finalizer of one number below 2**64."""
    value = ((value ^ (value >> 30)) * MULTIPLIER_1) & MASK
    value = ((value ^ (value >> 27)) * MULTIPLIER_2) & MASK
    return value ^ (value >> 31)


def mix(values: Uint64Array, scratch: Uint64Array | None = None) -> Uint64Array:
    """Apply SplitMix64's finalizer in place; return `values`.

    `scratch`, of the same shape, is overwritten; without it numpy allocates temporaries.
    """
    for shift, multiplier in ((30, MULTIPLIER_1), (27, MULTIPLIER_2)):
        values ^= np.right_shift(values, np.uint64(shift), out=scratch)
        values *= np.uint64(multiplier)
    values ^= np.right_shift(values, np.uint64(31), out=scratch)
    return values


def mix64(value: Uint64Array) -> Uint64Array:
    """Apply SplitMix64's step and finalizer to each element.

    Returns a new uint64 array of the shape of `value`.
    """
    return mix(value + np.uint64(GOLDEN_RATIO))


def mix_numbers(*numbers: int) -> int:
    """Mix numbers into one below 2**64; their order matters.

    Each number is at least 0 and below 2**64.
    """
    state = np.zeros(1, np.uint64)
    for number in numbers:
        state = mix64(state ^ np.uint64(number))
    return int(state[0])


def hash_bytes(column: int, value: bytes) -> int:
    """Return the hash of one value, as an int below 2**64.

    This is the definition; the vectorized functions give the same hashes.
    """
    h = _start(column, len(value))
    for start in range(0, len(value), 8):
        h = mix_one(h ^ int.from_bytes(value[start : start + 8], "little"))
    return h


def unaligned_words(buffer: Uint8Array) -> Uint64Array:
    """Return contiguous bytes uint8 [n] as a view uint64 [n - 7].

    Entry i is bytes i to i + 7, little-endian.
    """
    return np.ndarray((len(buffer) - 7,), np.dtype("<u8"), buffer.data, 0, (1,))


def hash_fields(
    buffer: Uint8Array, starts: IndexArray, lengths: IndexArray, columns: Sequence[int]
) -> Uint64Array:
    """Return hashes of fields of a byte buffer.

    Args:
        buffer: uint8 [n], contiguous, with PADDING_BYTES (of any content) after the last field.
        starts, lengths: int64 [C, k], in bytes: field j of categorical column `columns[i]`.

    Returns:
        uint64 [C, k]. Any thread may call; NumPy's loops release the GIL.
    """
    full = np.array([[_start(column, 8)] for column in columns], np.uint64)
    empty = np.array([[_start(column, 0)] for column in columns], np.uint64)
    h = unaligned_words(buffer)[starts]
    h ^= full
    mix(h)
    other = lengths != 8
    if other.any():
        missing = lengths == 0
        np.copyto(h, empty, where=missing)
        longer = np.flatnonzero(other & ~missing)
        if len(longer):
            of_fields = np.array(columns)[longer // starts.shape[1]]
            h.flat[longer] = _hash_any(buffer, starts.ravel()[longer], lengths.ravel()[longer], of_fields)
    return h


def column_number(name: str) -> int:
    """Return the hash's `column` for a column of this name.

    C1, C2, ... have the numbers 0, 1, ...; other names are hashed, so that a column keeps its rows when other
    columns are added before it.
    """
    if name[:1] == "C" and name[1:].isascii() and name[1:].isdigit() and not name[1:].startswith("0"):
        return min(int(name[1:]) - 1, 2**62 - 1)
    return 2**62 | (hash_bytes(0, name.encode("utf-8", "surrogatepass")) >> 2)


def hash_integers(column: int, values: NDArray[Any]) -> Uint64Array:
    """Return hashes uint64 [k] of integers of any type [k].

    A signed integer is hashed as the 8 little-endian bytes of an int64, any other as those of a uint64.
    """
    signed = np.issubdtype(values.dtype, np.signedinteger)
    h: Uint64Array = values.astype(np.int64 if signed else np.uint64).view(np.uint64)
    h ^= np.uint64(_start(column, 8))
    return mix(h)


def hash_combinations(column: int, parts: Sequence[Uint64Array]) -> Uint64Array:
    """Return hashes uint64 [k] of combinations of numbers, uint64 [k] each.

    A combination is hashed as the little-endian bytes of its numbers, one after the other.
    """
    h = np.full(len(parts[0]), _start(column, 8 * len(parts)), np.uint64)
    for part in parts:
        h ^= part
        mix(h)
    return h


def table_rows_of(hashes: Uint64Array, table_rows: tuple[int, ...]) -> Int32Array:
    """Return rows int32 [T, k] of hashes uint64 [T, k].

    Row t has values from 0 to table_rows[t] - 1.
    """
    sizes = np.array(table_rows, np.uint64)[:, None]
    # In place, because at the size of a chunk temporaries cost more than the arithmetic.
    scaled = hashes >> np.uint64(32)
    scaled *= sizes
    scaled >>= np.uint64(32)
    rows: Int32Array = scaled.astype(np.int32)
    return rows


def hashes_of_rows(rows: IndexArray, table_rows: int) -> Uint64Array:
    """Return hashes uint64 [k] for which `table_rows_of` gives these rows.

    Values with a fixed row each use them, so that they are stored and counted as hashed ids are.
    """
    size = np.uint64(table_rows)
    high = ((rows.astype(np.uint64) << np.uint64(32)) + (size - np.uint64(1))) // size
    return high << np.uint64(32)


# Each chunk asks for those of the same columns.
@lru_cache(maxsize=4096)
def _start(column: int, length: int) -> int:
    """Return the h of a value before its first word."""
    return mix_one(
        mix_one(HASH_SEED ^ (((column + 1) * GOLDEN_RATIO) & MASK)) ^ ((length * GOLDEN_RATIO) & MASK)
    )


def _hash_any(
    buffer: Uint8Array, starts: IndexArray, lengths: IndexArray, columns: IndexArray
) -> Uint64Array:
    """Return the hashes, uint64 [k], of values with at least one byte."""
    golden = np.uint64(GOLDEN_RATIO)
    h = mix((columns + 1).astype(np.uint64) * golden ^ np.uint64(HASH_SEED))
    h = mix(h ^ lengths.astype(np.uint64) * golden)
    words = unaligned_words(buffer)
    active, done = np.arange(len(starts)), 0
    while len(active) >= _FEW or (len(active) and done == 0):
        left = lengths[active] - done
        unused_bits = (np.maximum(8 - left, 0) << 3).astype(np.uint64)
        word = (words[starts[active] + done] << unused_bits) >> unused_bits
        h[active] = mix(h[active] ^ word)
        active, done = active[left > 8], done + 8
    for index in active:
        value, stop = int(h[index]), int(starts[index] + lengths[index])
        for start in range(int(starts[index]) + done, stop, 8):
            value = mix_one(value ^ int.from_bytes(buffer[start : min(start + 8, stop)].tobytes(), "little"))
        h[index] = value
    return h
