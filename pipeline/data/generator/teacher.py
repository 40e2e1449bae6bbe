"""The planted teacher: the true click probability of every generated row.

    logit = bias + scale * (0.55 main + 0.8 interaction + 0.2 curvature)

Each id has a latent vector of two normal values, a hash of (seed, column, id), centred by popularity.
- main: the sum of the first components over all columns, and three counts. A linear model finds this.
- interaction: the dot product of L and R, the sums of the vectors of the columns of either side. Each column
  of one side meets each of the other, and with centred vectors no weight on a single id says any of it.
- curvature: the product of two counts, the square of another, and two more times a component of L and of R.
Each of the three is brought to mean 0 and variance 1. What one pass cannot learn would only lower what any
model can reach: so vectors shrink beyond rank 100, and curvature, which a DLRM is slow to find, is small.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from ...types import Float64Array, Int32Array
from .columns import COUNT_COLUMNS, ID_COLUMNS, IdColumn, draw_block, ids_of_ranks, normals_of_ids, popularity

LATENT_DIM: Final = 2
MEAN_LABEL: Final = 0.25
LEAST_CLICK_RATE: Final = 0.0001
LARGEST_CLICK_RATE: Final = 0.5
EXPECTED_NE: Final = 0.74
_RARE_RANK: Final = 100.0
_WEIGHTS: Final = (0.55, 0.8, 0.2)
_CALIBRATION_BLOCKS: Final = 4
_HALVINGS: Final = 16
_NEWTON_STEPS: Final = 5
# A rare click is far from where the steps begin, and each of them goes at most about 1.
_RARE_NEWTON_STEPS: Final = 40
_LOGISTIC_DEVIATION: Final = 1.81


class Teacher:
    """The teacher of one seed.

    Immutable after construction: any thread may call it.

    Args:
        seed: at least 0; another seed gives other ids, other latent vectors and other rows.
        click_rate: mean of the probabilities. Another rate changes labels alone.
    """

    def __init__(self, seed: int, click_rate: float = MEAN_LABEL) -> None:
        self._latents = [_latents(seed, place, column) for place, column in enumerate(ID_COLUMNS)]
        drawn = [draw_block(seed, "calibration", block) for block in range(_CALIBRATION_BLOCKS)]
        parts = np.concatenate([self._parts(rows.counts, rows.ranks) for rows in drawn], axis=1)
        self._calibration = _calibrate(parts, click_rate)

    def probabilities(self, counts: Float64Array, ranks: Int32Array) -> Float64Array:
        """Return the true click probabilities.

        Args:
            counts: float64 [13, n], NaN where missing.
            ranks: int32 [26, n], -1 where missing.

        Returns:
            float64 [n], each strictly between 0 and 1; a row's does not depend on the others.
        """
        fitted = self._calibration
        parts = (self._parts(counts, ranks) - fitted.means[:, None]) / fitted.deviations[:, None]
        return _sigmoid(fitted.bias + fitted.scale * _weighted(parts))

    def _parts(self, counts: Float64Array, ranks: Int32Array) -> Float64Array:
        """Return float64 [3, n]: main, interaction and curvature, before standardization."""
        number = _standardized(counts)
        main = 1.5 * (number[2] - number[4] + number[7])
        sums = {side: np.zeros((LATENT_DIM, counts.shape[1])) for side in ("", "left", "right")}
        for column, latents, rank in zip(ID_COLUMNS, self._latents, ranks, strict=True):
            # The vector of a missing id, rank -1, is the last one: zeros.
            vectors = latents[:, rank]
            main += vectors[0]
            sums[column.side] += vectors
        left, right = sums["left"], sums["right"]
        curvature = number[1] * number[5] + 0.7 * (number[8] ** 2 - 1.0)
        curvature += 0.5 * (left[0] * number[6] + right[0] * number[10])
        return np.stack([main, (left * right).sum(axis=0), curvature])


def expected_logloss(chances: Float64Array) -> Float64Array:
    """Return the expected logloss, in nats, of predicting true probabilities.

    They are strictly between 0 and 1.
    """
    result: Float64Array = -(chances * np.log(chances) + (1.0 - chances) * np.log1p(-chances))
    return result


class _Calibration(NamedTuple):
    means: Float64Array
    deviations: Float64Array
    scale: float
    bias: float


def _latents(seed: int, place: int, column: IdColumn) -> Float64Array:
    """Return float64 [LATENT_DIM, cardinality + 1]: the vectors by rank.

    The last vector, of a missing id, is zeros.
    """
    ranks = np.arange(column.cardinality, dtype=np.int32)
    ids = ids_of_ranks(seed, place, ranks)
    values = np.stack([normals_of_ids(seed, place, ids, component) for component in range(LATENT_DIM)])
    shares = popularity(column)
    values -= (values @ shares)[:, None]
    values /= np.sqrt(values**2 @ shares)[:, None]
    values /= 1.0 + ranks / _RARE_RANK
    values -= (values @ shares)[:, None]
    return np.concatenate([values, np.zeros((LATENT_DIM, 1))], axis=1)


def _standardized(counts: Float64Array) -> Float64Array:
    """Return float64 [13, n]: log counts around 0, in deviations.

    Clipped to 2.5 deviations; 0 where missing.
    """
    location = np.array([column.location for column in COUNT_COLUMNS])[:, None]
    spread = np.array([column.spread for column in COUNT_COLUMNS])[:, None]
    logs = np.log1p(np.maximum(counts, 0.0)) - np.log1p(np.exp(location))
    number = np.clip(logs / (_LOGISTIC_DEVIATION * spread), -2.5, 2.5)
    filled: Float64Array = np.nan_to_num(number, copy=False, nan=0.0)
    return filled


def _weighted(parts: Float64Array) -> Float64Array:
    # Added one by one: a matrix product may round a row otherwise when other rows stand beside it.
    total: Float64Array = _WEIGHTS[0] * parts[0] + _WEIGHTS[1] * parts[1] + _WEIGHTS[2] * parts[2]
    return total


def _calibrate(parts: Float64Array, rate: float) -> _Calibration:
    """Fit bias and scale to the click rate and EXPECTED_NE."""
    means, deviations = parts.mean(axis=1), parts.std(axis=1)
    raw = _weighted((parts - means[:, None]) / deviations[:, None])
    low, high = 0.5, 4.0
    for _ in range(_HALVINGS):
        scale = (low + high) / 2
        chances = _sigmoid(_bias(raw, scale, rate) + scale * raw)
        if float(expected_logloss(chances).mean()) > EXPECTED_NE * float(expected_logloss(np.array(rate))):
            low = scale
        else:
            high = scale
    return _Calibration(means, deviations, scale, _bias(raw, scale, rate))


def _bias(raw: Float64Array, scale: float, rate: float) -> float:
    """Return the bias that gives the click rate, by Newton's method.

    The mean of sigmoids is smooth and rising.
    """
    bias = math.log(rate / (1.0 - rate))
    for _ in range(_NEWTON_STEPS if rate == MEAN_LABEL else _RARE_NEWTON_STEPS):
        chances = _sigmoid(bias + scale * raw)
        bias -= (float(chances.mean()) - rate) / float((chances * (1.0 - chances)).mean())
    return bias


def _sigmoid(logits: Float64Array) -> Float64Array:
    # 30 deviations from even odds never occur; the bound keeps both logarithms of a chance finite.
    result: Float64Array = 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))
    return result
