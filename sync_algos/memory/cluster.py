"""Trainers in memory, as coroutines of one loop.

Any trainer may die, leave or join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import torch

from ..base import Algorithm, AlgorithmState, Peers, Slice
from ..contract.grouping import Grouping
from .center import MemoryCenter, MemoryReplica
from .faults import Action, Fault, Phase
from .meeting import MemoryRendezvous, MemoryRound
from .peers import MemoryPeers

# There is no clock: a round in memory ends after a few turns of the loop, or never.
TURNS = 500


class RoundStuck(RuntimeError):
    """A round waits for something that never comes."""


class MemoryCluster:
    """Run rounds of `trainers` replicas, each with its own algorithm instance.

    Each replica starts as `first`, float32 [n]. `members` are the trainers that take part at the beginning,
    all by default. `on_phase` is called with a trainer's number and the phase that it reaches; a test changes
    replicas there as workers would.
    """

    def __init__(
        self,
        make: Callable[[], Algorithm],
        first: torch.Tensor,
        trainers: int,
        *,
        members: Sequence[int] | None = None,
        parts: int = 1,
        seed: int = 1,
    ) -> None:
        self.replicas = [MemoryReplica(first) for _ in range(trainers)]
        self.algorithms = [make() for _ in range(trainers)]
        self.center = MemoryCenter(make(), first, parts)
        self.center.on_contribution = self._contributed
        self._in_round: set[int] = set()
        self._contributors: set[int] = set()
        self.peers: list[Peers] = [MemoryPeers(self, index) for index in range(trainers)]
        self.on_phase: Callable[[int, Phase], None] = _nothing
        self._meetings = MemoryRendezvous(seed, range(trainers) if members is None else members, self._adopt)
        self._dead: set[int] = set()
        self._faults: list[Fault] = []
        for algorithm, replica in zip(self.algorithms, self.replicas, strict=True):
            algorithm.start(replica)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the trainers that take part now, ascending."""
        return self._meetings.members

    def act(self, who: int, action: Action) -> None:
        """Make a trainer die, leave or join; ends every round in progress."""
        if action is Action.DIE:
            self._dead.add(who)
        joining = {who} if action is Action.JOIN else set()
        self._meetings.regroup(sorted(set(self.members) - {who} | joining))
        for part in self.center.slices:
            self._merge_if_complete(part)

    def regroup(self) -> None:
        """Regroup the same members: ends every round in progress, counts from 0, and closes open merges."""
        self._meetings.regroup(self.members)
        for part in self.center.slices:
            self._merge(part)

    def round(self, faults: Iterable[Fault] = (), who: Iterable[int] | None = None) -> dict[int, bool]:
        """Run one round of each member, or of `who`, at once.

        Returns the survivors' results. A trainer that waits for a member whose round is not run gets
        PeerLost, as for a late member. Raises RoundStuck, and whatever an algorithm raised.
        """
        self._faults = list(faults)
        return asyncio.run(self._round(self.members if who is None else tuple(who)))

    async def _round(self, who: tuple[int, ...]) -> dict[int, bool]:
        self._in_round = set(who)
        tasks = {
            index: asyncio.create_task(self.algorithms[index].round(self.replicas[index], self.peers[index]))
            for index in who
        }
        await self._turn(tasks)
        if not self._over(tasks):
            self.regroup()
            await self._turn(tasks)
        stuck = {index for index, task in tasks.items() if self._lives(index) and not task.done()}
        for task in tasks.values():
            task.cancel()
        ended = dict(zip(tasks, await asyncio.gather(*tasks.values(), return_exceptions=True), strict=True))
        results = {}
        for index, result in ended.items():
            if not self._lives(index) or index in stuck:
                continue
            if isinstance(result, BaseException):
                raise result
            results[index] = result
        if stuck:
            raise RoundStuck(f"the round of trainer {min(stuck)} does not end")
        return results

    async def _turn(self, tasks: Mapping[int, asyncio.Task[bool]]) -> None:
        turns = 0
        while turns < TURNS and not self._over(tasks):
            await asyncio.sleep(0)
            turns += 1

    def _over(self, tasks: Mapping[int, asyncio.Task[bool]]) -> bool:
        """Return whether all living trainers are done, or one has failed."""
        living = [task for index, task in tasks.items() if self._lives(index)]
        failed = any(task.done() and (task.cancelled() or task.exception()) for task in living)
        return failed or all(task.done() for task in living)

    def _lives(self, index: int) -> bool:
        return index not in self._dead

    async def _reach(self, index: int, phase: Phase) -> None:
        """Do a phase's planned faults; never return to a dead trainer."""
        self.on_phase(index, phase)
        due = [fault for fault in self._faults if (fault.at, fault.phase) == (index, phase)]
        for fault in due:
            self._faults.remove(fault)
            self.act(fault.who, fault.action)
        if not self._lives(index):
            await asyncio.Event().wait()

    async def meet(self, index: int, grouping: Grouping) -> MemoryRound:
        """Await the round of a trainer's group."""
        await self._reach(index, Phase.MEETING)
        memory_round = await self._meetings.meet(index, grouping)
        await self._reach(index, Phase.MET)
        return memory_round

    async def give(
        self, index: int, shared: MemoryRound, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """Give a trainer's values to its round, and await the result."""
        shared.give(index, values, weight)
        await self._reach(index, Phase.GIVING)
        shared.decide()
        result = await shared.result(index)
        await self._reach(index, Phase.TAKING)
        return result

    async def exchange(
        self, index: int, part: Slice, values: torch.Tensor, examples: int | None
    ) -> torch.Tensor:
        """Exchange a slice with the center."""
        return await self._request(index, lambda: self.center.exchange(part, values, examples, member=index))

    async def resume_exchange(self, index: int, part: Slice) -> torch.Tensor:
        """Await the reply to the trainer's last exchange of a slice."""
        return await self._request(index, lambda: self.center.resume_exchange(part, index))

    def lost(self, index: int, part: Slice) -> torch.Tensor:  # noqa: ARG002
        """Return 0: nothing is encoded."""
        return torch.zeros(1)

    async def _request(self, index: int, request: Callable[[], Awaitable[torch.Tensor]]) -> torch.Tensor:
        await self._reach(index, Phase.GIVING)
        await asyncio.sleep(0)
        reply = await request()
        await self._reach(index, Phase.TAKING)
        return reply

    def _contributed(self, part: Slice, member: int, examples: int) -> None:  # noqa: ARG002
        self._merge_if_complete(part)

    def _merge_if_complete(self, part: Slice) -> None:
        """Close a slice's merge once all living trainers whose round is run have contributed."""
        if self.center.contributors(part) >= self._in_round - self._dead:
            self._merge(part)

    def _merge(self, part: Slice) -> None:
        """Close a slice's merge; a member takes part from its first contribution on."""
        self._contributors.update(self.center.contributors(part))
        self.center.merge(part, len(self._contributors.intersection(self.members)))

    def _adopt(self, members: tuple[int, ...]) -> None:
        """Copy the state with the most completed rounds to members that lag."""
        completed = {member: self.algorithms[member].state().completed_rounds for member in members}
        newest = max(completed.values())
        source = min(member for member in members if completed[member] == newest)
        for member in members:
            if completed[member] < newest:
                tensors = self.algorithms[source].state().tensors
                copies = {name: tensor.clone() for name, tensor in tensors.items()}
                self.algorithms[member].load_state(AlgorithmState(newest, copies))


def _nothing(index: int, phase: Phase) -> None:
    """Do nothing: nobody trains meanwhile."""
