"""Peers, groups and the center, as one trainer in memory sees them."""

from __future__ import annotations

from typing import Protocol

import torch

from ..base import Slice
from ..contract.grouping import Grouping, everyone
from .center import MemoryCenter
from .meeting import MemoryRound


class Hub(Protocol):
    """State shared by all trainers in memory, and what passes between them.

    The hub decides what takes time and what fails on the way. `index` is the trainer that asks; all but
    `center` raise PeerLost.
    """

    @property
    def center(self) -> MemoryCenter:
        """Return the center itself."""
        ...

    async def meet(self, index: int, grouping: Grouping) -> MemoryRound:
        """Await the round of a trainer's group."""
        ...

    async def give(
        self, index: int, shared: MemoryRound, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """Give a trainer's values to its round, and await the result."""
        ...

    async def exchange(
        self, index: int, part: Slice, values: torch.Tensor, examples: int | None
    ) -> torch.Tensor:
        """Exchange a slice with the center."""
        ...

    async def resume_exchange(self, index: int, part: Slice) -> torch.Tensor:
        """Await the reply to the trainer's last exchange of a slice."""
        ...

    def lost(self, index: int, part: Slice) -> torch.Tensor:
        """Return what a codec has lost of the trainer's last exchange of a slice."""
        ...


class MemoryPeers:
    """The peers of one trainer; implements `Peers`."""

    def __init__(self, hub: Hub, index: int) -> None:
        self._hub = hub
        self._index = index

    @property
    def center(self) -> MemberCenter:
        """Return the center."""
        return MemberCenter(self._hub, self._index)

    @property
    def index(self) -> int:
        """Return this trainer's index."""
        return self._index

    async def meet(self, grouping: Grouping = everyone) -> MemoryGroup:
        """Await the group of the round; raises PeerLost."""
        return MemoryGroup(self._hub, await self._hub.meet(self._index, grouping), self._index)


class MemoryGroup:
    """One trainer's side of a round; implements `Group`."""

    def __init__(self, hub: Hub, shared: MemoryRound, index: int) -> None:
        self._hub = hub
        self._shared = shared
        self._index = index

    @property
    def members(self) -> tuple[int, ...]:
        """Return the members, ascending."""
        return self._shared.members

    @property
    def round_number(self) -> int:
        """Return the number of earlier rounds of these members."""
        return self._shared.number

    async def mean(self, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """Await the weighted mean, the same bits for all members."""
        return await self._hub.give(self._index, self._shared, values, weight)


class MemberCenter:
    """The center, as one trainer sees it; implements `Center`."""

    def __init__(self, hub: Hub, index: int) -> None:
        self._hub = hub
        self._index = index

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices, in order."""
        return self._hub.center.slices

    @property
    def is_exact(self) -> bool:
        """Return whether the trainer is in its last round."""
        return self._hub.center.is_exact

    async def exchange(self, part: Slice, values: torch.Tensor, examples: int | None = None) -> torch.Tensor:
        """Exchange one slice; other trainers run meanwhile, as over a network."""
        return await self._hub.exchange(self._index, part, values, examples)

    async def resume_exchange(self, part: Slice) -> torch.Tensor:
        """Await the reply to the last exchange of a slice."""
        return await self._hub.resume_exchange(self._index, part)

    def lost(self, part: Slice) -> torch.Tensor:
        """Return what a codec has lost of the last exchange of a slice."""
        return self._hub.lost(self._index, part)
