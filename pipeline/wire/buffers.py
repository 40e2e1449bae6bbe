"""A pool of reused float32 buffers.

A buffer is reused once nothing refers to it. A fresh array costs as much as filling it twice, because the
system maps it page by page.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from ..types import Float32Array
from .segment import FLOAT_BYTES

# Rounded up so that batches of slightly different sizes share buffers.
ROUNDED_TO_ELEMENTS = 4096


def lend(values: Float32Array, take_back: Callable[[], None]) -> Float32Array:
    """Call `take_back` once nothing refers to the memory of `values`; return `values`.

    `values` must be a root: an array whose `base` is not an array, such as one of `np.frombuffer`. Everything
    made from a root without a copy refers to it: a view, a view of a view, a tensor, a frame that ZeroMQ has
    yet to send. So the root lives as long as all of these. `take_back` runs on the thread that drops the last
    reference.

    Raises:
        ValueError: the array is not a root, so that views of it could outlive it.
    """
    if values.flags.owndata or isinstance(values.base, np.ndarray):
        raise ValueError("only the root of all views of its memory can be lent")
    weakref.finalize(values, take_back).atexit = False
    return values


class BufferPool:
    """A pool that lends float32 arrays and reuses their memory.

    The pool takes an array back once nothing refers to it, see `lend`. An array with a reference is never
    lent again, so holding on to one costs only memory. Only one thread may call `take`.

    Args:
        idle_bytes_limit: bytes of unused memory that the pool keeps.
    """

    def __init__(self, idle_bytes_limit: int) -> None:
        self._limit = idle_bytes_limit
        # The thread that drops the last reference appends, so any thread may at any moment.
        self._returned: deque[Float32Array] = deque()
        self._idle: list[Float32Array] = []

    def take(self, elements: int) -> Float32Array:
        """Lend a float32 array [elements], C-contiguous, with undefined contents."""
        self._collect()
        fitting = [number for number in range(len(self._idle)) if len(self._idle[number]) >= elements]
        if fitting:
            # The shortest that fits; among equals the one used last, which may still be in a cache.
            memory = self._idle.pop(min(reversed(fitting), key=lambda number: len(self._idle[number])))
        else:
            memory = self._allocate(elements)
        values = np.frombuffer(memory.data, np.float32, elements)
        return lend(values, lambda: self._take_back(memory))

    def _allocate(self, elements: int) -> Float32Array:
        size = -(-max(elements, 1) // ROUNDED_TO_ELEMENTS) * ROUNDED_TO_ELEMENTS
        return np.empty(size, dtype=np.float32)

    def _take_back(self, memory: Float32Array) -> None:
        if memory.nbytes <= self._limit:
            self._returned.append(memory)

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        idle_bytes = sum(memory.nbytes for memory in self._idle)
        while idle_bytes > self._limit:
            idle_bytes -= self._idle.pop(0).nbytes


def bytes_of(elements: int, arrays: int = 1) -> int:
    """Return the bytes of `arrays` buffers for `elements` floats each, as the pool rounds."""
    return arrays * FLOAT_BYTES * (-(-max(elements, 1) // ROUNDED_TO_ELEMENTS) * ROUNDED_TO_ELEMENTS)
