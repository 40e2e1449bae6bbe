"""Large float32 buffers that are used again: a fresh one costs as much as filling it twice, page by page."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

from ..pipeline.data.batch import Float32Array


class ReusedBuffers:
    """Gives out arrays, and takes each one's memory back when nothing refers to it any more.

    What refers to it are the array itself and tensors made from it with `torch.from_numpy`; a slice of it
    (numpy's, not the tensor's) does not count, so whoever slices keeps the array too. Any thread may drop
    one. At most `keep` buffers wait; those of another size are forgotten when one is taken.
    """

    def __init__(self, keep: int) -> None:
        self._free: deque[Float32Array] = deque(maxlen=keep)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers that wait."""
        return sum(buffer.nbytes for buffer in list(self._free))

    def take(self, elements: int) -> Float32Array:
        """A float32 array [elements]; its contents are undefined."""
        buffer = self._free.popleft() if self._free else None
        if buffer is None or len(buffer) != elements:
            self._free.clear()
            buffer = np.empty(elements, dtype=np.float32)
        array = buffer[:]
        weakref.finalize(array, self._free.append, buffer).atexit = False
        return array
