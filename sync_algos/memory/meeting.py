"""Rounds of trainers in memory: rendezvous, mean, regrouping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import torch

from ..base import PeerLost
from ..contract.grouping import Grouping

Adopt = Callable[[tuple[int, ...]], None]


class MemoryRound:
    """One group's round, shared by its members.

    The result is decided for all members at once, or for none.
    """

    def __init__(self, number: int, members: tuple[int, ...], adopt: Adopt) -> None:
        self.number = number
        self.members = members
        self._adopt = adopt
        self._arrived: set[int] = set()
        self._given: dict[int, tuple[torch.Tensor, float]] = {}
        self._results: dict[int, torch.Tensor] = {}
        self._met = asyncio.Event()
        self._decided = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End the round.

        Waiting and later callers get PeerLost, unless the result is decided.
        """
        self._ended = True
        self._met.set()
        self._decided.set()

    def waits_for(self, member: int) -> bool:
        """Return whether others are there already, and this member is not."""
        return member in self.members and bool(self._arrived) and member not in self._arrived

    async def arrive(self, member: int) -> None:
        """Wait until all members are there, with the newest state."""
        self._arrived.add(member)
        if self._arrived == set(self.members) and not self._ended:
            self._adopt(self.members)
            self._met.set()
        await self._met.wait()
        if self._ended:
            raise PeerLost(f"the round of {self.members} ended before all had met")

    def give(self, member: int, values: torch.Tensor, weight: float) -> None:
        """Hand over one member's values, for `decide`.

        Raises RuntimeError on a second call, ValueError for a negative weight, PeerLost if the round ended.
        """
        if member in self._given:
            raise RuntimeError(f"trainer {member} gave its values twice in one round")
        if not weight >= 0.0:
            raise ValueError(f"a weight of {weight} given; give at least 0")
        if self._ended:
            raise PeerLost(f"the round of {self.members} ended")
        self._given[member] = (values, weight)

    def decide(self) -> None:
        """Compute the mean once all values are there.

        Each member gets a copy.
        """
        if self._ended or self._decided.is_set() or len(self._given) < len(self.members):
            return
        values, weights = zip(*(self._given[member] for member in self.members), strict=True)
        mean = weighted_mean(values, weights)
        self._results = {member: mean.clone() for member in self.members}
        self._decided.set()

    async def result(self, member: int) -> torch.Tensor:
        """Await the result; raises PeerLost if there is none."""
        await self._decided.wait()
        if member not in self._results:
            raise PeerLost(f"the round of {self.members} ended without a result")
        return self._results[member]


class MemoryRendezvous:
    """Rounds of the present members; regrouping ends those in progress."""

    def __init__(self, seed: int, members: Sequence[int], adopt: Adopt) -> None:
        self._seed = seed
        self._adopt = adopt
        self._rounds: dict[tuple[int, tuple[int, ...]], MemoryRound] = {}
        self._counts: dict[int, int] = {}
        self.members: tuple[int, ...] = ()
        self.regroup(members)

    def regroup(self, members: Sequence[int]) -> None:
        """Set the members; end every round in progress, and count rounds from 0."""
        self.members = tuple(sorted(members))
        for memory_round in self._rounds.values():
            memory_round.end()
        self._rounds.clear()
        self._counts = dict.fromkeys(self.members, 0)

    def waits_for(self, member: int) -> bool:
        """Return whether other members wait for this one."""
        return any(memory_round.waits_for(member) for memory_round in self._rounds.values())

    async def meet(self, member: int, grouping: Grouping) -> MemoryRound:
        """Await the round of the group that `grouping` chooses for the member."""
        if member not in self._counts:
            raise PeerLost(f"trainer {member} is not a member")
        number = self._counts[member]
        self._counts[member] += 1
        oldest = min(self._counts.values()) - 1
        self._rounds = {key: self._rounds[key] for key in self._rounds if key[0] >= oldest}
        groups = grouping(self.members, number, self._seed)
        if sorted(chain.from_iterable(groups)) != list(self.members):
            raise ValueError(f"the grouping made {groups} of the members {self.members}")
        group = next(group for group in groups if member in group)
        if (number, group) not in self._rounds:
            self._rounds[number, group] = MemoryRound(number, tuple(sorted(group)), self._adopt)
        memory_round = self._rounds[number, group]
        await memory_round.arrive(member)
        return memory_round


def weighted_mean(values: Sequence[torch.Tensor], weights: Sequence[float]) -> torch.Tensor:
    """Return the weighted mean, float32 [n], summed in float64.

    If all weights are 0, they count as equal.
    """
    if not any(weights):
        weights = [1.0] * len(values)
    total = torch.zeros(values[0].numel(), dtype=torch.float64)
    for tensor, weight in zip(values, weights, strict=True):
        total.add_(tensor.double(), alpha=weight)
    return total.div_(sum(weights)).float()
