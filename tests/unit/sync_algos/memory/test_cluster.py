"""Trainers in memory: who meets whom, what a fault does. Other tests stand on this."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from shadowsync.sync_algos.base import Algorithm, AlgorithmState, Group, PeerLost, Peers, Replica, Slice
from shadowsync.sync_algos.contract.grouping import Grouping, everyone, fixed, shuffled
from shadowsync.sync_algos.memory.cluster import MemoryCluster, RoundStuck
from shadowsync.sync_algos.memory.faults import Action, Fault, Phase

WHO = [0, 1, 2]


class Recorder(Algorithm):
    """Takes the mean of a number, and notes what it saw."""

    name = "recorder"
    summary = "for tests"
    needs_peers = True

    def __init__(self, grouping: Grouping = everyone) -> None:
        super().__init__(None)
        self.grouping = grouping
        self.seen: list[str] = []
        self.groups: list[tuple[int, ...]] = []
        self.numbers: list[int] = []
        self.completed = 0
        self.value = 0.0
        self.mark = 0.0

    async def round(self, replica: Replica, peers: Peers) -> bool:
        try:
            group: Group = await peers.meet(self.grouping)
            self.groups.append(group.members)
            self.numbers.append(group.round_number)
            values = replica.snapshot(replica.whole)
            result = await group.mean(values)
        except PeerLost as error:
            self.seen.append(str(error))
            return False
        replica.interpolate_(replica.whole, result, 1.0)
        self.completed += 1
        return True

    def state(self) -> AlgorithmState:
        return AlgorithmState(self.completed, {"value": torch.full((2,), self.completed + self.mark)})

    def load_state(self, state: AlgorithmState) -> None:
        self.completed = state.completed_rounds
        self.value = float(state.tensors["value"][0])


def _cluster(trainers: int = 3, grouping: Grouping = everyone, **more: Any) -> MemoryCluster:
    cluster = MemoryCluster(lambda: Recorder(grouping), torch.zeros(2), trainers, **more)
    for index, replica in enumerate(cluster.replicas):
        replica.values.fill_(2.0**index)
    return cluster


def _values(cluster: MemoryCluster) -> list[float]:
    return [float(replica.values[0]) for replica in cluster.replicas]


def _recorder(cluster: MemoryCluster, index: int) -> Recorder:
    found = cluster.algorithms[index]
    assert isinstance(found, Recorder)
    return found


def test_all_are_given_the_mean() -> None:
    cluster = _cluster(4)
    assert cluster.round() == {0: True, 1: True, 2: True, 3: True}
    assert _values(cluster) == [15 / 4] * 4
    assert all(_recorder(cluster, index).groups == [(0, 1, 2, 3)] for index in range(4))


def test_results_are_each_members_own() -> None:
    cluster = _cluster(2)
    kept: list[torch.Tensor] = []
    mean = cluster.replicas[0].interpolate_

    def spoil(part: Slice, target: torch.Tensor, rate: float) -> None:
        kept.append(target)
        mean(part, target, rate)
        target.zero_()

    cluster.replicas[0].interpolate_ = spoil  # type: ignore[method-assign]
    cluster.round()
    assert kept[0].tolist() == [0.0, 0.0]
    assert _values(cluster) == [1.5, 1.5]


def test_partners_meet_halfway() -> None:
    cluster = _cluster(3, shuffled(2), seed=5)
    ((alone,), pair) = sorted(shuffled(2)(WHO, 0, 5), key=len)
    assert cluster.round() == {0: True, 1: True, 2: True}
    expected = [1.0, 2.0, 4.0]
    expected[pair[0]] = expected[pair[1]] = (expected[pair[0]] + expected[pair[1]]) / 2
    assert _values(cluster) == expected
    assert _recorder(cluster, alone).groups == [(alone,)]


def test_rounds_are_numbered_and_groups_drawn_by_seed() -> None:
    groups = {}
    for seed in (1, 2):
        cluster = _cluster(6, shuffled(3), seed=seed)
        for number in range(4):
            cluster.round()
            found = {_recorder(cluster, index).groups[-1] for index in range(6)}
            assert found == set(shuffled(3)(range(6), number, seed))
        groups[seed] = [_recorder(cluster, index).groups for index in range(6)]
        assert _recorder(cluster, 0).numbers == [0, 1, 2, 3]
    assert groups[1] != groups[2]


@pytest.mark.parametrize(
    ("who", "phase"),
    [(who, phase) for who in WHO for phase in Phase if (who, phase) != (0, Phase.MEETING)],
)
@pytest.mark.parametrize("action", [Action.DIE, Action.LEAVE])
def test_one_goes(action: Action, who: int, phase: Phase) -> None:
    """Before the result is decided nobody is given one, afterwards everybody; the next round has two."""
    cluster = _cluster()
    others = [index for index in WHO if index != who]
    results = cluster.round([Fault(who, action, who, phase)])
    decided = phase is Phase.TAKING
    assert {index: results[index] for index in others} == dict.fromkeys(others, decided)
    assert results.get(who) == (None if action is Action.DIE else decided)
    given = [7 / 3 if decided else 2.0**index for index in WHO]
    assert [_values(cluster)[index] for index in others] == pytest.approx([given[index] for index in others])
    assert cluster.members == tuple(others)
    assert cluster.round() == dict.fromkeys(others, True)
    assert _recorder(cluster, others[0]).groups[-1] == tuple(others)
    assert _recorder(cluster, others[0]).numbers[-1] == 0, "a new set of trainers"


def test_the_first_that_goes_is_not_met() -> None:
    """The others come after it has gone, and meet without it in the same round."""
    cluster = _cluster()
    assert cluster.round([Fault(0, Action.DIE, 0, Phase.MEETING)]) == {1: True, 2: True}
    assert _values(cluster) == [1.0, 3.0, 3.0]


@pytest.mark.parametrize("phase", [Phase.MET, Phase.GIVING, Phase.TAKING])
def test_one_joins(phase: Phase) -> None:
    cluster = _cluster(3, members=(0, 1))
    cluster.round()
    assert cluster.round([Fault(2, Action.JOIN, 0, phase)]) == dict.fromkeys((0, 1), phase is Phase.TAKING)
    assert cluster.members == (0, 1, 2)
    assert cluster.round() == dict.fromkeys(WHO, True)


def test_who_is_behind_is_given_the_newest_state() -> None:
    cluster = _cluster(4, members=(0, 2))
    for _ in range(3):
        cluster.round()
    _recorder(cluster, 2).mark = 0.5
    cluster.act(1, Action.JOIN)
    cluster.act(3, Action.JOIN)
    cluster.round()
    assert [_recorder(cluster, index).completed for index in range(4)] == [4] * 4
    assert [_recorder(cluster, index).value for index in range(4)] == [0.0, 3.0, 0.0, 3.0], "from the lowest"


def test_who_is_no_member_meets_nobody() -> None:
    cluster = _cluster(3, members=(0, 1))
    assert cluster.round(who=[2]) == {2: False}
    assert _recorder(cluster, 2).seen == ["trainer 2 is not a member"]


def test_a_member_that_does_not_come_is_late() -> None:
    cluster = _cluster(2)
    assert cluster.round(who=[0]) == {0: False}
    assert cluster.round() == {0: True, 1: True}


class Broken(Recorder):
    """Fails in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    async def round(self, replica: Replica, peers: Peers) -> bool:
        values = replica.snapshot(replica.whole)
        if self.how == "waits":
            await asyncio.Event().wait()
        group = await peers.meet((lambda *_: ((0,),)) if self.how == "groups" else everyone)
        if self.how == "raises" and peers.index:
            raise KeyError("mine")
        await group.mean(values, -1.0 if self.how == "weighs" else 1.0)
        if self.how == "twice":
            await group.mean(values)
        return True


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("waits", RoundStuck, "the round of trainer 0 does not end"),
        ("groups", ValueError, r"the grouping made \(\(0,\),\) of the members \(0, 1\)"),
        ("raises", KeyError, "mine"),
        ("weighs", ValueError, "a weight of -1"),
        ("twice", RuntimeError, "gave its values twice"),
    ],
)
def test_what_the_contract_forbids_is_not_passed_over(how: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        MemoryCluster(lambda: Broken(how), torch.zeros(2), 2).round()


@pytest.mark.parametrize("grouping", [everyone, fixed(2), shuffled(2), shuffled(3)])
def test_finished_rounds_are_not_kept(grouping: Grouping) -> None:
    cluster = _cluster(6, grouping)
    for _ in range(50):
        cluster.round()
    assert len(cluster._meetings._rounds) <= 12
