"""The replica of a trainer on the CPU, as workers and the shadow thread share it."""

from __future__ import annotations

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
