"""The replica of a trainer on the CPU, as workers and the shadow thread share it.

Where a trainer's replica, optimizer state and counters lie: in its own memory, or in shared memory.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from abc import ABC, abstractmethod

import numpy as np
import torch

from ...pipeline.types import Int64Array
from ...sync_algos.base import Slice


class FlatReplica:
    """The flat float32 buffer [numel] that workers update lock-free; implements `Replica` of `sync_algos`.

    Snapshots and additions race with the workers element by element, which is the algorithm's way.

    Attributes:
        flat: the buffer, on the trainer's device.
    """

    def __init__(self, flat: torch.Tensor, examples: Int64Array) -> None:
        self.flat = flat
        self._examples = examples

    @property
    def numel(self) -> int:
        """Elements of the flat buffer."""
        return self.flat.numel()

    @property
    def whole(self) -> Slice:
        """All of it."""
        return Slice(0, self.flat.numel())

    @property
    def trained_examples(self) -> int:
        """Examples that the workers have trained since the job began."""
        return int(self._examples.sum())

    def read(self, start: int = 0, stop: int | None = None, stride: int = 1) -> torch.Tensor:
        """Elements of it on the CPU, float32, to be read at once: on the CPU a view. Any thread may call."""
        return self.flat[start:stop:stride]

    def snapshot(self, part: Slice) -> torch.Tensor:
        """A copy of a slice as it is now, in memory of its own."""
        return self.flat[part.start : part.stop].clone()

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """`w[part] += scale * delta` in place."""
        self.flat[part.start : part.stop].add_(delta, alpha=scale)

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """`w[part] <- (1 - rate) w[part] + rate * target` in place."""
        self.flat[part.start : part.stop].lerp_(target, rate)


class ReplicaMemory(ABC):
    """Places for tensors and counters, one after the other. One thread at a time may call."""

    @abstractmethod
    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """A float32 tensor of the same shape in this memory, with these values; with those that it has there,
        where another process has placed it before."""

    @abstractmethod
    def counters(self, count: int) -> Int64Array:
        """int64 [count], zero at first; an element that one thread writes may be read by any thread."""


class PrivateMemory(ReplicaMemory):
    """Of this process only."""

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, on whatever device it is."""
        return tensor

    def counters(self, count: int) -> Int64Array:
        """See `ReplicaMemory.counters`."""
        return np.zeros(count, dtype=np.int64)


class SharedMemory(ReplicaMemory):
    """A file without a name, mapped by a trainer and its worker processes. It is gone with the last of them,
    however they end.

    Both sides place the same things in the same order, and so get the same memory.

    Attributes:
        descriptor: of the file; a worker process inherits it.
    """

    def __init__(self, descriptor: int, *, fresh: bool) -> None:
        self.descriptor = descriptor
        self._fresh = fresh
        self._size = 0

    @classmethod
    def create(cls) -> SharedMemory:
        """Of a trainer: new memory."""
        if sys.platform == "linux":
            return cls(os.memfd_create("shadowsync-replica"), fresh=True)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), fresh=True)

    @classmethod
    def attach(cls, descriptor: int) -> SharedMemory:
        """Of a worker process: the memory behind a descriptor that it inherited."""
        return cls(descriptor, fresh=False)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `ReplicaMemory.place`; of a tensor on the CPU. Raises ValueError if the trainer has not placed
        as much."""
        block = self._take(4 * tensor.numel())
        placed = torch.frombuffer(block, dtype=torch.float32, count=tensor.numel()).view(tensor.shape)
        if self._fresh:
            placed.copy_(tensor)
        return placed

    def counters(self, count: int) -> Int64Array:
        """See `ReplicaMemory.counters`; raises ValueError if the trainer has not placed as much."""
        return np.frombuffer(self._take(8 * count), dtype=np.int64, count=count)

    def scratch(self, elements: int) -> torch.Tensor:
        """float32 [elements], which takes no memory until it is written."""
        return torch.frombuffer(self._take(4 * elements), dtype=torch.float32, count=elements)

    def close(self) -> None:
        """Closes the descriptor; what was given out stays mapped."""
        os.close(self.descriptor)

    def _take(self, needed_bytes: int) -> mmap.mmap:
        granule = mmap.ALLOCATIONGRANULARITY
        size = max(1, -(-needed_bytes // granule)) * granule
        start, self._size = self._size, self._size + size
        if self._fresh:
            os.ftruncate(self.descriptor, self._size)
        return mmap.mmap(self.descriptor, size, offset=start)
