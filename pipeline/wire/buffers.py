"""A pool of float32 buffers that are reused.

A buffer is reused once nothing refers to it. A fresh array costs as much as filling it twice, since the
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

    `values` must be a root: an array whose `base` is not an array, as `np.frombuffer` makes it. Everything
    made from a root without a copy (a view, a view of a view, a tensor, a frame that ZeroMQ has yet to send)
    refers to it, so it lives as long as all of these. `take_back` runs on whichever thread drops the last
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

    It takes each array back when nothing refers to it, see `lend`. One thread takes arrays. An array that is
    still referred to is never lent again: holding on to it costs only memory.

    Args:
        idle_bytes_limit: bytes of unused memory that the pool keeps.
    """

    def __init__(self, idle_bytes_limit: int) -> None:
        self._limit = idle_bytes_limit
        # Any thread may append at any moment: whichever drops the last reference.
        self._returned: deque[Float32Array] = deque()
        self._idle: list[Float32Array] = []

    def take(self, elements: int) -> Float32Array:
        """Lend a float32 array [elements], C-contiguous, with undefined contents."""
        self._collect()
        fitting = [at for at in range(len(self._idle)) if len(self._idle[at]) >= elements]
        if fitting:
            # The shortest that fits; among equals the last one used, which may still be in a cache.
            memory = self._idle.pop(min(reversed(fitting), key=lambda at: len(self._idle[at])))
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
    """Size in bytes of `arrays` buffers for `elements` floats each.

    It is rounded up as the pool does.
    """
    return arrays * FLOAT_BYTES * (-(-max(elements, 1) // ROUNDED_TO_ELEMENTS) * ROUNDED_TO_ELEMENTS)
