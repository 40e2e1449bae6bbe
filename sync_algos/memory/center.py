"""A replica and a center in memory, for tests without sockets."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from ..base import Algorithm, PeerLost, Slice


class MemoryReplica:
    """A replica that is a plain float32 tensor [n]."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values.clone()
        self.trained_examples = 0

    @property
    def numel(self) -> int:
        """Return the number of elements of the flat buffer."""
        return self.values.numel()

    @property
    def whole(self) -> Slice:
        """Return the slice of all elements."""
        return Slice(0, self.values.numel())

    def snapshot(self, part: Slice) -> torch.Tensor:
        """Copy a slice."""
        return self.values[part.start : part.stop].clone()

    def add_(self, part: Slice, delta: torch.Tensor, scale: float) -> None:
        """Do `w[part] += scale * delta`."""
        self.values[part.start : part.stop].add_(delta, alpha=scale)

    def interpolate_(self, part: Slice, target: torch.Tensor, rate: float) -> None:
        """Do `w[part] <- (1 - rate) w[part] + rate * target`."""
        self.values[part.start : part.stop].lerp_(target, rate)


@dataclass
class _Exchange:
    """A trainer's exchange of a slice; it was applied if there is a reply."""

    values: torch.Tensor
    reply: torch.Tensor | None = None


class MemoryCenter:
    """A center in memory, split evenly into `parts` slices."""

    def __init__(self, algorithm: Algorithm, initial: torch.Tensor, parts: int = 1) -> None:
        self.values = initial.clone()
        self._algorithm = algorithm
        self._slices = split_evenly(initial.numel(), parts)
        self._lost: set[Slice] = set()
        self._losing: set[Slice] = set()
        self._silent: dict[Slice, bool] = {}
        self._open: dict[tuple[int, Slice], _Exchange] = {}
        self.exchanges = 0

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices, in order."""
        return self._slices

    def lose(self, part: Slice, *, after_applying: bool = False) -> None:
        """Make exchanges of `part` raise PeerLost.

        With `after_applying`, the next one is applied before it raises.
        """
        (self._losing if after_applying else self._lost).add(part)

    def silence(self, part: Slice, *, after_applying: bool = False) -> None:
        """Make the next exchange of `part` raise PeerLost.

        The request is lost; with `after_applying`, only the reply is.
        """
        self._silent[part] = after_applying

    async def exchange(self, part: Slice, values: torch.Tensor, member: int = 0) -> torch.Tensor:
        """Apply the algorithm's center rule to one slice; `member` sends it."""
        self._open[member, part] = _Exchange(values)
        return await self.settle(part, member)

    async def settle(self, part: Slice, member: int = 0) -> torch.Tensor:
        """Return the reply to a member's last exchange, which is applied once."""
        if (member, part) not in self._open:
            raise RuntimeError(f"trainer {member}'s last exchange of {part} was answered")
        last, silent = self._open[member, part], self._silent.pop(part, None)
        if part not in self._lost and silent is not False and last.reply is None:
            self.exchanges += 1
            last.reply = self._algorithm.center_rule(self.values[part.start : part.stop], last.values)
            if part in self._losing:
                self._lost.add(part)
        if part in self._lost or silent is not None or last.reply is None:
            what = "gone" if part in self._lost else "silent"
            raise PeerLost(f"the node of elements {part.start} to {part.stop} is {what}")
        del self._open[member, part]
        return last.reply


def split_evenly(numel: int, parts: int) -> tuple[Slice, ...]:
    """Split `numel` elements into `parts` slices of nearly equal size, none empty."""
    bounds = [numel * part // parts for part in range(parts + 1)]
    return tuple(Slice(a, b) for a, b in pairwise(bounds) if b > a)
