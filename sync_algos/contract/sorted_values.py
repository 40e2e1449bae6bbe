"""Numbers in order that come and go, with ranks and a median."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

MOST_IN_A_BLOCK = 1024
"""A longer block is halved. So adding moves few numbers, and a rank passes few blocks."""


class SortedValues:
    """A multiset of numbers in ascending order, in blocks of up to MOST_IN_A_BLOCK."""

    def __init__(self) -> None:
        self._blocks: list[list[float]] = []
        self._lasts: list[float] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, rank: int) -> float:
        """Return the number before which there are `rank`; raises IndexError if there is none."""
        if rank >= 0:
            for block in self._blocks:
                if rank < len(block):
                    return block[rank]
                rank -= len(block)
        raise IndexError(f"{self._count} numbers have no such rank")

    def add(self, value: float) -> None:
        """Add a number once more."""
        self._count += 1
        if not self._blocks:
            self._blocks, self._lasts = [[value]], [value]
            return
        place = min(bisect_left(self._lasts, value), len(self._lasts) - 1)
        block = self._blocks[place]
        insort(block, value)
        if len(block) > MOST_IN_A_BLOCK:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._lasts[place : place + 1] = [block[half - 1], block[-1]]
        else:
            self._lasts[place] = block[-1]

    def remove(self, value: float) -> None:
        """Remove a number once; raises ValueError if it is not there."""
        place = bisect_left(self._lasts, value)
        index = bisect_left(self._blocks[place], value) if place < len(self._blocks) else 0
        if place == len(self._blocks) or self._blocks[place][index] != value:
            raise ValueError(f"{value!r} is not among the {self._count} numbers")
        self._count -= 1
        block = self._blocks[place]
        del block[index]
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def count_within(self, limit: float, more: float = 0.0) -> int:
        """Return how many numbers are at most `limit` after `more` is added to each."""

        def shifted(value: float) -> float:
            return value + more

        place = bisect_right(self._lasts, limit, key=shifted)
        if place == len(self._blocks):
            return self._count
        before = sum(map(len, self._blocks[:place]))
        return before + bisect_right(self._blocks[place], limit, key=shifted)

    def median(self) -> float:
        """Return the median, as `statistics.median` does; raises IndexError if there are no numbers."""
        half = self._count // 2
        return self[half] if self._count % 2 else (self[half - 1] + self[half]) / 2
