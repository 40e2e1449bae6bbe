"""The links between emulated trainers: messages of center and groups take virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import torch

from ...pipeline.config.job import Job
from ...sync_algos.base import Algorithm, Slice
from ...sync_algos.contract.grouping import Grouping
from ...sync_algos.contract.merge_window import MergeWindow
from ...sync_algos.memory.center import MemoryCenter
from ...sync_algos.memory.meeting import MemoryRendezvous, MemoryRound
from .coding import LinkCoding
from .timing import Timing

FLOAT_BYTES = 4


@dataclass(frozen=True)
class EmulatedLink:
    """A link: the time that bytes take to the other end."""

    delay_seconds: float = 0.0
    bytes_per_second: float | None = None

    @classmethod
    def of(cls, job: Job) -> EmulatedLink:
        """Return the link that `[network]` of a job emulates."""
        slow = job.network.slow
        return cls() if slow is None else cls(slow.delay_seconds, slow.bytes_per_second)

    def seconds(self, sent_bytes: float) -> float:
        """Return the seconds from one end to the other."""
        rate = self.bytes_per_second
        return self.delay_seconds + (0.0 if rate is None else sent_bytes / rate)


class VirtualNetwork:
    """Emulated center and groups of all trainers; implements `Hub`.

    Attributes:
        algorithm: the instance whose rule the center applies.
        coding: what the job's codecs make of what is sent.
        moved_bytes: bytes sent and received over a trainer's synchronization links, by trainer.
    """

    def __init__(self, job: Job, timing: Timing, make: Callable[[], Algorithm], first: torch.Tensor) -> None:
        self.link = EmulatedLink.of(job)
        self.algorithm = algorithm = make()
        self.coding = LinkCoding(job, deltas=algorithm.counts_once)
        self.center = MemoryCenter(algorithm, first, max(1, job.sync_nodes))
        self.center.on_contribution = self._contributed
        self._windows = {part: MergeWindow(algorithm.merge_terms) for part in self.center.slices}
        self._closing: dict[Slice, asyncio.TimerHandle] = {}
        self.moved_bytes = [0] * job.trainer.count
        self._between_trainers = algorithm.needs_peers
        self._timing = timing
        self._trainers = range(1 if job.one_trainer_begins else job.trainer.count)
        self._meetings = MemoryRendezvous(job.run.seed, self._trainers, lambda _: None)
        self._free_at: dict[Slice, float] = {}
        self._arrived = asyncio.Event()

    @property
    def sync_bytes(self) -> int:
        """Return the bytes of all links, each counted once."""
        # Bytes between two trainers are counted at both.
        return sum(self.moved_bytes) // (2 if self._between_trainers else 1)

    def admit(self, trainers: int) -> None:
        """Make so many trainers members of the groups; rounds that are under way end."""
        self._trainers = range(trainers)
        self.end_rounds()

    def end_rounds(self) -> None:
        """End the rounds of groups that are under way; the trainers stay members."""
        self._meetings.regroup(self._trainers)

    def waits_for(self, index: int) -> bool:
        """Return whether other trainers wait for this one."""
        return self._meetings.waits_for(index)

    async def awaited(self, index: int) -> None:
        """Return when another trainer waits for this one."""
        while not self.waits_for(index):
            await self._arrived.wait()

    def _announce(self) -> None:
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    async def meet(self, index: int, grouping: Grouping) -> MemoryRound:
        """Await the round of a trainer's group."""
        if self._lasts(index, 0.0):
            await asyncio.sleep(self._lasts(index, 0.0))
        asyncio.get_running_loop().call_soon(self._announce)
        memory_round = await self._meetings.meet(index, grouping)
        await asyncio.sleep(self.link.delay_seconds)
        return memory_round

    async def exchange(
        self, index: int, part: Slice, values: torch.Tensor, examples: int | None
    ) -> torch.Tensor:
        """Exchange a slice with its sync node, which serves one at a time."""
        sent, up_bytes = self.coding.to_center(index, part, values)
        return await self._request(
            index, part, up_bytes, lambda: self.center.exchange(part, sent, examples, member=index)
        )

    async def resume_exchange(self, index: int, part: Slice) -> torch.Tensor:
        """Ask again for the reply to a trainer's last exchange of a slice."""
        up_bytes = len(part) * FLOAT_BYTES
        return await self._request(index, part, up_bytes, lambda: self.center.resume_exchange(part, index))

    def lost(self, index: int, part: Slice) -> torch.Tensor:
        """Return what the codec has lost of the trainer's last exchange of a slice."""
        return self.coding.lost(index, part)

    async def _request(
        self, index: int, part: Slice, up_bytes: int, request: Callable[[], Awaitable[torch.Tensor]]
    ) -> torch.Tensor:
        await asyncio.sleep(self._lasts(index, self._timing.round_seconds / 2) + self.link.seconds(up_bytes))
        now = asyncio.get_running_loop().time()
        begun = max(now, self._free_at.get(part, 0.0))
        self._free_at[part] = begun + self._timing.center_seconds
        await asyncio.sleep(begun + self._timing.center_seconds - now)
        reply, down_bytes = self.coding.from_center(index, part, await request())
        self.moved_bytes[index] += up_bytes + down_bytes
        on_link = self.link.seconds(down_bytes)
        arrives = asyncio.get_running_loop().time() + on_link
        await asyncio.sleep(on_link + self._timing.lasts(index, arrives, self._timing.round_seconds / 2))
        return reply

    def _lasts(self, index: int, seconds: float) -> float:
        """Return how long a trainer takes from now on for work of so many seconds."""
        return self._timing.lasts(index, asyncio.get_running_loop().time(), seconds)

    def _contributed(self, part: Slice, index: int, examples: int) -> None:
        """Record a trainer's contribution, and close the merge if it is due."""
        self._windows[part].contributed(index, examples, asyncio.get_running_loop().time())
        self._close_due_merge(part)

    def _close_due_merge(self, part: Slice) -> None:
        loop, window = asyncio.get_running_loop(), self._windows[part]
        if (timer := self._closing.pop(part, None)) is not None:
            timer.cancel()
        closes_at = window.closes_at(loop.time())
        if closes_at <= loop.time():
            trainers = window.trainers(loop.time())
            window.close(loop.time())
            self.center.merge(part, trainers)
        elif window.is_open:
            self._closing[part] = loop.call_at(closes_at, self._close_due_merge, part)

    async def give(
        self, index: int, shared: MemoryRound, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """All-reduce in the trainer's group; return result and arrival time.

        Each of n members sends and receives n - 1 slices of 1/n of the values, twice.
        """
        members = len(shared.members)
        share = (members - 1) / members
        await asyncio.sleep(self._lasts(index, self._timing.round_seconds / 2))
        sent, up_bytes = self.coding.to_peers(index, shared.members, values)
        shared.give(index, sent, weight)
        shared.decide()
        result, down_bytes = self.coding.from_peers(index, await shared.result(index))
        self.moved_bytes[index] += 2 * round(share * (up_bytes + down_bytes))
        if members > 1:
            await asyncio.sleep(self.link.seconds(share * up_bytes) + self.link.seconds(share * down_bytes))
        await asyncio.sleep(self._lasts(index, self._timing.round_seconds / 2))
        return result
