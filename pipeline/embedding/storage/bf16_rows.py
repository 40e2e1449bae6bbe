"""float32 to bfloat16 by stochastic rounding: up or down at random, so that the mean is the value itself.

A step that is smaller than half the distance to the next bfloat16 is always lost by rounding to nearest; here
it is taken as often as it is a part of that distance. Source: Gupta et al.: Deep Learning with Limited
Numerical Precision (arXiv 1502.02551), section 3.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ...data.hashing import GOLDEN_RATIO, MASK, mix

WORDS_PER_ROW = 1024
"""Of 64 bits, each for four floats of a row."""


def rounding_bits(key: int, rows: NDArray[np.int64], dim: int) -> NDArray[np.int32]:
    """16 random bits for each float, int32 [M, dim] in [0, 65536), from (key, row, float) alone: not from
    what other rows there are. By the hash of `rows.py`, as its counters.

    Args:
        key: 64 bits, another one for each step.
        rows: int64 [M], at least 0.
        dim: floats in a row, at most 4096.
    """
    words = (dim + 3) // 4
    # (row * WORDS_PER_ROW + key + word) * GOLDEN_RATIO, term by term: one product a row and not one a word.
    counters = rows.astype(np.uint64)
    counters *= np.uint64(WORDS_PER_ROW * GOLDEN_RATIO & MASK)
    counters += np.uint64(key * GOLDEN_RATIO & MASK)
    bits = np.empty((len(rows), words), np.uint64)
    # By columns: a row's few words would make a loop of their own each.
    for word in range(words):
        np.add(counters, np.uint64(word * GOLDEN_RATIO & MASK), out=bits[:, word])
    mix(bits, np.empty_like(bits))
    # The quarters by their weight, not their address, so that byte order changes no value.
    return bits.astype("<u8", copy=False).view("<u2")[:, :dim].astype(np.int32)


def round_at_random(values: torch.Tensor, bits: NDArray[np.int32]) -> torch.Tensor:
    """bfloat16 as int16 [M, dim], of float32 [M, dim], contiguous, which it overwrites.

    Added to the half of a float that bfloat16 does not have, the bits carry into the other half as often as
    that half is large; the sign is apart, so negative numbers go the same way. What bfloat16 has stays as it
    is, infinities included; beyond the largest number it may become infinity.
    """
    whole = values.view(torch.int32)
    whole += torch.from_numpy(bits)
    whole >>= 16
    return whole.to(torch.int16)
