"""The planted teacher: the true click probability of every generated row.

    logit = bias + scale * (0.55 main + 0.8 interaction + 0.2 curvature)

Each id has a latent vector of two normal values, hashed from (seed, column, id) and centred by popularity. L
is the sum of the vectors of the "left" columns, R that of the "right" columns.

- main: the sum of the first components over all columns, and three counts. A linear model can learn it.
- interaction: the dot product of L and R, which pairs each left column with each right column. Vectors are
  centred, so no weight of a single id can replace it.
- curvature: the product of two counts, the square of a third, and two products of a count and a component of
  L or R.

Each of the three is scaled to mean 0 and variance 1. What a model cannot learn in one pass would only make
its best quality worse. So vectors shrink beyond rank 100, and curvature, which a DLRM learns slowly, has a
small weight.
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
# At a low click rate the solution is far from the start, and a step moves the bias by at most about 1.
_RARE_NEWTON_STEPS: Final = 40
_LOGISTIC_DEVIATION: Final = 1.81


class Teacher:
    """The teacher of one seed; immutable, so any thread may call it.

    Args:
        seed: at least 0; another seed gives other ids, other latent vectors and other rows.
        click_rate: mean of the probabilities. Another rate changes only labels.
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
            float64 [n], each strictly between 0 and 1. A row's probability does not depend on other rows.
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
            # A missing id has rank -1, and the last vector is zeros.
            vectors = latents[:, rank]
            main += vectors[0]
            sums[column.side] += vectors
        left, right = sums["left"], sums["right"]
        curvature = number[1] * number[5] + 0.7 * (number[8] ** 2 - 1.0)
        curvature += 0.5 * (left[0] * number[6] + right[0] * number[10])
        return np.stack([main, (left * right).sum(axis=0), curvature])


def expected_logloss(chances: Float64Array) -> Float64Array:
    """Return the expected logloss, in nats, of predicting the true probabilities.

    `chances` are these probabilities, each strictly between 0 and 1; the result has their shape.
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

    The last vector is that of a missing id, zeros.
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
    """Return float64 [13, n]: log counts, centred, in standard deviations.

    Values are clipped to 2.5 deviations; missing ones are 0.
    """
    location = np.array([column.location for column in COUNT_COLUMNS])[:, None]
    spread = np.array([column.spread for column in COUNT_COLUMNS])[:, None]
    logs = np.log1p(np.maximum(counts, 0.0)) - np.log1p(np.exp(location))
    number = np.clip(logs / (_LOGISTIC_DEVIATION * spread), -2.5, 2.5)
    filled: Float64Array = np.nan_to_num(number, copy=False, nan=0.0)
    return filled


def _weighted(parts: Float64Array) -> Float64Array:
    # Not a matrix product, because its rounding of a row may depend on the number of rows.
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
    """Return the bias that gives the click rate, by Newton's method."""
    bias = math.log(rate / (1.0 - rate))
    for _ in range(_NEWTON_STEPS if rate == MEAN_LABEL else _RARE_NEWTON_STEPS):
        chances = _sigmoid(bias + scale * raw)
        bias -= (float(chances.mean()) - rate) / float((chances * (1.0 - chances)).mean())
    return bias


def _sigmoid(logits: Float64Array) -> Float64Array:
    # Logits beyond 30 do not occur in practice. The bound keeps log(p) and log(1 - p) finite.
    result: Float64Array = 1.0 / (1.0 + np.exp(-np.clip(logits, -30.0, 30.0)))
    return result
