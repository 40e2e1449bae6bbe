"""The first value of every embedding row.

The value depends only on (seed, table, row), so any node can make any row. Nothing is sent at the start, and
the split over nodes changes no value. Imports no torch.

Each pair of floats of a row is one hash. Pair p of a row has the counter `row * 2048 + p`, to which a 64-bit
key is added, made from the seed and the table. The hash is SplitMix64's finalizer of the sum (Steele, Lea,
Flood: Fast Splittable Pseudorandom Number Generators, 2014). The upper 24 bits of its low half give the even
float, those of its high half the odd one. Values do not depend on versions of libraries or on `dim`, so the
golden values in the tests never change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...config.tables import TableSettings
from ...data.hashing import GOLDEN_RATIO, MASK, mix, mix_one
from ..placement.plan import Piece

PAIRS_PER_ROW = 2048
DIM_LIMIT = 2 * PAIRS_PER_ROW
CHUNK_COUNTERS = 16_384
"""Counters hashed at once: their two scratch arrays stay in the second-level cache."""


def row_values(
    seed: int,
    table: int,
    rows: NDArray[np.int64] | NDArray[np.uint64],
    dim: int,
    scale: float,
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return the first values of rows of one table.

    Args:
        seed: the seed of the run, at least 0.
        table: the number of the table.
        rows: int64 [N], numbered within the table; or uint64 [N], keys of a growing table.
        dim: floats in a row, at most 4096.
        scale: values are uniform in [-scale, scale).
        out: float32 [N, dim], C-contiguous, to be filled; by default a new array.

    Returns:
        float32 [N, dim]. Any thread may call this.

    Raises:
        ValueError: a `dim` out of range, or an `out` of another shape or type.
    """
    key = np.array([mixed_key(seed, table)], np.uint64)
    return keyed_values(key, np.array([scale]), rows, dim, out=out)


def keyed_values(
    table_keys: NDArray[np.uint64],
    scales: NDArray[np.float64],
    rows: NDArray[np.int64] | NDArray[np.uint64],
    dim: int,
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return the first values of rows, each of a table of its own.

    Args:
        table_keys: uint64 [N], `mixed_key(seed, table)` of each row's table; or [1], of all rows.
        scales: float64 [N] or [1]; values are uniform in [-scale, scale).

    For the rest see `row_values`.
    """
    if not 1 <= dim <= DIM_LIMIT:
        raise ValueError(f"a row has 1 to {DIM_LIMIT} floats, not {dim}")
    if out is None:
        out = np.empty((len(rows), dim), np.float32)
    elif out.shape != (len(rows), dim) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float32 {(len(rows), dim)}, not {out.dtype} {out.shape}")
    pairs = (dim + 1) // 2
    step = min(max(1, CHUNK_COUNTERS // pairs), max(1, len(rows)))
    within_row = np.arange(pairs, dtype=np.uint64)
    counters, scratch = np.empty((2, step, pairs), np.uint64)
    firsts = rows.astype(np.uint64)
    firsts *= np.uint64(PAIRS_PER_ROW)
    firsts += table_keys
    units = (scales * 2.0**-23).astype(np.float32)[:, None]
    for start in range(0, len(rows), step):
        part = firsts[start : start + step]
        bits, spare = counters[: len(part)], scratch[: len(part)]
        np.add(part[:, None], within_row, out=bits)
        # The multiplication spreads consecutive counters.
        bits *= np.uint64(GOLDEN_RATIO)
        mix(bits, spare)
        # As little-endian, so that the byte order of the machine changes no value.
        signed = bits.astype("<u8", copy=False).view("<i4")[:, :dim]
        unit = units if len(units) == 1 else units[start : start + step]
        np.multiply(signed >> 8, unit, out=out[start : start + step], casting="same_kind", dtype=np.float32)
    return out


class FirstRowValues:
    """The first values of the rows of a bank, which holds pieces of several tables.

    Rows of no piece have zeros. Used by one thread.

    Args:
        dim: floats in a row.
    """

    def __init__(self, dim: int) -> None:
        self._begins: list[int] = []
        self._firsts: list[int] = []
        self._keys: list[int] = []
        self._scales: list[float] = []
        self._dim = dim

    def add(self, begin: int, piece: Piece, table: TableSettings, seed: int) -> None:
        """Add a piece, whose rows begin at row `begin` of the bank, above those of the pieces before."""
        self._begins.append(begin)
        self._firsts.append(piece.start)
        self._keys.append(mixed_key(seed, piece.table))
        self._scales.append(table.init_scale)

    def __call__(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the first values of rows int32 [N] of the bank, float32 [N, dim]."""
        if not self._begins:
            return np.zeros((len(rows), self._dim), np.float32)
        begins = np.array(self._begins, np.int64)
        owners = np.searchsorted(begins, rows, side="right") - 1
        numbers = rows - begins[owners] + np.array(self._firsts, np.int64)[owners]
        keys, scales = np.array(self._keys, np.uint64)[owners], np.array(self._scales)[owners]
        return keyed_values(keys, scales, numbers, self._dim)


def mixed_key(*words: int) -> int:
    """Return a 64-bit key from numbers of at least 0.

    The bits are well mixed, so that the counters of two keys are far apart.
    """
    key = 0
    for word in words:
        key = mix_one((key + word + 1) * GOLDEN_RATIO & MASK)
    return key
