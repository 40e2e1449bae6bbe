"""The delta-summing center: its closed form in float64, and deltas that count once whatever is lost."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import shadowsync
import torch
from shadowsync.sync_algos.base import Peers, Replica, Slice
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Phase
from shadowsync.tests.support.sync.exact_run import Array
from shadowsync.tests.support.sync.exact_run import close as exact_close

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.algorithms.downpour import Downpour, DownpourOptions

close = partial(exact_close, atol=5e-6)
SIZE, ROUNDS = 11, 6
RATES = [0.25, 1.0]


class Run:
    """A cluster whose workers step before each round and in it, and its closed form in float64."""

    def __init__(self, rate: float, trainers: int, parts: int = 1, cls: type[Downpour] = Downpour) -> None:
        self.rate, self.trainers = rate, trainers
        first = torch.randn(SIZE, generator=torch.Generator().manual_seed(31))
        self.cluster = MemoryCluster(lambda: cls(DownpourOptions(rate)), first, trainers, parts=parts)
        self.random = np.random.default_rng(32)
        self.center = first.numpy().astype(np.float64)
        self.trained = np.zeros(SIZE)
        self.since = [np.zeros(SIZE) for _ in range(trainers)]
        self.stepping = True
        self.cluster.on_phase = self._meanwhile
        self._meant: dict[int, Array] = {}

    def round(self, who: int) -> bool:
        """One trainer's round; `since` is then what it trained after its snapshot."""
        self._step(who)
        return self.cluster.round(who=[who])[who]

    def completed(self, who: int) -> None:
        """The closed form of a complete round: the center adds the delta, the replica goes on from it."""
        during = self._meant.pop(who)
        self.center = self.center + self.rate * (self.since[who] - during)
        self.since[who] = during
        close(self.cluster.center.values, self.center)
        close(self.cluster.replicas[who].values, self.center + during)

    def _meanwhile(self, index: int, phase: Phase) -> None:
        if phase is Phase.GIVING and self.stepping:
            self._meant[index] = self._meant.get(index, np.zeros(SIZE)) + self._step(index)

    def _step(self, index: int) -> Array:
        step = self.random.normal(size=SIZE).astype(np.float32)
        self.cluster.replicas[index].values.add_(torch.from_numpy(step))
        exact: Array = step.astype(np.float64)
        self.since[index] = self.since[index] + exact
        self.trained = self.trained + exact
        return exact


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("trainers", [1, 3])
def test_closed_form(rate: float, trainers: int) -> None:
    run = Run(rate, trainers)
    for number in range(ROUNDS):
        assert run.round(number % trainers)
        run.completed(number % trainers)


@pytest.mark.parametrize("parts", [1, 4])
def test_all_progress_is_in_the_center(parts: int) -> None:
    """With all trainers at once, after a last round in which nobody trains."""
    run = Run(1.0, 3, parts)
    first = run.center.copy()
    for _ in range(ROUNDS):
        run.cluster.round()
    run.stepping = False
    run.cluster.round()
    close(run.cluster.center.values, first + run.trained)
    run.cluster.round()
    for replica in run.cluster.replicas:
        close(replica.values, first + run.trained)
    assert np.abs(run.trained).max() > 1.0, "the control: there is something to lose"


class CountsTwice(Downpour):
    """The control: a delta without a reply is sent again as a new one."""

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        self._unanswered.pop(part, None)
        return await super()._exchange(replica, peers, part)


class CountsNever(Downpour):
    """The control: a delta without a reply is taken for added."""

    async def _exchange(self, replica: Replica, peers: Peers, part: Slice) -> bool:
        lost = self._unanswered.pop(part, None)
        if lost is not None:
            self._base[part.start : part.stop] = lost[0]
        return await super()._exchange(replica, peers, part)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("cls", "after_applying", "right"),
    [
        (Downpour, False, True),
        (Downpour, True, True),
        (CountsTwice, False, True),
        (CountsTwice, True, False),
        (CountsNever, False, False),
        (CountsNever, True, True),
    ],
)
def test_a_lost_message_counts_a_delta_once(
    cls: type[Downpour], after_applying: bool, times: int, right: bool
) -> None:
    """The request or the reply is lost; without resuming, one of the two counts twice or never."""
    run = Run(1.0, 2, parts=2, cls=cls)
    first = run.center.copy()
    lost, other = run.cluster.center.slices
    run.cluster.round()
    for _ in range(times):
        run.cluster.center.silence(lost, after_applying=after_applying)
        cut = slice(lost.start, lost.stop)
        run.stepping = False
        before, trained = run.cluster.replicas[0].values.clone(), run.trained.copy()
        assert run.round(0) is False
        steps = torch.from_numpy((run.trained - trained).astype(np.float32))
        assert torch.equal(run.cluster.replicas[0].values[cut], (before + steps)[cut])
        run.stepping = True
        assert run.round(1) is True, "the other trainer goes on"
    run.stepping = False
    for who in (0, 1, 0):
        assert run.cluster.round(who=[who]) == {who: True}
    found = run.cluster.center.values.numpy().astype(np.float64) - first
    close(torch.from_numpy(found[other.start : other.stop]), run.trained[other.start : other.stop])
    wrong = np.abs(found - run.trained)[lost.start : lost.stop].max()
    assert wrong < 1e-5 if right else wrong > 0.1
