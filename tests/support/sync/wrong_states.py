"""Algorithms that break their contract about what they remember."""

from __future__ import annotations

import dataclasses

import torch
from shadowsync.sync_algos.base import AlgorithmState, Peers, Replica
from shadowsync.sync_algos.bmuf import BMUF, BMUFOptions


class Forgetful(BMUF):
    """Keeps its momentum to itself."""

    name = "forgetful"
    state_names = ("global",)  # type: ignore[assignment]

    def __init__(self, options: BMUFOptions) -> None:
        super().__init__(dataclasses.replace(options, block_momentum=0.5))

    def state(self) -> AlgorithmState:
        return AlgorithmState(self._completed, {"global": self._global})

    def load_state(self, state: AlgorithmState) -> None:
        self._completed, self._global = state.completed_rounds, state.tensors["global"]


class CountsLostRounds(BMUF):
    """Its state moves on in a round that ended early."""

    name = "counts_lost_rounds"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        complete = await super().round(replica, peers)
        self._completed += not complete
        return complete


class CountsTwice(BMUF):
    """Its state moves on by two rounds for one."""

    name = "counts_twice"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        complete = await super().round(replica, peers)
        self._completed += complete
        return complete


class ForgetsTheCount(BMUF):
    """Takes over tensors, and not how many rounds they have behind them."""

    name = "forgets_the_count"

    def __init__(self, options: BMUFOptions) -> None:
        # A momentum that is warmed up depends on the count, and replicas would differ first.
        super().__init__(dataclasses.replace(options, block_momentum=0.5))

    def load_state(self, state: AlgorithmState) -> None:
        super().load_state(AlgorithmState(0, state.tensors))


class NotFlat(BMUF):
    """A state that is not like the replica."""

    name = "not_flat"

    def state(self) -> AlgorithmState:
        return AlgorithmState(self._completed, {"global": self._global, "momentum": torch.zeros(1)})


class OtherNames(BMUF):
    """A state with other names than it declares."""

    name = "other_names"
    state_names = ("global", "velocity")


class Aliasing(BMUF):
    """Its global model is a view of the replica."""

    name = "aliasing"

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._global = replica.values  # type: ignore[attr-defined]


class OwnGlobal(BMUF):
    """Every trainer has a global model of its own."""

    name = "own_global"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        complete = await super().round(replica, peers)
        if complete:
            self._global.add_(replica.snapshot(replica.whole) - self._global, alpha=0.1)
        return complete
