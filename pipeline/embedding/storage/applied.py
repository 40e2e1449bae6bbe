"""The batches that one shard has applied, so that none is applied twice.

Imports no torch.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from ...errors import CheckpointError
from ...types import BatchId

_SpanKey = tuple[int, int, int]


class AppliedBatches:
    """The set of batches that one shard has applied.

    Used by the node's service thread only. The set is stored as ranges for each (epoch, span, seed). Batches
    mostly come in order, so a span needs one range, and each gap that is still open one more. Memory is
    O(spans + gaps), whatever the number of batches.

    Attributes:
        repeats: number of batches that `add` received again.
    """

    def __init__(self) -> None:
        # Ascending bounds [start0, stop0, start1, stop1, ...]. A number is in the set if an odd number of
        # bounds is at or below it.
        self._bounds: dict[_SpanKey, list[int]] = {}
        self._applied = 0
        self.repeats = 0

    def add(self, batch: BatchId) -> bool:
        """Add a batch; return False if it was applied already."""
        bounds = self._bounds.setdefault((batch.epoch, batch.span, batch.seed), [])
        number = batch.number
        position = bisect_right(bounds, number)
        if position % 2:
            self.repeats += 1
            return False
        extends_previous = position > 0 and bounds[position - 1] == number
        extends_next = position < len(bounds) and bounds[position] == number + 1
        if extends_previous and extends_next:
            del bounds[position - 1 : position + 1]
        elif extends_previous:
            bounds[position - 1] = number + 1
        elif extends_next:
            bounds[position] = number
        else:
            bounds[position:position] = [number, number + 1]
        self._applied += 1
        return True

    def __contains__(self, batch: BatchId) -> bool:
        bounds = self._bounds.get((batch.epoch, batch.span, batch.seed), [])
        return bisect_right(bounds, batch.number) % 2 == 1

    def lacking(self, first: BatchId, stop: int) -> list[tuple[int, int]]:
        """Return the ranges [start, end) of numbers missing from the set.

        The numbers are from `first.number` to `stop` - 1, for the epoch, span and seed of `first`.
        """
        bounds = self._bounds.get((first.epoch, first.span, first.seed), [])
        inside = [min(max(bound, first.number), stop) for bound in bounds]
        edges = [first.number, *inside, stop]
        return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]

    def __len__(self) -> int:
        """Return how many distinct batches were applied, including those of `from_array`."""
        return self._applied

    @property
    def ranges(self) -> int:
        """Return how many ranges are stored; memory grows with their number."""
        return sum(len(bounds) // 2 for bounds in self._bounds.values())

    def counts(self) -> dict[tuple[int, int], int]:
        """Return the number of distinct batches applied for each (epoch, span)."""
        totals: dict[tuple[int, int], int] = {}
        for (epoch, span, _), bounds in self._bounds.items():
            number = sum(bounds[1::2]) - sum(bounds[::2])
            totals[epoch, span] = totals.get((epoch, span), 0) + number
        return totals

    def to_array(self) -> NDArray[np.int64]:
        """Return the set for a checkpoint, as int64 [ranges, 5].

        Each row is (epoch, span, seed, start, stop), ascending.
        """
        records = [
            (*key, *bounds[start : start + 2])
            for key, bounds in sorted(self._bounds.items())
            for start in range(0, len(bounds), 2)
        ]
        return np.array(records, np.int64).reshape(-1, 5)

    @classmethod
    def from_array(cls, array: NDArray[np.int64]) -> AppliedBatches:
        """Return the set of an array from `to_array`.

        Raises CheckpointError for an array that `to_array` cannot have returned.
        """
        if array.dtype != np.int64 or array.ndim != 2 or array.shape[1] != 5:
            raise CheckpointError(
                f"the list of applied batches is {array.dtype} {list(array.shape)}, not int64 [N, 5]",
                remedy="use an older checkpoint",
            )
        applied = cls()
        for epoch, span, seed, start, stop in array.tolist():
            bounds = applied._bounds.setdefault((epoch, span, seed), [])
            if min(epoch, span, seed, start) < 0 or stop <= start or (bounds and start <= bounds[-1]):
                raise CheckpointError(
                    f"the applied batches of epoch {epoch}, span {span} are not ascending ranges",
                    remedy="use an older checkpoint",
                )
            bounds += [start, stop]
            applied._applied += stop - start
        return applied
