"""Buffers to send from: each is handed out again only when ZeroMQ has let go of it (contract 5)."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray


class BufferPool:
    """Float32 buffers for one sending thread.

    `take` gives an array to fill; `sent` gives it back together with ZeroMQ's trackers of the frames that
    were sent from it. A buffer is reused once all its trackers are done, and forgotten beyond `keep` of them.
    """

    def __init__(self, keep: int = 16) -> None:
        self._keep = keep
        self._busy: deque[tuple[NDArray[np.float32], list[zmq.MessageTracker]]] = deque()
        self._free: list[NDArray[np.float32]] = []
        self.allocated_bytes = 0

    def take(self, elements: int) -> NDArray[np.float32]:
        """A C-contiguous float32 array [elements]; its contents are undefined."""
        self._collect()
        for at, buffer in enumerate(self._free):
            if buffer.size >= elements:
                return self._free.pop(at)[:elements]
        # Rounded up so that batches of slightly different sizes share buffers.
        size = -(-max(elements, 1) // 4096) * 4096
        self.allocated_bytes += size * 4
        return np.empty(size, dtype=np.float32)[:elements]

    def sent(self, buffer: NDArray[np.float32], trackers: list[zmq.MessageTracker]) -> None:
        """Gives back a buffer from `take` after sending from it."""
        base: Any = buffer
        while base.base is not None:
            base = base.base
        self._busy.append((base, trackers))

    def _collect(self) -> None:
        for _ in range(len(self._busy)):
            buffer, trackers = self._busy.popleft()
            if not all(tracker.done for tracker in trackers):
                self._busy.append((buffer, trackers))
            elif len(self._free) < self._keep:
                self._free.append(buffer)
            else:
                self.allocated_bytes -= buffer.nbytes
