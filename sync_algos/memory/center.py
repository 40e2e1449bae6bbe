"""A replica and a center in memory, for tests without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from ..base import Algorithm, Merge, PeerLost, Slice
from ..contract.merge_window import merge_weights
from .meeting import weighted_mean


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
    examples: int | None
    reply: torch.Tensor | None = None
    applied: asyncio.Event = field(default_factory=asyncio.Event)


class MemoryCenter:
    """A center in memory, split evenly into `parts` slices.

    Attributes:
        on_contribution: called with a slice, the member that has contributed to it, and its examples, if the
            algorithm merges. It calls `merge` when the merge closes; by default at once.
        is_exact: whether all trainers are in their last round.
    """

    is_exact = False

    def __init__(self, algorithm: Algorithm, initial: torch.Tensor, parts: int = 1) -> None:
        self.values = initial.clone()
        self._algorithm = algorithm
        self._slices = split_evenly(initial.numel(), parts)
        self._lost: set[Slice] = set()
        self._losing: set[Slice] = set()
        self._silent: dict[Slice, bool] = {}
        self._open: dict[tuple[int, Slice], _Exchange] = {}
        self._contributions: dict[Slice, dict[int, _Exchange]] = {part: {} for part in self._slices}
        self._state = {name: torch.zeros_like(self.values) for name in algorithm.center_state_names}
        self._merges = dict.fromkeys(self._slices, 0)
        self.on_contribution: Callable[[Slice, int, int], None] = self._merge_at_once
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

    async def exchange(
        self, part: Slice, values: torch.Tensor, examples: int | None = None, *, member: int = 0
    ) -> torch.Tensor:
        """Apply the algorithm's rule to one slice, now or in a merge; `member` sends it."""
        self._open[member, part] = _Exchange(values, examples)
        return await self.resume_exchange(part, member)

    async def resume_exchange(self, part: Slice, member: int = 0) -> torch.Tensor:
        """Return the reply to a member's last exchange, which is applied once."""
        if (member, part) not in self._open:
            raise RuntimeError(f"trainer {member}'s last exchange of {part} was answered")
        last, silent = self._open[member, part], self._silent.pop(part, None)
        if part not in self._lost and silent is not False and last.reply is None:
            await self._apply(part, member, last)
            if part in self._losing:
                self._lost.add(part)
        if part in self._lost or silent is not None or last.reply is None:
            what = "gone" if part in self._lost else "silent"
            raise PeerLost(f"the node of elements {part.start} to {part.stop} is {what}")
        del self._open[member, part]
        return last.reply

    def lost(self, part: Slice) -> torch.Tensor:  # noqa: ARG002
        """Return 0: nothing is encoded."""
        return torch.zeros(1)

    def take_over(self, other: MemoryCenter) -> None:
        """Take over another center's values, and its state of merges."""
        self.values.copy_(other.values)
        self._merges = dict(other._merges)
        for name, values in other._state.items():
            self._state[name].copy_(values)

    def contributors(self, part: Slice) -> set[int]:
        """Return the members of the slice's open merge."""
        return set(self._contributions[part])

    def merge(self, part: Slice, trainers: int) -> None:
        """Close a slice's merge while so many trainers take part; without a contribution do nothing."""
        merged = dict(sorted(self._contributions[part].items()))
        self._contributions[part] = {}
        values = [contribution.values for contribution in merged.values()]
        counts = merge_weights(
            [contribution.examples or 0 for contribution in merged.values()],
            lambda number: bool(values[number].any()),
        )
        cut = slice(part.start, part.stop)
        if any(counts):
            mean = weighted_mean(values, counts)
            state = {name: tensor[cut] for name, tensor in self._state.items()}
            merge = Merge(counts, max(trainers, len(merged)), self._merges[part])
            self._algorithm.merge_rule(self.values[cut], state, mean, merge)
            self._merges[part] += 1
        for contribution in merged.values():
            contribution.reply = self.values[cut].clone()
            contribution.applied.set()

    def _merge_at_once(self, part: Slice, member: int, examples: int) -> None:  # noqa: ARG002
        self.merge(part, trainers=1)

    async def _apply(self, part: Slice, member: int, last: _Exchange) -> None:
        self.exchanges += 1
        if not self._algorithm.merges:
            last.reply = self._algorithm.center_rule(self.values[part.start : part.stop], last.values)
            return
        if last.examples is None or last.examples < 0:
            raise ValueError(f"{last.examples} examples given behind a contribution; give at least 0")
        if member not in self._contributions[part]:
            self._contributions[part][member] = last
            self.on_contribution(part, member, last.examples)
        await last.applied.wait()


def split_evenly(numel: int, parts: int) -> tuple[Slice, ...]:
    """Split `numel` elements into `parts` slices of nearly equal size, none empty."""
    bounds = [numel * part // parts for part in range(parts + 1)]
    return tuple(Slice(a, b) for a, b in pairwise(bounds) if b > a)
