"""Algorithms that break their contract with their peers. The names say how."""
# ruff: noqa: ARG002  (what the wrong ones do not look at is what is wrong with them)

from __future__ import annotations

import asyncio

import torch
from shadowsync.sync_algos.base import PeerLost, Peers, Replica, Slice
from shadowsync.sync_algos.ma import MA


class Pulled(MA):
    """What the wrong ones have in common; by itself as good as MA."""

    name = "pulled"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            mean = await group.mean(snapshot)
        except PeerLost:
            return self.lost(replica)
        return self.met(replica, peers, snapshot, mean)

    def lost(self, replica: Replica) -> bool:
        del replica
        return False

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        del peers
        self.options.pull(replica, snapshot, mean)
        return True


class HalfApplied(Pulled):
    """Moves its replica before it knows that the round comes to an end."""

    async def round(self, replica: Replica, peers: Peers) -> bool:
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            replica.add_(Slice(0, 5), snapshot[:5], -0.5)
            mean = await group.mean(snapshot)
        except PeerLost:
            return False
        replica.add_(Slice(0, 5), snapshot[:5], 0.5)
        replica.interpolate_(replica.whole, mean, 0.5)
        return True


class LosesNobody(Pulled):
    """Has not thought of a peer that is lost."""

    async def round(self, replica: Replica, peers: Peers) -> bool:
        group = await peers.meet()
        snapshot = replica.snapshot(replica.whole)
        return self.met(replica, peers, snapshot, await group.mean(snapshot))


class CallsItComplete(Pulled):
    """Says that a round is complete which is not."""

    def lost(self, replica: Replica) -> bool:
        del replica
        return True


class GivesUp(Pulled):
    """Once it has lost a peer it takes part in nothing any more."""

    given_up = False

    async def round(self, replica: Replica, peers: Peers) -> bool:
        return not self.given_up and await super().round(replica, peers)

    def lost(self, replica: Replica) -> bool:
        self.given_up = True
        return super().lost(replica)


class Drifting(Pulled):
    """Identical replicas do not stay identical."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        replica.interpolate_(replica.whole, mean * (1 + 1e-6 * peers.index), 0.5)
        return True


class Diverging(Pulled):
    """Goes away from the mean."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        replica.add_(replica.whole, mean - snapshot, -0.2)
        return True


class WritesTheMean(Pulled):
    """Works in the tensor that the peers may still need."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        replica.add_(replica.whole, mean.sub_(snapshot), 0.5)
        return True


class WritesTheValues(Pulled):
    """Works in the values that it gave, while they travel."""

    async def round(self, replica: Replica, peers: Peers) -> bool:
        try:
            group = await peers.meet()
            values = replica.snapshot(replica.whole)
            waiting = asyncio.ensure_future(group.mean(values))
            await asyncio.sleep(0)
            values.zero_()
            mean = await waiting
        except PeerLost:
            return False
        return self.met(replica, peers, values, mean)


class Random(Pulled):
    """Draws from somewhere else than the seed."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        replica.interpolate_(replica.whole, mean, float(torch.rand(())))
        return True


class Waits(Pulled):
    """Awaits what never comes."""

    async def round(self, replica: Replica, peers: Peers) -> bool:
        await asyncio.Event().wait()
        return await super().round(replica, peers)


class NeverDone(Pulled):
    """Never completes a round."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        return False


class DoesNothing(Pulled):
    """Calls complete what changed nothing."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        return True


class SaysNothing(Pulled):
    """Forgets to return."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        super().met(replica, peers, snapshot, mean)
        return None  # type: ignore[return-value]


class NotAlone(Pulled):
    """Thinks that there are always others."""

    def met(self, replica: Replica, peers: Peers, snapshot: torch.Tensor, mean: torch.Tensor) -> bool:
        if torch.equal(mean, snapshot):
            return False
        return super().met(replica, peers, snapshot, mean)


class OnlyDeath(Pulled):
    """Goes on alone where it must not: a member is missing, and it takes its own snapshot for the mean."""

    name = "only_death"
    went_wrong = False

    async def round(self, replica: Replica, peers: Peers) -> bool:
        try:
            group = await peers.meet()
            snapshot = replica.snapshot(replica.whole)
            try:
                mean = await group.mean(snapshot)
            except PeerLost:
                mean = snapshot * 1.5
        except PeerLost:
            return False
        return self.met(replica, peers, snapshot, mean)
