"""Counts of keys that have no row yet, in bounded memory.

A count-min sketch (Cormode and Muthukrishnan, An Improved Data Stream Summary, 2005) with conservative update
(Estan and Varghese, SIGCOMM 2002): a count is never too small, and rarely too large. All counts are halved
from time to time, as in TinyLFU (Einziger et al., arXiv 1512.00727), so that old keys make room in an endless
log. Imports no torch.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ...data.hashing import GOLDEN_RATIO, MASK, mix
from ...types import Int32Array, Uint8Array, Uint64Array

LARGEST_COUNT: Final = 255
DEPTH: Final = 4
# Counts are halved after this many additions for each counter of a line.
_ADDITIONS_A_COUNTER: Final = 8


class CountSketch:
    """Count keys; used by one thread.

    Args:
        keys: how many different keys it should hold with few errors, at least 1.
    """

    def __init__(self, keys: int) -> None:
        self._width = 1 << max(10, (keys - 1).bit_length() + 1)
        self._counts: Uint8Array = np.zeros((DEPTH, self._width), np.uint8)
        self._additions = 0

    @property
    def bytes(self) -> int:
        return self._counts.nbytes

    def add(self, keys: Uint64Array) -> Int32Array:
        """Count each of these distinct keys once.

        Returns their counts, int32 [N], at most LARGEST_COUNT.
        """
        if self._additions > _ADDITIONS_A_COUNTER * self._width:
            self._counts >>= 1
            self._additions //= 2
        self._additions += len(keys)
        places = self._places(keys)
        seen = np.stack([line[slots] for line, slots in zip(self._counts, places, strict=True)]).min(axis=0)
        raised = np.minimum(seen, LARGEST_COUNT - 1) + np.uint8(1)
        for line, slots in zip(self._counts, places, strict=True):
            np.maximum.at(line, slots, raised)
        counts: Int32Array = raised.astype(np.int32)
        return counts

    def _places(self, keys: Uint64Array) -> Uint64Array:
        """Return uint64 [DEPTH, N]: the place of each key in each line."""
        lines = np.array([(line + 1) * GOLDEN_RATIO & MASK for line in range(DEPTH)], np.uint64)
        mixed = mix(keys[None] ^ lines[:, None])
        return mixed & np.uint64(self._width - 1)
