"""The first value of every embedding row.

It is a function of (seed, table, row) alone, so any node can make any row: nothing is sent at the start, and
the split over nodes changes no value. Imports no torch.

The hash is SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)
over a counter: for the pair of floats `k // 2` of a row the counter is `row * 2048 + k // 2`, added to a
64-bit key made of the seed and the table by the same finalizer. The low half of the result gives the even
float, the high half the odd one, each from its upper 24 bits. Nothing in it depends on the versions
of libraries or on `dim`: the golden values in the tests hold for ever.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...data.hashing import GOLDEN_RATIO, MASK, mix, mix_one

PAIRS_PER_ROW = 2048
DIM_LIMIT = 2 * PAIRS_PER_ROW
CHUNK_COUNTERS = 16_384
"""Counters hashed at once: their two scratch arrays stay in the second-level cache."""


def row_values(
    seed: int,
    table: int,
    rows: NDArray[np.int64],
    dim: int,
    scale: float,
    *,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return the first values of rows of one table.

    Args:
        seed: the seed of the run, at least 0.
        table: the number of the table.
        rows: int64 [N], numbered within the table, whatever the split.
        dim: floats in a row, at most 4096.
        scale: values are uniform in [-scale, scale).
        out: float32 [N, dim], C-contiguous, to be filled; a new array without it.

    Returns:
        float32 [N, dim]. Any thread may call this.
    """
    if not 1 <= dim <= DIM_LIMIT:
        raise ValueError(f"a row has 1 to {DIM_LIMIT} floats, not {dim}")
    if out is None:
        out = np.empty((len(rows), dim), np.float32)
    elif out.shape != (len(rows), dim) or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise ValueError(f"out must be C-contiguous float32 {(len(rows), dim)}, not {out.dtype} {out.shape}")
    pairs = (dim + 1) // 2
    step = max(1, CHUNK_COUNTERS // pairs)
    key = np.uint64(mixed_key(seed, table))
    within_row = np.arange(pairs, dtype=np.uint64)
    counters, scratch = np.empty((2, step, pairs), np.uint64)
    unit = np.float32(scale * 2.0**-23)
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.uint64)
        part *= np.uint64(PAIRS_PER_ROW)
        part += key
        bits, spare = counters[: len(part)], scratch[: len(part)]
        np.add(part[:, None], within_row, out=bits)
        # The multiplication spreads consecutive counters.
        bits *= np.uint64(GOLDEN_RATIO)
        mix(bits, spare)
        # The halves by their weight, not their address, so that byte order changes no value.
        signed = bits.astype("<u8", copy=False).view("<i4")[:, :dim]
        np.multiply(signed >> 8, unit, out=out[start : start + step], casting="same_kind", dtype=np.float32)
    return out


def mixed_key(*words: int) -> int:
    """Return a 64-bit key from numbers of at least 0.

    Its bits are well mixed, so that counters of two keys do not run side by side.
    """
    key = 0
    for word in words:
        key = mix_one((key + word + 1) * GOLDEN_RATIO & MASK)
    return key
