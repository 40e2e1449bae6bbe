"""A trainer's replica on the CPU."""

from __future__ import annotations

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
            self._change(self._buffer, part, delta, lambda weights, values: weights.add_(values, alpha=scale))

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """Compute `w[part] <- (1 - rate) w[part] + rate * target` in place."""
        self._locate()
        if isinstance(self._buffer, ScatteredBuffer):
            self._buffer.lerp_(part.start, part.stop, target, rate)
        else:
            self._change(self._buffer, part, target, lambda weights, values: weights.lerp_(values, rate))

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
        values: torch.Tensor,
        change: Callable[[torch.Tensor, torch.Tensor], object],
    ) -> None:
        """Have `change` change a slice in place, by `values`; negative squares become 0.

        A mean of squares falls while workers train, so that adding what it lacked before may overshoot. No
        worker may read a negative one, whose root is NaN, so squares are changed in a copy.
        """
        first = min(max(part.start, self._squares_start), part.stop)
        change(buffer[part.start : first], values[: first - part.start])
        for start in range(first, part.stop, self.squares_at_once):
            squares = buffer[start : min(start + self.squares_at_once, part.stop)]
            changed, offset = squares.clone(), start - part.start
            change(changed, values[offset : offset + len(squares)])
            squares.copy_(changed.clamp_(min=0.0))


def write_elements(target: torch.Tensor, start: int, values: bytes, name: str) -> None:
    """Write the bytes of float32 elements into a flat tensor, from `start` on.

    `target` is float32 [numel], on any device; others may write it meanwhile. Raises ValueError, with `name`,
    for elements that do not fit.
    """
    elements = elements_of(start, values, len(target), name)
    target[start : start + len(elements)].copy_(elements)


def elements_of(start: int, values: bytes, numel: int, name: str) -> torch.Tensor:
    """Return elements from their bytes, float32 on the CPU.

    Raises ValueError, with `name`, if they do not fit among `numel` from `start` on.
    """
    elements = torch.from_numpy(np.frombuffer(values, dtype=np.float32).copy())
    if start + len(elements) > numel:
        raise ValueError(f"{name}: {len(elements)} elements from {start} given; it has {numel}")
    return elements
