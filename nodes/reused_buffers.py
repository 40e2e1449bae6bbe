"""Large float32 buffers that are used again: a fresh one costs as much as filling it twice, page by page."""

from __future__ import annotations

import sys

import numpy as np

from ..pipeline.types import Float32Array

# What refers to a buffer that nobody uses: the list, and whoever looks.
IDLE_REFERENCES = 3


class ReusedBuffers:
    """Gives out arrays, and uses the memory of one again when nothing refers to it any more: no array, no
    tensor made from one, and no frame that ZeroMQ has still to send. At most `keep` buffers are known.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._buffers: list[Float32Array] = []

    @property
    def memory_bytes(self) -> int:
        """Bytes of the buffers that nobody uses."""
        return sum(buffer.nbytes for buffer in self._buffers if _is_idle(buffer))

    def take(self, elements: int) -> Float32Array:
        """A float32 array [elements]; its contents are undefined."""
        self._buffers = [buffer for buffer in self._buffers if len(buffer) == elements]
        for buffer in self._buffers:
            if _is_idle(buffer):
                return buffer[:]
        made = np.empty(elements, dtype=np.float32)
        self._buffers = [*self._buffers, made][-self._keep :]
        return made[:]


def _is_idle(buffer: Float32Array) -> bool:
    # A view, and a view of a view, refers to the array that owns the memory; so does a tensor, by its view.
    return sys.getrefcount(buffer) <= IDLE_REFERENCES + 1
