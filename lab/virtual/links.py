"""The links between emulated trainers: a center and groups whose messages take their time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...pipeline.config.job import Job
from ...sync_algos.base import Algorithm, Slice
from ...sync_algos.grouping import Grouping, everyone
from ...sync_algos.memory import MemoryCenter
from ...sync_algos.memory_meeting import MemoryRendezvous, MemoryRound
from .timing import Timing

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Link:
    """A link: the time that bytes take to the other end."""

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None

    @classmethod
    def of(cls, job: Job) -> Link:
        """Return the link that `[network]` of a job emulates."""
        slow = job.network.slow
        return cls() if slow is None else cls(slow.delay_seconds, slow.bytes_per_second)

    def seconds(self, sent_bytes: float) -> float:
        """Return the seconds from one end to the other."""
        rate = self.bytes_per_second
        return self.delay_seconds + (0.0 if rate is None else sent_bytes / rate)


class VirtualNetwork:
    """What all trainers share: the center, the meetings, and the time that they take.

    Attributes:
        moved_bytes: by trainer, sent and received over its links of synchronization.
    """

    def __init__(self, job: Job, timing: Timing, make: Callable[[], Algorithm], first: torch.Tensor) -> None:
        self.link = Link.of(job)
        self.center = MemoryCenter(make(), first, max(1, job.sync_nodes))
        self.moved_bytes = [0] * job.trainer.count
        self._between_trainers = make().needs_peers
        self._timing = timing
        self._trainers = range(job.trainer.count)
        self._meetings = MemoryRendezvous(job.run.seed, self._trainers, lambda _: None)
        self._free_at: dict[Slice, float] = {}

    @property
    def sync_bytes(self) -> int:
        """Return the bytes of all links, each counted once."""
        # What one trainer sends another is counted at both.
        return sum(self.moved_bytes) // (2 if self._between_trainers else 1)

    def end_rounds(self) -> None:
        """End the rounds of groups that are under way; the trainers stay members."""
        self._meetings.regroup(self._trainers)

    def waits_for(self, trainer: int) -> bool:
        """Return whether other trainers wait for this one."""
        return self._meetings.waits_for(trainer)

    async def meet(self, trainer: int, grouping: Grouping) -> MemoryRound:
        """Await the round of a trainer's group."""
        found = await self._meetings.meet(trainer, grouping)
        await asyncio.sleep(self.link.delay_seconds)
        return found

    async def exchange(self, trainer: int, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """Exchange a trainer's slice with its sync node, which serves one exchange at a time."""
        await self._arrive(trainer, part)
        answer = await self.center.exchange(part, values, trainer)
        await asyncio.sleep(self.link.seconds(_size(part)) + self._timing.round_seconds / 2)
        return answer

    async def settle(self, trainer: int, part: Slice) -> torch.Tensor:
        """Ask again for the reply to a trainer's last exchange of a slice."""
        await self._arrive(trainer, part)
        answer = await self.center.settle(part, trainer)
        await asyncio.sleep(self.link.seconds(_size(part)) + self._timing.round_seconds / 2)
        return answer

    async def _arrive(self, trainer: int, part: Slice) -> None:
        """Wait until a slice is with its sync node, and its turn there is over."""
        self.moved_bytes[trainer] += 2 * _size(part)
        await asyncio.sleep(self._timing.round_seconds / 2 + self.link.seconds(_size(part)))
        now = asyncio.get_running_loop().time()
        begun = max(now, self._free_at.get(part, 0.0))
        self._free_at[part] = begun + self._timing.center_seconds
        await asyncio.sleep(begun + self._timing.center_seconds - now)

    async def reduce(
        self, shared: MemoryRound, member: int, values: torch.Tensor, kind: str, weight: float
    ) -> torch.Tensor:
        """Give a member's values to its group; await the result, and the time that it takes to arrive.

        Of a mean of n members each sends and receives n - 1 slices of 1/n of the values, twice.
        """
        members = len(shared.members)
        share = 2 * (members - 1) / members if kind == "mean" else 1.0
        size = share * values.numel() * FLOAT_BYTES
        self.moved_bytes[member] += 2 * round(size)
        await asyncio.sleep(self._timing.round_seconds / 2)
        shared.give(member, kind, values, weight)
        shared.decide()
        result = await shared.result(member)
        if members > 1:
            hops = 2 if kind == "mean" else 1
            await asyncio.sleep(hops * self.link.seconds(size / hops))
        await asyncio.sleep(self._timing.round_seconds / 2)
        return result


class VirtualPeers:
    """The other nodes, as one emulated trainer sees them; implements `Peers`."""

    def __init__(self, network: VirtualNetwork, index: int) -> None:
        self._network = network
        self._index = index

    @property
    def center(self) -> VirtualCenter:
        """Return the center."""
        return VirtualCenter(self._network, self._index)

    @property
    def index(self) -> int:
        """Return this trainer's index."""
        return self._index

    async def meet(self, grouping: Grouping = everyone) -> VirtualGroup:
        """Await the group of the round; raises PeerLost."""
        return VirtualGroup(self._network, await self._network.meet(self._index, grouping), self._index)


class VirtualCenter:
    """The center over one trainer's link; implements `Center`."""

    def __init__(self, network: VirtualNetwork, index: int) -> None:
        self._network = network
        self._index = index

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return the slices, in order."""
        return self._network.center.slices

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """Exchange one slice."""
        return await self._network.exchange(self._index, part, values)

    async def settle(self, part: Slice) -> torch.Tensor:
        """Ask again for the reply to the last exchange of a slice."""
        return await self._network.settle(self._index, part)


class VirtualGroup:
    """One trainer's side of a round; implements `Group`."""

    def __init__(self, network: VirtualNetwork, shared: MemoryRound, index: int) -> None:
        self._network = network
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
        return await self._network.reduce(self._shared, self._index, values, "mean", weight)

    async def exchange(self, values: torch.Tensor) -> torch.Tensor:
        """Await the partner's values; in a group of one, its own."""
        if len(self.members) > 2:
            raise ValueError(f"exchange in a group of {len(self.members)}; it takes two")
        return await self._network.reduce(self._shared, self._index, values, "exchange", 1.0)


def _size(part: Slice) -> int:
    return len(part) * FLOAT_BYTES
