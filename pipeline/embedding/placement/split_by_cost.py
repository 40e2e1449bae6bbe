"""What a table's lookups and updates cost, and where among its rows. Knows no torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TableLoad:
    """Integers, so that a plan does not hang on rounding.

    Attributes:
        rows: ascending, the first 0 and the last the number of rows.
        costs: of all rows below each of `rows`, in picoseconds an example, ascending from 0; between two of
            them the rows cost alike.
    """

    rows: tuple[int, ...]
    costs: tuple[int, ...]

    @classmethod
    def even(cls, rows: int, cost: int) -> TableLoad:
        """All rows cost alike."""
        return cls((0, rows), (0, cost))

    @classmethod
    def of_counts(cls, rows: int, edges: Sequence[int], counts: Sequence[int], cost: int) -> TableLoad:
        """The cost of a table spread by how often rows were seen.

        Args:
            rows: of the table.
            edges: n + 1 rows, ascending, the first 0 and the last `rows`.
            counts: n: how often rows of [edges[i], edges[i + 1]) were seen; none at all: evenly.
            cost: picoseconds an example.
        """
        if not sum(counts):
            return cls.even(rows, cost)
        below, total = [0], sum(counts)
        for count in counts:
            below.append(below[-1] + count)
        return cls(tuple(edges), tuple(cost * count // total for count in below))

    @property
    def total(self) -> int:
        """Of the whole table."""
        return self.costs[-1]

    def between(self, start: int, stop: int) -> int:
        """Of rows [start, stop)."""
        return self._below(stop) - self._below(start)

    def reach(self, start: int, room: int) -> int:
        """The last `stop` for which rows [start, stop) cost at most `room`; at least `start`."""
        limit = self._below(start) + room
        if limit >= self.total:
            return self.rows[-1]
        low, high = start, self.rows[-1]
        while low < high:
            middle = (low + high + 1) // 2
            if self._below(middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _below(self, row: int) -> int:
        at = bisect_right(self.rows, row) - 1
        if at == len(self.rows) - 1:
            return self.costs[-1]
        step, span = self.costs[at + 1] - self.costs[at], self.rows[at + 1] - self.rows[at]
        return self.costs[at] + step * (row - self.rows[at]) // span
