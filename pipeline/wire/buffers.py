"""Float32 memory that is used again: a fresh array costs as much as filling it twice, page by page."""

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
    """Has `take_back` called once nothing uses the memory of `values` any more; gives them back.

    `values` is a root: its `base` is no array, as that of what `np.frombuffer` makes. All that is made of a
    root without a copy, a view, a view of a view, a tensor or a frame that ZeroMQ has still to send, refers
    to it; so its end is the end of them all. `take_back` comes on whichever thread lets go of the last.

    Raises:
        ValueError: the array is no root, and views of it would outlive it.
    """
    if values.flags.owndata or isinstance(values.base, np.ndarray):
        raise ValueError("only the root of all views of its memory can be lent")
    weakref.finalize(values, take_back).atexit = False
    return values


class BufferPool:
    """Lends float32 arrays of which nobody has to say when he is done with them; see `lend`.

    One thread takes. What is still referred to is never lent again: whoever keeps it costs memory only.

    Args:
        idle_bytes_limit: how much memory that nobody uses is kept.

    Attributes:
        allocations: how often memory had to be had from the system.
    """

    def __init__(self, idle_bytes_limit: int) -> None:
        self._limit = idle_bytes_limit
        # Appended to by any thread, and in the midst of anything: by the end of the last reference.
        self._returned: deque[Float32Array] = deque()
        self._idle: list[Float32Array] = []
        self.allocations = 0

    @property
    def idle_bytes(self) -> int:
        """Bytes of the memory that is kept and that nobody uses; any thread may read it."""
        return sum(memory.nbytes for memory in (*self._idle, *self._returned))

    def take(self, elements: int) -> Float32Array:
        """A float32 array [elements], C-contiguous; its contents are undefined."""
        self._collect()
        fitting = [at for at in range(len(self._idle)) if len(self._idle[at]) >= elements]
        if fitting:
            # Of the shortest the one that was used last: it may still be in a cache.
            memory = self._idle.pop(min(reversed(fitting), key=lambda at: len(self._idle[at])))
        else:
            size = -(-max(elements, 1) // ROUNDED_TO_ELEMENTS) * ROUNDED_TO_ELEMENTS
            memory = np.empty(size, dtype=np.float32)
            self.allocations += 1
        values = np.frombuffer(memory.data, np.float32, elements)
        return lend(values, lambda: self._take_back(memory))

    def _take_back(self, memory: Float32Array) -> None:
        if memory.nbytes <= self._limit:
            self._returned.append(memory)

    def _collect(self) -> None:
        while self._returned:
            self._idle.append(self._returned.popleft())
        kept_bytes = sum(memory.nbytes for memory in self._idle)
        while kept_bytes > self._limit:
            kept_bytes -= self._idle.pop(0).nbytes


def bytes_of(elements: int, arrays: int = 1) -> int:
    """Of so many arrays that a pool lends, with what it rounds them up by."""
    return arrays * FLOAT_BYTES * (-(-max(elements, 1) // ROUNDED_TO_ELEMENTS) * ROUNDED_TO_ELEMENTS)
