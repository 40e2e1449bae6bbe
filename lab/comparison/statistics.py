"""Means over pairs with a confidence interval, and their verdicts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from scipy.special import stdtrit

from ...pipeline.types import FrozenModel

LEVEL: Final = 0.95

Conclusion = Literal["better", "worse", "inconclusive"]


class Paired(FrozenModel):
    """The mean of paired differences or ratios, with an interval.

    The interval is Student's at 95%; `low` and `high` are None if there is only one pair.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int

    def verdict(self, neutral: float, *, lower_is_better: bool) -> Conclusion:
        """Compare the interval with `neutral`.

        "inconclusive" if it contains `neutral`, or if there is no interval.
        """
        if self.low is None or self.high is None or self.low <= neutral <= self.high:
            return "inconclusive"
        return "better" if (self.mean < neutral) == lower_is_better else "worse"


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """Return the mean of `values - reference`, pair by pair.

    What the two of a pair share, such as the seed, cancels out. Raises ValueError without a pair.
    """
    return _interval([a - b for a, b in zip(values, reference, strict=True)])


def paired_ratio(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """Return the geometric mean of `values / reference`, pair by pair.

    The interval is from the logarithms; all values must be positive. Raises ValueError without a pair.
    """
    interval = _interval([math.log(a / b) for a, b in zip(values, reference, strict=True)])
    return Paired(
        mean=math.exp(interval.mean),
        low=None if interval.low is None else math.exp(interval.low),
        high=None if interval.high is None else math.exp(interval.high),
        pairs=interval.pairs,
    )


def _interval(values: Sequence[float]) -> Paired:
    if not values:
        raise ValueError("no pair was given")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Paired(mean=mean, low=None, high=None, pairs=1)
    # The share LEVEL of Student's distribution lies between minus and plus this quantile.
    quantile = float(stdtrit(len(values) - 1, (1.0 + LEVEL) / 2.0))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Paired(mean=mean, low=mean - half, high=mean + half, pairs=len(values))
