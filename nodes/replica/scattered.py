"""Parameters in storages of their own, as if they were one flat buffer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from ...pipeline.models.training.flat import FlatLayout


class ScatteredBuffer:
    """A module's parameters where they are, as the elements of a layout.

    The parameters and their storages stay the user's: nothing that reads or saves the module sees a
    difference. A storage may be replaced at any time (`p.data = ...`), so `refresh` comes before each use.
    Values are read and written through `p.data`, which has no part in the parameter's version counter:
    writing between a forward and a backward pass raises nothing. Elements between parameters read as zero.
    Any thread may call.

    Attributes:
        changes: how often `add_` and `lerp_` were called.

    Args:
        layout: the layout of the parameters.
        parameters: in the order of the layout.
    """

    def __init__(self, layout: FlatLayout, parameters: Sequence[nn.Parameter]) -> None:
        self._layout = layout
        self._parameters = list(parameters)
        self._values = [parameter.data for parameter in self._parameters]
        self._moved = list(self._values)
        self._device = self._values[0].device
        self._pieces: dict[tuple[int, int], tuple[list[torch.Tensor], list[int]]] = {}
        self._lock, self._watching = threading.Lock(), threading.Lock()
        self._seen: int | None = None
        self.changes = 0
        self._was_changed = False

    @property
    def device(self) -> torch.device:
        return self._device

    def numel(self) -> int:
        """Return the number of elements of the layout."""
        return self._layout.numel

    def refresh(self) -> None:
        """Look where the values are.

        Where the user has put something that cannot be synchronized, as `module.half()` does, the last values
        stay in use until there is something better.
        """
        with self._lock:
            before = len(self._moved)
            for number, (parameter, value) in enumerate(zip(self._parameters, self._values, strict=True)):
                is_there = parameter.data_ptr() == value.data_ptr()
                if is_there and parameter.stride() == value.stride():
                    continue
                now = parameter.data
                if (now.dtype, now.device, now.shape) == (value.dtype, value.device, value.shape):
                    self._values[number] = now
                    self._moved.append(now)
            if len(self._moved) > before:
                self._pieces.clear()

    def take_moved(self) -> list[torch.Tensor]:
        """Return the tensors in use that no earlier call returned."""
        with self._lock:
            moved, self._moved = self._moved, []
        return moved

    def gather(self, start: int, stop: int, stride: int = 1) -> torch.Tensor:
        """Return a copy of elements, float32 on the parameters' device."""
        count = len(range(start, stop, stride))
        result = torch.zeros(count, device=self.device)
        if stride == 1:
            pieces, targets = self._matching_pieces(start, stop, result)
        else:
            pieces, targets = [], []
            for place, piece in self._strided(start, stop, stride):
                pieces.append(piece)
                targets.append(result[place : place + len(piece)])
        if pieces:
            torch._foreach_copy_(targets, pieces)
        return result

    def add_(self, start: int, stop: int, delta: torch.Tensor, scale: float) -> None:
        """Add `scale * delta`, float32 [stop - start] on the parameters' device."""
        pieces, values = self._matching_pieces(start, stop, delta)
        self._change(pieces, lambda changed: torch._foreach_add_(changed, values, alpha=scale))

    def lerp_(self, start: int, stop: int, target: torch.Tensor, rate: float) -> None:
        """Move toward `target`, float32 [stop - start] on the parameters' device, by `rate`."""
        pieces, values = self._matching_pieces(start, stop, target)
        self._change(pieces, lambda changed: torch._foreach_lerp_(changed, values, rate))

    def watch(self) -> None:
        """Detect from now on whether anybody but `add_` and `lerp_` changes values.

        Each change then reads all values, and is made of a copy, too.
        """
        with self._watching:
            self._seen = _digest(self._values)

    def unwatch(self) -> None:
        """End the detection, so that `add_` and `lerp_` are fast again."""
        if self._seen is not None:
            with self._watching:
                self._seen = None

    def check_for_foreign_changes(self) -> bool:
        """Return whether anybody but `add_` and `lerp_` has changed a value since `watch`."""
        self.refresh()
        with self._watching:
            self._compare_values()
        return self._was_changed

    def close(self) -> None:
        """Let go of the values; nothing may be called after it."""
        with self._lock:
            self._values, self._moved = [], []
            self._pieces.clear()

    def _compare_values(self) -> None:
        if self._seen is not None and self._seen != _digest(self._values):
            self._was_changed = True

    def _change(self, pieces: list[torch.Tensor], change: Callable[[list[torch.Tensor]], object]) -> None:
        with self._watching:
            if pieces and self._seen is not None:
                # What the change does to a copy: the user may change the values themselves meanwhile, and
                # that must be seen later.
                copies = [piece.clone() for piece in pieces]
                self._compare_values()
                self._seen -= _digest(copies)
                change(copies)
                self._seen += _digest(copies)
            if pieces:
                change(pieces)
            self.changes += 1

    def _matching_pieces(
        self, start: int, stop: int, flat: torch.Tensor
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the parameters' pieces of these elements, and those of `flat`.

        Views are kept from call to call: making them takes the interpreter's lock from the training thread.
        """
        with self._lock:
            if (start, stop) not in self._pieces:
                self._pieces[start, stop] = self._cut(start, stop)
            pieces, sizes = self._pieces[start, stop]
        flat_pieces = torch.split(flat, sizes)[1::2]
        shaped = [
            values if piece.dim() == 1 else values.view(piece.shape)
            for piece, values in zip(pieces, flat_pieces, strict=True)
        ]
        return pieces, shaped

    def _cut(self, start: int, stop: int) -> tuple[list[torch.Tensor], list[int]]:
        """Return the pieces; and sizes, in turn of gaps and pieces."""
        pieces: list[torch.Tensor] = []
        sizes: list[int] = []
        done = start
        for span, value in zip(self._layout.spans, self._values, strict=True):
            first, last = max(span.start, start), min(span.start + span.numel, stop)
            if first >= last:
                continue
            sizes.append(first - done)
            for block in _blocks(value, first - span.start, last - span.start):
                pieces.append(block)
                sizes += [block.numel(), 0]
            sizes.pop()
            done = last
        return pieces, [*sizes, stop - done]

    def _strided(self, start: int, stop: int, stride: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield every stride-th element of each parameter, and its place in the result."""
        for span, value in zip(self._layout.spans, list(self._values), strict=True):
            first, last = max(span.start, start), min(span.start + span.numel, stop)
            first += (start - first) % stride
            if first < last:
                chosen = value.reshape(-1)[first - span.start : last - span.start : stride]
                yield (first - start) // stride, chosen


def _digest(values: Sequence[torch.Tensor]) -> int:
    return sum(int(value.view(torch.int32).sum(dtype=torch.int64)) for value in values)


def _blocks(value: torch.Tensor, start: int, stop: int) -> Iterator[torch.Tensor]:
    """Yield views that together are these elements in row-major order."""
    if value.is_contiguous():
        yield value.view(-1)[start:stop]
        return
    if value.dim() == 1:
        yield value[start:stop]
        return
    inner = value[0].numel()
    (first, head), (last, tail) = divmod(start, inner), divmod(stop, inner)
    if first == last:
        yield from _blocks(value[first], head, tail)
        return
    if head:
        yield from _blocks(value[first], head, inner)
        first += 1
    if first < last:
        yield value[first:last]
    if tail:
        yield from _blocks(value[last], 0, tail)
