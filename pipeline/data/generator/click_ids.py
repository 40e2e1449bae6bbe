"""The ids of a generated click log: 32-bit numbers that hide their rank, and values hashed from them."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...types import Uint32Array
from ..hashing import mix64, mix_numbers

# The two multipliers of MurmurHash3's 32-bit finalizer, and their inverses modulo 2**32.
_FORWARD: Final = (0x85EBCA6B, 0xC2B2AE35)
_BACKWARD: Final = tuple(pow(multiplier, -1, 2**32) for multiplier in _FORWARD)


def ids_of_ranks(seed: int, column: int, ranks: NDArray[np.int32]) -> Uint32Array:
    """uint32 [n]: the ids of ranks of at least 0. One to one within a column, so no two ranks share an id."""
    value = ranks.astype(np.uint32) ^ _key(seed, column)
    value = (value ^ (value >> np.uint32(16))) * np.uint32(_FORWARD[0])
    value = (value ^ (value >> np.uint32(13))) * np.uint32(_FORWARD[1])
    return value ^ (value >> np.uint32(16))


def ranks_of_ids(seed: int, column: int, ids: Uint32Array) -> NDArray[np.int64]:
    """int64 [n]: the inverse of `ids_of_ranks`; of a number that is no id of the column, an absurd rank."""
    value = (ids ^ (ids >> np.uint32(16))) * np.uint32(_BACKWARD[1])
    value = (value ^ (value >> np.uint32(13)) ^ (value >> np.uint32(26))) * np.uint32(_BACKWARD[0])
    ranks: NDArray[np.int64] = (value ^ (value >> np.uint32(16)) ^ _key(seed, column)).astype(np.int64)
    return ranks


def normals_of_ids(seed: int, column: int, ids: Uint32Array, component: int) -> NDArray[np.float64]:
    """float64 [n]: a standard normal value of each id, a function of (seed, column, id, component) alone."""
    first = mix64(ids.astype(np.uint64) ^ np.uint64(mix_numbers(seed, 2, column, component)))
    second = mix64(first)
    # Box and Muller's transform of two uniforms, the first never 0.
    radius = ((first >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    angle = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    values: NDArray[np.float64] = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
    return values


def _key(seed: int, column: int) -> np.uint32:
    return np.uint32(mix_numbers(seed, 1, column) & 0xFFFFFFFF)
