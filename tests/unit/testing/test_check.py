"""The conformance suite: good algorithms pass, and each kind of wrong one fails the check that is for it."""
# ruff: noqa: ARG002  (what the wrong ones do not look at is what is wrong with them)

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
import torch
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, ModelOrigin, PeerLost, Peers, Replica, Slice
from shadowsync.sync_algos.bmuf import BMUF, BMUFOptions
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.sync_algos.gossip import Gossip
from shadowsync.sync_algos.ma import MA
from shadowsync.sync_algos.none import NoSync
from shadowsync.sync_algos.pull import PullOptions
from shadowsync.sync_algos.registry import ALGORITHMS
from shadowsync.testing import ConformanceError, check_algorithm
from shadowsync.testing.check import CHECKS
from shadowsync.testing.trial import Subject

CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in sorted(ALGORITHMS)),
    ("easgd", {"elastic_rate": 1.0}),
    ("easgd_symmetric", {"elastic_rate": 1.0}),
    ("ma", {"elastic_rate": 1.0}),
    ("ma", {"form": "keep", "weighted": True}),
    ("bmuf", {"block_momentum": 0.9, "eta": 0.5}),
    ("bmuf", {"block_momentum": 0.9, "nesterov": True, "form": "keep"}),
    ("gossip", {"form": "keep"}),
    ("ds_sync", {"group_size": 3, "reshuffle": False}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_built_in_algorithm_conforms(name: str, options: dict[str, Any]) -> None:
    check_algorithm(ALGORITHMS[name], options)


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


class Forgetful(BMUF):
    """Keeps its momentum to itself."""

    name = "forgetful"
    state_names = ("global",)

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
        delta = (values - center) / (1.0 + (values - center).norm())
        center.add_(delta)
        return delta


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
class Unchecked(PullOptions):
    """Takes any number."""

    def __post_init__(self) -> None:
        pass


class TakesAnything(Gossip):
    """Options that nobody checks."""

    name = "takes_anything"
    Options = Unchecked


@dataclasses.dataclass(frozen=True)
class Nameless(PullOptions):
    """Refuses without saying what."""

    def __post_init__(self) -> None:
        if self.elastic_rate != self.elastic_rate:
            raise ValueError("no number")


class SaysNoKey(Gossip):
    """Options that are refused without their name."""

    name = "says_no_key"
    Options = Nameless


@dataclasses.dataclass
class Thawed:
    """Not frozen."""

    elastic_rate: float = 0.5


class NotFrozen(Gossip):
    """Options that change on the way."""

    name = "not_frozen"
    Options = Thawed


WRONG: list[tuple[type[Algorithm], str, str]] = [
    (HalfApplied, "joining", "the replica as its workers left it"),
    (LosesNobody, "joining", "a round that raises nothing; found PeerLost"),
    (CallsItComplete, "joining", "a replica to which all was applied"),
    (Forgetful, "state", "the same replicas as without"),
    (CountsLostRounds, "joining", "the state as it was"),
    (NotFlat, "fixed point", "float32 [24], flat like the replica; found torch.float32 [1]"),
    (OtherNames, "fixed point", "a state of ['global', 'velocity']"),
    (Aliasing, "zero rounds", "in memory of its own"),
    (OwnGlobal, "progress", "one global model on all trainers"),
    (Drifting, "fixed point", "bit by bit; found trainer 1's replica off by"),
    (Diverging, "bounded", "replicas at most"),
    (WritesTheMean, "fixed point", "the mean that the group returned changed"),
    (WritesTheValues, "fixed point", "the values given to mean changed"),
    (Random, "repeatable", "the same bits"),
    (Waits, "fixed point", "does not end"),
    (NeverDone, "progress", "a complete round, since nobody is lost"),
    (DoesNothing, "progress", "none moved"),
    (SaysNothing, "fixed point", "True or False; found None"),
    (NotAlone, "one peer", "True, as of three; found False"),
    (WorseRound, "center lost", "False, since a slice is missing"),
    (AppliesLost, "center lost", "the lost slice as the workers left it"),
    (WritesTheRequest, "fixed point", "the values given to the center changed"),
    (Normalizes, "center rule", "the same as whole"),
    (NotShared, "shared instance", "another replica"),
    (NoCenterRule, "declaration", "a center_rule"),
    (UnheldGlobal, "declaration", "in a state that a joining trainer is given"),
    (CenterWithoutNeed, "declaration", "needs_center"),
    (TakesAnything, "options", "elastic_rate = nan"),
    (SaysNoKey, "options", 'ValueError("elastic_rate: ...")'),
    (NotFrozen, "declaration", "are not frozen"),
]


def test_what_the_wrong_ones_are_made_of_is_right() -> None:
    """The control: without what is wrong with them they pass."""
    check_algorithm(Pulled)


@pytest.mark.parametrize(("cls", "check", "said"), WRONG, ids=[cls.__name__ for cls, _, _ in WRONG])
def test_a_wrong_algorithm_fails(cls: type[Algorithm], check: str, said: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_algorithm(cls)
    error = caught.value
    assert error.check == check, str(error)
    assert said in str(error)
    assert str(error) == f"{check}: {error.step}: expected {error.expected}; found {error.found}"


def test_every_check_finds_something() -> None:
    """Also those that a wrong algorithm meets late: each check by itself, on one that only it finds."""
    found = {check for _, check, _ in WRONG}
    assert found | {"leaving", "death in mid-round"} == set(CHECKS)


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


@pytest.mark.parametrize("check", ["joining", "leaving", "death in mid-round"])
def test_each_way_of_going_is_checked(check: str) -> None:
    with pytest.raises(ConformanceError, match=check):
        CHECKS[check](Subject(OnlyDeath, {}))
    CHECKS[check](Subject(Pulled, {}))


def test_a_center_that_answers_with_itself() -> None:
    """Early checks find that too; here what the check for it says."""
    with pytest.raises(ConformanceError, match="a view of the center or of the request"):
        CHECKS["center rule"](Subject(AnswersItself, {}))
    CHECKS["center rule"](Subject(EASGD, {}))


def test_options_are_those_that_were_given() -> None:
    with pytest.raises(ConformanceError, match=r"sync\.options\.eta: 0 given"):
        check_algorithm(BMUF, {"eta": 0})
    with pytest.raises(ConformanceError, match="no subclass"):
        check_algorithm(dict)  # type: ignore[arg-type]
