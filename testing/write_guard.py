"""Peers that detect an algorithm's writes to others' tensors."""

from __future__ import annotations

import torch

from ..sync_algos.base import Center, Group, Peers, Slice
from ..sync_algos.contract.grouping import Grouping, everyone


class WriteGuard:
    """Remember tensors with a copy of each, and detect writes."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self.written: list[str] = []

    def keep(self, what: str, tensor: torch.Tensor) -> torch.Tensor:
        """Detect writes to `tensor` from now on."""
        self._kept.append((what, tensor, tensor.clone()))
        return tensor

    def find_writes(self) -> None:
        """Add to `written` what has changed of everything kept, and forget it all."""
        for what, tensor, copy in self._kept:
            if not torch.equal(tensor, copy) and what not in self.written:
                self.written.append(what)
        self._kept.clear()


class GuardedPeers:
    """Peers that pass everything on and watch the tensors."""

    def __init__(self, peers: Peers, guard: WriteGuard) -> None:
        self._peers = peers
        self._guard = guard

    @property
    def center(self) -> GuardedCenter:
        """Return the center, which keeps copies of what is exchanged with it."""
        return GuardedCenter(self._peers.center, self._guard)

    @property
    def index(self) -> int:
        """Return this trainer's index."""
        return self._peers.index

    async def meet(self, grouping: Grouping = everyone) -> GuardedGroup:
        """Await the group of the round."""
        return GuardedGroup(await self._peers.meet(grouping), self._guard)


class GuardedGroup:
    """A group whose results must not be written."""

    def __init__(self, group: Group, guard: WriteGuard) -> None:
        self._group = group
        self._guard = guard

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members."""
        return self._group.members

    @property
    def round_number(self) -> int:
        """Return the number of earlier rounds."""
        return self._group.round_number

    async def mean(self, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """Await the mean; neither it nor the values may be written."""
        self._guard.keep("the values given to mean", values)
        return self._guard.keep("the mean that the group returned", await self._group.mean(values, weight))


class GuardedCenter:
    """A center whose replies must not be written."""

    def __init__(self, center: Center, guard: WriteGuard) -> None:
        self._center = center
        self._guard = guard

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices."""
        return self._center.slices

    async def exchange(self, part: Slice, values: torch.Tensor, examples: int | None = None) -> torch.Tensor:
        """Exchange one slice; neither the values nor the reply may be written."""
        self._guard.keep("the values given to the center", values)
        return self._guard.keep("the center's reply", await self._center.exchange(part, values, examples))

    async def resume_exchange(self, part: Slice) -> torch.Tensor:
        """Await the reply to the last exchange; it may not be written."""
        return self._guard.keep("the center's reply", await self._center.resume_exchange(part))

    @property
    def is_exact(self) -> bool:
        """Return whether the trainer is in its last round."""
        return self._center.is_exact

    def lost(self, part: Slice) -> torch.Tensor:
        """Return what a codec has lost of the last exchange; it may not be written."""
        return self._guard.keep("what was lost", self._center.lost(part))
