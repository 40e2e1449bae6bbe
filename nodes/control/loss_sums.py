"""Sums of losses over trained examples, by label."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...pipeline.metrics.buckets import Buckets


def entropy(mean: float) -> float | None:
    """Return a label's entropy in nats by its mean; None if all are equal."""
    if not 0.0 < mean < 1.0:
        return None
    return -(mean * math.log(mean) + (1 - mean) * math.log(1 - mean))


def normalized_entropy(weight: float, loss_sum: float, positives: float) -> float | None:
    """Return log loss over the entropy of the mean label, from weighted sums.

    Returns None if the entropy is zero.
    """
    base = entropy(positives / weight) if weight else None
    return loss_sum / weight / base if base else None


class LossSums:
    """Sums over trained examples, each scored before its step.

    Args:
        values: the number of examples and the sum of their weights; then for each label, the headline first,
            the weighted sums of losses, in nats, and of positives.
    """

    def __init__(self, values: Sequence[float]) -> None:
        self._values = list(values)

    @classmethod
    def empty(cls, labels: int) -> LossSums:
        return cls([0.0] * (2 + 2 * labels))

    @classmethod
    def over(cls, buckets: Buckets, last: int) -> LossSums | None:
        """Return the sums over the last buckets; None without any."""
        newest = [sums for _, sums in buckets.sums()[-last:]]
        return cls([sum(column) for column in zip(*newest, strict=True)]) if newest else None

    @property
    def values(self) -> list[float]:
        """The sums as the constructor takes them; not a copy."""
        return self._values

    @property
    def examples(self) -> int:
        return int(self._values[0])

    @property
    def weight(self) -> float:
        """Sum of the examples' weights."""
        return self._values[1]

    def add(self, values: Sequence[float]) -> None:
        """Add sums over other examples, as the constructor takes them."""
        self._values = [before + value for before, value in zip(self._values, values, strict=True)]

    def loss_sum(self, label: int = 0) -> float:
        """Return the weighted sum of a label's losses, in nats."""
        return self._values[2 + 2 * label]

    def positives(self, label: int = 0) -> float:
        """Return the weight of the examples that have a label."""
        return self._values[3 + 2 * label]

    def ne(self, label: int = 0) -> float | None:
        """Return a label's normalized entropy; None if it is the same in all examples."""
        return normalized_entropy(self.weight, self.loss_sum(label), self.positives(label))

    def rate(self, label: int = 0) -> float | None:
        """Return a label's mean; None without any weight."""
        return self.positives(label) / self.weight if self.weight else None
