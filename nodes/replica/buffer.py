"""A trainer's replica on the CPU, in private or shared memory."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch

from ...pipeline.types import Int64Array
from ...sync_algos.base import Slice
from .scattered import ScatteredBuffer


class FlatReplica:
    """The float32 buffer [numel] that workers update lock-free; implements `Replica` of `sync_algos`.

    The buffer has what is synchronized: the weights, followed by the optimizer's state if that is
    synchronized too. An attached loop's is scattered over the user's parameters, all of them weights.
    Snapshots and additions race with the workers element by element, as the algorithm intends.

    Attributes:
        weights: the slice of the weights.

    Class attributes:
        squares_at_once: number of squares that are changed at once.

    Args:
        buffer: float32 [numel].
        weights: number of leading elements that are weights; by default all. The last elements behind them,
            at most as many as there are weights, are sums or means of squares; no change takes these below 0.
    """

    # Their copy fits into a core's cache.
    squares_at_once: ClassVar[int] = 1 << 15

    def __init__(
        self, buffer: torch.Tensor | ScatteredBuffer, examples: Int64Array, weights: int | None = None
    ) -> None:
        self._buffer = buffer
        self.weights = Slice(0, buffer.numel() if weights is None else weights)
        state = buffer.numel() - len(self.weights)
        self._squares_start = buffer.numel() - min(state, len(self.weights))
        self._examples = examples

    @property
    def flat(self) -> torch.Tensor:
        """The weights, on the trainer's device; a trainer's only, which are in one tensor."""
        assert isinstance(self._buffer, torch.Tensor)
        return self._buffer[: self.weights.stop]

    @property
    def numel(self) -> int:
        """Elements that are synchronized."""
        return self._buffer.numel()

    @property
    def whole(self) -> Slice:
        """The slice of all that is synchronized."""
        return Slice(0, self._buffer.numel())

    @property
    def trained_examples(self) -> int:
        """Examples that this trainer's workers have trained since the job began."""
        return int(self._examples.sum())

    def read(self, start: int = 0, stop: int | None = None, stride: int = 1) -> torch.Tensor:
        """Return weights as float32 on the CPU; any thread may call.

        The result is a view of one tensor, to be read at once.
        """
        self._locate()
        return self._values(range(self.weights.stop)[start:stop:stride])

    def snapshot(self, part: Slice) -> torch.Tensor:
        """Return a copy of a slice as it is now."""
        self._locate()
        values = self._values(range(part.start, part.stop))
        return values.clone() if isinstance(self._buffer, torch.Tensor) else values

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """Compute `w[part] += scale * delta` in place."""
        self._locate()
        if isinstance(self._buffer, ScatteredBuffer):
            self._buffer.add_(part.start, part.stop, delta, scale)
        else:
            self._change(self._buffer, part, delta, lambda own, given: own.add_(given, alpha=scale))

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """Compute `w[part] <- (1 - rate) w[part] + rate * target` in place."""
        self._locate()
        if isinstance(self._buffer, ScatteredBuffer):
            self._buffer.lerp_(part.start, part.stop, target, rate)
        else:
            self._change(self._buffer, part, target, lambda own, given: own.lerp_(given, rate))

    def _locate(self) -> None:
        """Find the values, before they are used."""
        if isinstance(self._buffer, ScatteredBuffer):
            self._buffer.refresh()
            self._buffer.take_moved()

    def _values(self, places: range) -> torch.Tensor:
        """Return elements on the device: a view of one tensor, or a copy."""
        if isinstance(self._buffer, ScatteredBuffer):
            return self._buffer.gather(places.start, places.stop, places.step)
        return self._buffer[places.start : places.stop : places.step]

    def _change(
        self,
        buffer: torch.Tensor,
        part: Slice,
        given: torch.Tensor,
        change: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        """Have `change` change a slice in place, by `given`; negative squares become 0.

        A mean of squares falls while workers train, so that adding what it lacked before may overshoot. No
        worker may read a negative one, whose root is NaN, so squares are changed in a copy.
        """
        first = min(max(part.start, self._squares_start), part.stop)
        change(buffer[part.start : first], given[: first - part.start])
        for start in range(first, part.stop, self.squares_at_once):
            squares = buffer[start : min(start + self.squares_at_once, part.stop)]
            changed, at = squares.clone(), start - part.start
            change(changed, given[at : at + len(squares)])
            squares.copy_(changed.clamp_(min=0.0))


def write_elements(target: torch.Tensor, start: int, values: bytes, name: str) -> None:
    """Write the bytes of float32 elements into a flat tensor, from `start` on.

    `target` is float32 [numel], on any device; others may write it meanwhile. Raises ValueError, with `name`,
    for elements that do not fit.
    """
    given = elements_of(start, values, len(target), name)
    target[start : start + len(given)].copy_(given)


def elements_of(start: int, values: bytes, numel: int, name: str) -> torch.Tensor:
    """Return elements from their bytes, float32 on the CPU.

    Raises ValueError, with `name`, if they do not fit among `numel` from `start` on.
    """
    given = torch.from_numpy(np.frombuffer(values, dtype=np.float32).copy())
    if start + len(given) > numel:
        raise ValueError(f"{name}: {len(given)} elements from {start} given; it has {numel}")
    return given


class ReplicaMemory(ABC):
    """Memory for tensors and counters, given out in order.

    One thread at a time may call.
    """

    @abstractmethod
    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a float32 tensor with these values in this memory.

        The result has the same shape. If another process has placed the tensor before, the result has the
        values that are there.
        """

    @abstractmethod
    def counters(self, count: int) -> Int64Array:
        """Return int64 [count], initially zero.

        Any thread may read an element that one thread writes.
        """


class PrivateMemory(ReplicaMemory):
    """Memory of this process only."""

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor itself, on any device."""
        return tensor

    def counters(self, count: int) -> Int64Array:
        """See `ReplicaMemory.counters`."""
        return np.zeros(count, dtype=np.int64)


class SharedMemory(ReplicaMemory):
    """An unnamed file, mapped by a trainer and its worker processes.

    The file is gone with the last of these processes, however they end. Both sides place the same tensors and
    counters in the same order, and so get the same memory.

    Attributes:
        descriptor: the file's descriptor; a worker process inherits it.
    """

    def __init__(self, descriptor: int, *, fresh: bool) -> None:
        self.descriptor = descriptor
        self._fresh = fresh
        self._size = 0

    @classmethod
    def create(cls) -> SharedMemory:
        """Create new memory, in the trainer."""
        if sys.platform == "linux":
            return cls(os.memfd_create("shadowsync-replica"), fresh=True)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), fresh=True)

    @classmethod
    def attach(cls, descriptor: int) -> SharedMemory:
        """Attach to the memory of an inherited descriptor, in a worker process."""
        return cls(descriptor, fresh=False)

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """See `ReplicaMemory.place`; the tensor is on the CPU.

        Raises ValueError if the trainer has placed less.
        """
        block = self._take(4 * tensor.numel())
        placed = torch.frombuffer(block, dtype=torch.float32, count=tensor.numel()).view(tensor.shape)
        if self._fresh:
            placed.copy_(tensor)
        return placed

    def counters(self, count: int) -> Int64Array:
        """See `ReplicaMemory.counters`; raises ValueError if the trainer has placed less."""
        return np.frombuffer(self._take(8 * count), dtype=np.int64, count=count)

    def scratch(self, elements: int) -> torch.Tensor:
        """Return float32 [elements], which takes no memory until written."""
        return torch.frombuffer(self._take(4 * elements), dtype=torch.float32, count=elements)

    def close(self) -> None:
        """Close the descriptor; memory that was given out stays mapped."""
        os.close(self.descriptor)

    def _take(self, needed_bytes: int) -> mmap.mmap:
        granule = mmap.ALLOCATIONGRANULARITY
        size = max(1, -(-needed_bytes // granule)) * granule
        start, self._size = self._size, self._size + size
        if self._fresh:
            os.ftruncate(self.descriptor, self._size)
        return mmap.mmap(self.descriptor, size, offset=start)
