"""How often each item comes in training data, estimated as the data streams by.

Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations, RecSys 2019, Section
4.2. Two things differ from its Algorithms 2 and 3. Time is counted in examples, so that batches may differ in
size and have an item several times. And the first gaps of an item are averaged evenly, not with the fixed
rate, which would take gaps before the first one for 0.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...types import Float32Array, Int64Array

DEFAULT_RATE: Final = 0.01
LEAST_RATE: Final = 1e-4
"""Smallest rate: counts of occurrences up to its inverse fit their type."""

_HASHES: Final = 3
# At most half of the slots are in use, where the table's size is known: then an item that shares a slot under
# every hash is one of 16 or fewer.
_SLOTS_PER_ITEM: Final = 2
_LEAST_SLOTS, _MOST_SLOTS = 1 << 12, 1 << 20


class ItemFrequency:
    """The estimated share of examples that have an item, of each item.

    The mean number of examples between two occurrences of an item is kept at a slot that a hash of it names,
    and the share is the inverse of it. Items that share a slot seem too frequent, so of several hashes the
    longest gap counts. Any thread may call.

    Args:
        items: number of different items that are expected.
        rate: weight of a new gap in the mean of them, from LEAST_RATE to 1: the larger, the sooner it follows
            a change and the less exact it is.

    Attributes:
        examples: number of examples seen.
    """

    def __init__(self, items: int, rate: float = DEFAULT_RATE) -> None:
        slots = min(max(_SLOTS_PER_ITEM * items, _LEAST_SLOTS), _MOST_SLOTS)
        bits = (slots - 1).bit_length()
        self._rate, self._shift = rate, np.uint64(64 - bits)
        self._seeds = _mixed(np.arange(1, _HASHES + 1, dtype=np.uint64))[:, None]
        # Slots of one hash after those of another. The first two are the arrays A and B of the paper; the
        # third one has how many gaps the mean in B is of.
        self._first = (np.arange(_HASHES, dtype=np.int64) << bits)[:, None]
        self._last = np.zeros(_HASHES << bits, np.int64)
        self._gap = np.zeros(_HASHES << bits, np.float32)
        self._gaps = np.zeros(_HASHES << bits, np.uint16)
        self._lock = threading.Lock()
        self.examples = 0

    def add(self, items: Int64Array) -> None:
        """Count the examples of a batch, whose items are int64 [B]; their order does not matter."""
        slots, counts = np.unique(self._slots(items), return_counts=True)
        with self._lock:
            self.examples += len(items)
            before = self._gaps[slots].astype(np.int64)
            weight = np.maximum(counts / (before + counts), 1.0 - (1.0 - self._rate) ** counts)
            mean = self._gap[slots]
            self._gap[slots] = mean + weight * ((self.examples - self._last[slots]) / counts - mean)
            self._last[slots] = self.examples
            self._gaps[slots] = np.minimum(before + counts, round(1.0 / self._rate))

    def log_share(self, items: Int64Array) -> Float32Array:
        """Return the logarithm of the share of examples that have each item, float32 [B]; 0 at most.

        An item that was never seen has the share of one that would be next.
        """
        slots = self._slots(items)
        with self._lock:
            gap = np.where(self._gaps[slots] > 0, self._gap[slots], max(1, self.examples)).max(axis=0)
        shares: Float32Array = -np.log(gap, dtype=np.float32)
        return shares

    @property
    def nbytes(self) -> int:
        return self._last.nbytes + self._gap.nbytes + self._gaps.nbytes

    def state(self) -> dict[str, NDArray[Any]]:
        """Return a copy of the state, by name."""
        with self._lock:
            examples = np.array([self.examples], np.int64)
            copies = {name: array.copy() for name, array in self._arrays.items()}
        return {"examples": examples, **copies}

    def restore(self, state: dict[str, NDArray[Any]]) -> bool:
        """Take over what `state` returned; False, and nothing changes, if it is of another size."""
        arrays = self._arrays
        shapes = {name: array.shape for name, array in arrays.items()} | {"examples": (1,)}
        if {name: values.shape for name, values in state.items()} != shapes:
            return False
        with self._lock:
            for name, array in arrays.items():
                array[:] = state[name]
            self.examples = int(state["examples"][0])
        return True

    @property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {"last": self._last, "gap": self._gap, "gaps": self._gaps}

    def _slots(self, items: Int64Array) -> Int64Array:
        """Return the slots of items under each hash, int64 [hashes, B]."""
        hashes = _mixed(items.view(np.uint64) ^ self._seeds) >> self._shift
        return self._first + hashes.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well-mixed 64 bits of each value: the finalizer of SplitMix64 (Steele et al., OOPSLA 2014)."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
