"""The examples of batches by number, in little memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class BatchSizes:
    """Numbers of batches with their examples, as runs of equal sizes.

    Batches of a span mostly come in order, and all but the last are of one size. So memory is O(gaps),
    whatever the number of batches: a job of days has hundreds of millions.
    """

    # Of each run, ascending: its first number, the number after its last, and the examples of each batch.
    _starts: list[int] = field(default_factory=list)
    _stops: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _count: int = 0

    def add(self, number: int, examples: int) -> None:
        """Add a batch; one that is there already stays as it is."""
        if number in self:
            return
        self._count += 1
        index, after = bisect_right(self._starts, number), number + 1
        extends_previous = index > 0 and (self._stops[index - 1], self._sizes[index - 1]) == (
            number,
            examples,
        )
        extends_next = index < len(self._starts) and (self._starts[index], self._sizes[index]) == (
            after,
            examples,
        )
        if extends_previous and extends_next:
            self._stops[index - 1] = self._stops[index]
            del self._starts[index], self._stops[index], self._sizes[index]
        elif extends_previous:
            self._stops[index - 1] = after
        elif extends_next:
            self._starts[index] = number
        else:
            self._starts.insert(index, number)
            self._stops.insert(index, after)
            self._sizes.insert(index, examples)

    def cut(self, stop: int) -> list[tuple[int, int]]:
        """Remove the batches from number `stop` on; return their numbers and examples."""
        removed: list[tuple[int, int]] = []
        while self._stops and self._stops[-1] > stop:
            start, end, size = self._starts.pop(), self._stops.pop(), self._sizes.pop()
            removed += [(number, size) for number in range(max(start, stop), end)]
            if start < stop:
                self._starts.append(start)
                self._stops.append(stop)
                self._sizes.append(size)
        self._count -= len(removed)
        return removed

    def saved(self) -> list[Any]:
        """Return the runs as plain values, which are not copied."""
        return [self._starts, self._stops, self._sizes]

    @classmethod
    def of_saved(cls, saved: list[Any]) -> BatchSizes:
        starts, stops, sizes = saved
        return cls(starts, stops, sizes, sum(stops) - sum(starts))

    @property
    def examples(self) -> int:
        return sum(
            (stop - start) * size
            for start, stop, size in zip(self._starts, self._stops, self._sizes, strict=True)
        )

    @property
    def runs(self) -> int:
        """Number of runs; memory grows with it."""
        return len(self._starts)

    def items(self) -> Iterator[tuple[int, int]]:
        """Return numbers and examples, ascending."""
        for start, stop, examples in zip(self._starts, self._stops, self._sizes, strict=True):
            for number in range(start, stop):
                yield number, examples

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self._starts, number)
        return index > 0 and number < self._stops[index - 1]

    def __iter__(self) -> Iterator[int]:
        return (number for number, _ in self.items())

    def __len__(self) -> int:
        return self._count
