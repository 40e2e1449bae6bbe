"""Algorithms that break their contract with a center, or are not what they declare."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

import torch
from shadowsync.sync_algos.base import Algorithm, Merge, ModelOrigin, PeerLost, Peers, Replica, Slice
from shadowsync.sync_algos.decoupled import Decoupled
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.sync_algos.ma import MA, MAOptions
from shadowsync.sync_algos.none import NoSync


class WorseRound(EASGD):
    """The first slice that fails leaves the others without an answer, and the round is called complete."""

    name = "worse_round"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        for part in peers.center.slices:
            try:
                delta = await peers.center.exchange(part, replica.snapshot(part))
            except PeerLost:
                continue
            replica.add_(part, delta, -0.5)
        return True


class AppliesLost(EASGD):
    """Moves the replica before the center has answered."""

    name = "applies_lost"

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        values = replica.snapshot(part)
        replica.add_(part, values, 1e-3)
        try:
            delta = await peers.center.exchange(part, values)
        except PeerLost:
            return False
        replica.add_(part, values, -1e-3)
        replica.add_(part, delta, -0.5)
        return True


class AllOrNothing(EASGD):
    """Throws away slices that came back whole, since another was lost; the center has moved for them."""

    name = "all_or_nothing"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        values = replica.snapshot(replica.whole)
        waiting = [
            peers.center.exchange(part, values[part.start : part.stop]) for part in peers.center.slices
        ]
        try:
            deltas = await asyncio.gather(*waiting)
        except PeerLost:
            return False
        replica.add_(replica.whole, torch.cat(deltas), -0.5)
        return True


class WritesTheRequest(EASGD):
    """The center's half works in what was sent."""

    name = "writes_the_request"

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        delta = values.sub_(center).mul_(0.5)
        center.add_(delta)
        return delta.clone()


class AnswersItself(EASGD):
    """The center's half answers with the center."""

    name = "answers_itself"

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        super().center_rule(center, values)
        return center


class Normalizes(EASGD):
    """The center's half depends on how the buffer is cut."""

    name = "normalizes"

    def center_rule(self, center: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        delta = torch.div(values - center, 1.0 + float((values - center).norm()))
        center.add_(delta)
        return delta


class NormalizesMerges(Decoupled):
    """A merge depends on how the buffer is cut."""

    name = "normalizes_merges"

    def merge_rule(
        self, center: torch.Tensor, state: Mapping[str, torch.Tensor], mean: torch.Tensor, merge: Merge
    ) -> None:
        super().merge_rule(center, state, mean / (1.0 + mean.norm()), merge)


class DropsLateWork(Decoupled):
    """What was trained in a long time without an answer never reaches the center."""

    name = "drops_late_work"

    def start(self, replica: Replica) -> None:
        super().start(replica)
        self._seen_examples = replica.trained_examples

    async def round(self, replica: Replica, peers: Peers) -> bool:
        if replica.trained_examples - self._seen_examples > 90:
            self.start(replica)
        self._seen_examples = replica.trained_examples
        return await super().round(replica, peers)


class NoMergeRule(EASGD):
    """Is said to merge, and has no rule for it."""

    name = "no_merge_rule"
    counts_once = True
    merges = True


class NotShared(EASGD):
    """Keeps the replica on the instance, where another worker's round puts its own."""

    name = "not_shared"

    async def round(self, replica: Replica, peers: Peers) -> bool:
        self.replica = replica
        return await super().round(replica, peers)

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        try:
            delta = await peers.center.exchange(part, replica.snapshot(part))
        except PeerLost:
            return False
        self.replica.add_(part, delta, -0.5)
        return True


class NoCenterRule(Algorithm):
    """Needs a center that does nothing."""

    name = "no_center_rule"
    summary = "wrong"
    needs_center = True
    model = ModelOrigin.CENTER

    async def round(self, replica: Replica, peers: Peers) -> bool:
        del replica, peers
        return True


class UnheldGlobal(MA):
    """A global model that a trainer which joins is not given."""

    name = "unheld_global"
    model = ModelOrigin.GLOBAL

    def global_model(self) -> torch.Tensor:
        return torch.zeros(1)


class CenterWithoutNeed(NoSync):
    """Says that its model is a center that it does not need."""

    name = "center_without_need"
    model = ModelOrigin.CENTER


@dataclasses.dataclass(frozen=True)
class Unchecked(MAOptions):
    """Takes any number."""

    def __post_init__(self) -> None:
        pass


class TakesAnything(MA):
    """Options that nobody checks."""

    name = "takes_anything"
    Options = Unchecked


@dataclasses.dataclass(frozen=True)
class Nameless(MAOptions):
    """Refuses without saying what."""

    def __post_init__(self) -> None:
        if self.elastic_rate != self.elastic_rate:
            raise ValueError("no number")


class SaysNoKey(MA):
    """Options that are refused without their name."""

    name = "says_no_key"
    Options = Nameless


@dataclasses.dataclass
class Thawed:
    """Not frozen."""

    elastic_rate: float = 0.5


class NotFrozen(MA):
    """Options that change on the way."""

    name = "not_frozen"
    Options = Thawed  # type: ignore[assignment]
