"""How often each value occurs: exact while there are few, then of the frequent ones, in bounded memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..data.hashing import Uint64Array

Int64Array = NDArray[np.int64]


class ValueCounts:
    """Counts by 64-bit key, at most `limit` of them: Misra and Gries (1982), as chunks are merged by Agarwal
    and others (2012).

    Attributes:
        keys: uint64 [k], rising.
        counts: int64 [k]: at most `short` below the truth, never above it.
        short: 0 while no key was dropped; a key that is absent occurred at most so often.
    """

    def __init__(
        self,
        limit: int,
        keys: Uint64Array | None = None,
        counts: Int64Array | None = None,
        short: int = 0,
    ) -> None:
        self._limit = limit
        self.keys: Uint64Array = np.zeros(0, np.uint64) if keys is None else keys
        self.counts: Int64Array = np.zeros(0, np.int64) if counts is None else counts
        self.short = short

    @property
    def exact(self) -> bool:
        """Whether every value is here with its true count."""
        return self.short == 0

    def add(self, keys: Uint64Array, counts: Int64Array) -> None:
        """Adds keys uint64 [k], rising and each once, with how often each occurred."""
        places = np.searchsorted(self.keys, keys)
        known = places < len(self.keys)
        known[known] = self.keys[places[known]] == keys[known]
        self.counts[places[known]] += counts[known]
        new = ~known
        self.keys = np.insert(self.keys, places[new], keys[new])
        self.counts = np.insert(self.counts, places[new], counts[new])
        if len(self.keys) > self._limit:
            self._prune()

    def top(self, count: int) -> Int64Array:
        """The largest counts, falling, at most `count` of them."""
        largest: Int64Array = np.sort(self.counts)[::-1][:count]
        return largest

    def _prune(self) -> None:
        place = len(self.counts) - self._limit - 1
        less = int(np.partition(self.counts, place)[place])
        kept = self.counts > less
        self.keys, self.counts = self.keys[kept], self.counts[kept] - less
        self.short += less
