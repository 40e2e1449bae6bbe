"""Sums over a growing axis, in bounded memory: the curves of a run."""

from __future__ import annotations

from typing import Any


class Buckets:
    """Sums of values by position; when `limit` buckets are full, neighbours are joined.

    Used by one thread. Memory is bounded for any length of the run.

    Args:
        width: initial width of a bucket, in the unit of the axis; doubled as often as needed.
        values: number of sums in a bucket.
        limit: largest number of buckets; even.
    """

    def __init__(self, width: float, values: int, limit: int = 128) -> None:
        self.width = width
        self._values = values
        self._limit = limit
        self._sums: list[list[float]] = []

    def add(self, position: float, *values: float) -> None:
        """Add `values` to the sums of the bucket at `position` (at least 0)."""
        while position >= self.width * self._limit:
            self._join()
        bucket = int(position / self.width)
        while len(self._sums) <= bucket:
            self._sums.append([0.0] * self._values)
        for number, value in enumerate(values):
            self._sums[bucket][number] += value

    def sums(self) -> list[tuple[float, list[float]]]:
        """Return (end of the bucket, its sums), in order; a copy."""
        return [((number + 1) * self.width, list(sums)) for number, sums in enumerate(self._sums)]

    def saved(self) -> list[Any]:
        """Return the width and the sums as plain values, which are not copied."""
        return [self.width, self._sums]

    def restore(self, saved: list[Any]) -> Buckets:
        """Take over the values from `saved`; return self."""
        self.width, self._sums = saved
        return self

    def _join(self) -> None:
        pairs = [self._sums[start : start + 2] for start in range(0, len(self._sums), 2)]
        self._sums = [[sum(column) for column in zip(*pair, strict=True)] for pair in pairs]
        self.width *= 2
