"""The columns of a generated click log, drawn from (seed, part, row).

Ids are 32-bit numbers that do not show their rank. The teacher's latent values are hashes of the ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from ...types import Float64Array, Int32Array, Uint32Array
from ..hashing import mix64, mix_numbers

# Rows are drawn in blocks of this many, so that a row can be made without all rows before it.
BLOCK_EXAMPLES: Final = 8_192
LARGEST_COUNT: Final = 10_000_000

LogPart = Literal["train", "eval", "calibration"]
_PART_NUMBER: Final[dict[LogPart, int]] = {"train": 0, "eval": 1, "calibration": 2}

# The two multipliers of MurmurHash3's 32-bit finalizer.
_MULTIPLIERS: Final = (0x85EBCA6B, 0xC2B2AE35)


@dataclass(frozen=True)
class CountColumn:
    """An integer column with a log-logistic distribution.

    Attributes:
        location: logarithm of the median.
        spread: scale of the logarithm.
        missing: fraction of the rows that are empty.
        negative: fraction of the rows that are -1, as in Criteo's second column.
    """

    location: float
    spread: float
    missing: float = 0.0
    negative: float = 0.0


@dataclass(frozen=True)
class IdColumn:
    """A categorical column of `cardinality` ids, log-uniform over their ranks.

    Attributes:
        missing: fraction of the rows that are empty.
        side: the column's side in the teacher's interactions, which pair each "left" column with each
            "right" column.
    """

    cardinality: int
    missing: float = 0.0
    side: Literal["", "left", "right"] = ""


# Medians, tails and missing fractions follow the first 10,000 rows of Criteo's Kaggle set.
COUNT_COLUMNS: Final = (
    CountColumn(0.6, 0.8, missing=0.44),
    CountColumn(1.6, 1.3, negative=0.10),
    CountColumn(2.0, 0.8, missing=0.20),
    CountColumn(1.6, 0.6, missing=0.20),
    CountColumn(7.5, 1.3, missing=0.03),
    CountColumn(3.7, 0.9, missing=0.22),
    CountColumn(1.2, 0.9, missing=0.04),
    CountColumn(2.0, 0.8),
    CountColumn(3.7, 0.8, missing=0.04),
    CountColumn(-0.6, 0.4, missing=0.44),
    CountColumn(0.5, 0.6, missing=0.04),
    CountColumn(-0.8, 0.8, missing=0.76),
    CountColumn(1.7, 0.7, missing=0.20),
)


ID_COLUMNS: Final = (
    IdColumn(300, side="left"),
    IdColumn(500, side="right"),
    IdColumn(60_000, missing=0.03),
    IdColumn(30_000, missing=0.03),
    IdColumn(60, side="left"),
    IdColumn(12, missing=0.12, side="right"),
    IdColumn(8_000),
    IdColumn(120, side="left"),
    IdColumn(3),
    IdColumn(20_000),
    IdColumn(4_000),
    IdColumn(50_000, missing=0.03),
    IdColumn(3_000),
    IdColumn(26),
    IdColumn(8_000),
    IdColumn(40_000, missing=0.03),
    IdColumn(10),
    IdColumn(3_000),
    IdColumn(1_500, missing=0.44),
    IdColumn(4, missing=0.44),
    IdColumn(45_000, missing=0.03),
    IdColumn(12, missing=0.78),
    IdColumn(15, side="right"),
    IdColumn(15_000),
    IdColumn(60, missing=0.44),
    IdColumn(10_000, missing=0.44),
)


@dataclass(frozen=True, slots=True)
class ClickColumns:
    """Rows without their labels.

    Attributes:
        counts: float64 [13, n], whole numbers; NaN where missing.
        ranks: int32 [26, n], each id's rank by popularity in its column, from 0; -1 where missing.
        chance: float64 [n], uniform in [0, 1): a row is a click when its probability is above this.
    """

    counts: Float64Array
    ranks: Int32Array
    chance: Float64Array


def draw_block(seed: int, part: LogPart, block: int) -> ClickColumns:
    """Return the BLOCK_EXAMPLES rows of a block.

    The result depends on the arguments only: it is made from the raw 64-bit words of Philox, a stream that
    NumPy never changes. Any thread may call.
    """
    columns = len(COUNT_COLUMNS) + len(ID_COLUMNS) + 1
    philox = np.random.Philox(key=[seed, 0], counter=[0, 0, block, _PART_NUMBER[part]])
    words = philox.random_raw(columns * BLOCK_EXAMPLES).reshape(columns, BLOCK_EXAMPLES)
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    counts = [_counts(column, uniform[place]) for place, column in enumerate(COUNT_COLUMNS)]
    ids = uniform[len(COUNT_COLUMNS) :]
    ranks = [_ranks(column, ids[place]) for place, column in enumerate(ID_COLUMNS)]
    return ClickColumns(np.stack(counts), np.stack(ranks), uniform[-1])


def popularity(column: IdColumn) -> Float64Array:
    """Return float64 [cardinality]: the probability of each rank, missing ids left out."""
    edges = np.log(np.arange(1, column.cardinality + 2, dtype=np.float64))
    shares: Float64Array = np.diff(edges) / edges[-1]
    return shares


def ids_of_ranks(seed: int, column: int, ranks: NDArray[np.int32]) -> Uint32Array:
    """Return the ids of ranks, uint32 [n]; ranks are at least 0.

    Two ranks of a column never share an id.
    """
    value = ranks.astype(np.uint32) ^ _key(seed, column)
    value = (value ^ (value >> np.uint32(16))) * np.uint32(_MULTIPLIERS[0])
    value = (value ^ (value >> np.uint32(13))) * np.uint32(_MULTIPLIERS[1])
    return value ^ (value >> np.uint32(16))


def normals_of_ids(seed: int, column: int, ids: Uint32Array, component: int) -> NDArray[np.float64]:
    """Return float64 [n]: a standard normal value of each id.

    A value depends on (seed, column, id, component) only.
    """
    first = mix64(ids.astype(np.uint64) ^ np.uint64(mix_numbers(seed, 2, column, component)))
    second = mix64(first)
    # Box and Muller's transform; 0.5 keeps the first uniform above 0, which has no logarithm.
    radius = ((first >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    angle = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    values: NDArray[np.float64] = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
    return values


def _counts(column: CountColumn, uniform: Float64Array) -> Float64Array:
    reserved = column.missing + column.negative
    rest = np.clip((uniform - reserved) / (1.0 - reserved), 2.0**-40, 1.0 - 2.0**-40)
    counts = np.floor(np.exp(column.location + column.spread * np.log(rest / (1.0 - rest))))
    np.minimum(counts, LARGEST_COUNT, out=counts)
    counts[uniform < reserved] = -1.0
    counts[uniform < column.missing] = np.nan
    return counts


def _ranks(column: IdColumn, uniform: Float64Array) -> Int32Array:
    rest = np.maximum(uniform - column.missing, 0.0) / (1.0 - column.missing)
    ranks: Int32Array = np.exp(rest * np.log(column.cardinality + 1.0)).astype(np.int32) - 1
    np.minimum(ranks, column.cardinality - 1, out=ranks)
    ranks[uniform < column.missing] = -1
    return ranks


def _key(seed: int, column: int) -> np.uint32:
    return np.uint32(mix_numbers(seed, 1, column) & 0xFFFFFFFF)
