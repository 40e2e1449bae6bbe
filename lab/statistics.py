"""Means of pairs with an interval, and what may be said of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

LEVEL: Final = 0.95

Verdict = Literal["better", "worse", "inconclusive"]


class Paired(BaseModel):
    """The mean of paired differences, or of ratios, with Student's interval at 95%.

    `low` and `high` are None where one pair is all there is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: float
    low: float | None
    high: float | None
    pairs: int

    def verdict(self, neutral: float, *, lower_is_better: bool) -> Verdict:
        """What the interval says against `neutral`; "inconclusive" if it holds it, or if there is none."""
        if self.low is None or self.high is None or self.low <= neutral <= self.high:
            return "inconclusive"
        return "better" if (self.mean < neutral) == lower_is_better else "worse"


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """Of `values - reference`, pair by pair: what both of a pair share, as their seed, cancels out."""
    return _interval([a - b for a, b in zip(values, reference, strict=True)])


def paired_ratio(values: Sequence[float], reference: Sequence[float]) -> Paired:
    """Of `values / reference`: the geometric mean, and an interval from the logarithms. All are positive."""
    found = _interval([math.log(a / b) for a, b in zip(values, reference, strict=True)])
    return Paired(
        mean=math.exp(found.mean),
        low=None if found.low is None else math.exp(found.low),
        high=None if found.high is None else math.exp(found.high),
        pairs=found.pairs,
    )


def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t that Student's distribution keeps within ±t with the probability `level`."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return (low + high) / 2.0


def _interval(values: Sequence[float]) -> Paired:
    if not values:
        raise ValueError("no pair was given")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Paired(mean=mean, low=None, high=None, pairs=1)
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Paired(mean=mean, low=mean - half, high=mean + half, pairs=len(values))


def _within(t: float, degrees: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for number in range((degrees - odd) // 2):
        total += term
        term *= cosine * cosine * (2 * number + 2 - (0 if odd else 1)) / (2 * number + 3 - (0 if odd else 1))
    return (angle + sine * total) * 2.0 / math.pi if odd else sine * total
