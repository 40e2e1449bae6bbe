"""The others, as one trainer in memory sees them: peers, groups, the center."""

from __future__ import annotations

import asyncio
from typing import Protocol

import torch

from .base import Slice
from .grouping import Grouping, everyone
from .memory import MemoryCenter
from .memory_faults import Phase
from .memory_meeting import MemoryRound


class Hub(Protocol):
    """What all trainers in memory share."""

    @property
    def center(self) -> MemoryCenter:
        """The center itself."""
        ...

    async def reach(self, index: int, phase: Phase) -> None:
        """A trainer comes to a phase; returns never to one that died."""
        ...

    async def meet(self, index: int, grouping: Grouping) -> MemoryRound:
        """The round of a trainer's group, when all of it have come; raises PeerLost."""
        ...


class MemoryPeers:
    """The others, as one trainer of a cluster sees them; implements `Peers`."""

    def __init__(self, hub: Hub, index: int) -> None:
        self._hub = hub
        self._index = index

    @property
    def center(self) -> MemberCenter:
        """The center."""
        return MemberCenter(self._hub, self._index)

    @property
    def index(self) -> int:
        """This trainer's place."""
        return self._index

    async def meet(self, grouping: Grouping = everyone) -> MemoryGroup:
        """The group of the round, when all of it have come; raises PeerLost."""
        await self._hub.reach(self._index, Phase.MEETING)
        found = await self._hub.meet(self._index, grouping)
        await self._hub.reach(self._index, Phase.MET)
        return MemoryGroup(self._hub, found, self._index)


class MemoryGroup:
    """One trainer's side of a round; implements `Group`."""

    def __init__(self, hub: Hub, shared: MemoryRound, index: int) -> None:
        self._hub = hub
        self._shared = shared
        self._index = index

    @property
    def members(self) -> tuple[int, ...]:
        """Who is in it, ascending."""
        return self._shared.members

    @property
    def round_number(self) -> int:
        """Rounds of this set of members before."""
        return self._shared.number

    async def mean(self, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """The weighted mean, summed in float64 in the members' order; equal bit by bit for all."""
        return await self._give("mean", values, weight)

    async def exchange(self, values: torch.Tensor) -> torch.Tensor:
        """The partner's values; one's own in a group of one."""
        if len(self.members) > 2:
            raise ValueError(f"exchange in a group of {len(self.members)}; it takes two")
        return await self._give("exchange", values, 1.0)

    async def _give(self, kind: str, values: torch.Tensor, weight: float) -> torch.Tensor:
        self._shared.give(self._index, kind, values, weight)
        await self._hub.reach(self._index, Phase.GIVING)
        self._shared.decide()
        result = await self._shared.result(self._index)
        await self._hub.reach(self._index, Phase.TAKING)
        return result


class MemberCenter:
    """The center, as one trainer of a cluster sees it; implements `Center`."""

    def __init__(self, hub: Hub, index: int) -> None:
        self._hub = hub
        self._index = index

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in order."""
        return self._hub.center.slices

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """One slice's exchange; others run in between, as they would over a network."""
        await self._hub.reach(self._index, Phase.GIVING)
        await asyncio.sleep(0)
        answer = await self._hub.center.exchange(part, values)
        await self._hub.reach(self._index, Phase.TAKING)
        return answer
