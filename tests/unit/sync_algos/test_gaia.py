"""The significance filter: its closed form in float64, and that nothing is sent twice or never."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.sync_algos.base import AlgorithmState
from shadowsync.sync_algos.gaia import Gaia, GaiaOptions
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Action, Fault, Phase
from shadowsync.tests.support.sync.exact_run import Array
from shadowsync.tests.support.sync.exact_run import close as exact_close

close = partial(exact_close, atol=5e-6)
SIZE, ROUNDS = 64, 6


class Run:
    """A cluster whose workers step before each round and in it, and the same in float64."""

    def __init__(self, options: GaiaOptions, trainers: int, cls: type[Gaia] = Gaia, **more: Any) -> None:
        first = torch.randn(SIZE, generator=torch.Generator().manual_seed(41))
        self.cluster = MemoryCluster(lambda: cls(options), first, trainers, **more)
        self.cluster.on_phase = self._meanwhile
        self.random = np.random.default_rng(42)
        self.first: Array = first.numpy().astype(np.float64)
        self.exact = [self.first.copy() for _ in range(trainers)]
        self.snapshots = [one.copy() for one in self.exact]
        self.trained = np.zeros(SIZE)
        self.stepping = True

    def step(self, index: int) -> None:
        """Change few elements much and the others little."""
        size = np.where(self.random.random(SIZE) < 0.2, 0.5, 0.002)
        step = (size * self.random.normal(size=SIZE)).astype(np.float32)
        self.cluster.replicas[index].values.add_(torch.from_numpy(step))
        self.exact[index] = self.exact[index] + step
        self.trained = self.trained + step

    def _meanwhile(self, index: int, phase: Phase) -> None:
        if phase is Phase.GIVING and self.stepping:
            self.step(index)
        if phase is Phase.MET:
            self.snapshots[index] = self.exact[index].copy()


@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize("threshold", [0.0, 0.05])
@pytest.mark.parametrize("trainers", [1, 2, 5])
def test_closed_form(trainers: int, threshold: float, combine: Any) -> None:
    run = Run(GaiaOptions(threshold, combine), trainers)
    model, shares = run.first.copy(), []
    for number in range(ROUNDS):
        for index in range(trainers):
            run.step(index)
        assert run.cluster.round() == dict.fromkeys(range(trainers), True)
        changes = [snapshot - model for snapshot in run.snapshots]
        least = threshold / np.sqrt(number + 1) * np.abs(model)
        sent = [np.where(np.abs(change) > least, change, 0.0) for change in changes]
        shares.append(np.mean([np.count_nonzero(one) / SIZE for one in sent]))
        update = np.sum(sent, axis=0) / (1 if combine == "sum" else trainers)
        model = model + update
        for index in range(trainers):
            run.exact[index] = run.exact[index] + update - sent[index]
            close(run.cluster.replicas[index].values, run.exact[index])
            close(run.cluster.algorithms[index].global_model(), model)
    assert all(0.1 < share < 0.7 if threshold else share > 0.98 for share in shares), "the filter does filter"


def test_what_is_not_significant_is_sent_when_it_is() -> None:
    """Ten small steps add up to a change that travels at once; nothing of it is lost."""
    cluster = MemoryCluster(lambda: Gaia(GaiaOptions(0.1)), torch.ones(2), 2)
    moved = []
    for _ in range(20):
        cluster.replicas[0].values[0] += 0.01
        cluster.round()
        moved.append(float(cluster.algorithms[1].global_model()[0]))
        assert float(cluster.replicas[0].values[0]) == pytest.approx(1.0 + 0.01 * len(moved), rel=1e-5)
        assert float(cluster.replicas[1].values[0]) == pytest.approx(moved[-1], rel=1e-6)
    assert moved[0] == moved[1] == 1.0, "the first are not significant"
    jumps = [after - before for before, after in pairwise(moved) if after != before]
    assert jumps[0] == pytest.approx(0.05, abs=0.011)
    assert jumps[0] > jumps[-1] > 0.0, "the threshold shrinks"
    assert moved[-1] == pytest.approx(1.2, abs=0.1 / np.sqrt(20) * 1.2)


def _lost(run: Run) -> float:
    """How far the global model is from all that was trained, once all of it was sent."""
    run.stepping = False
    run.cluster.round()
    found = run.cluster.algorithms[0].global_model().numpy().astype(np.float64)
    return float(np.abs(found - run.first - run.trained).max())


@pytest.mark.parametrize("phase", list(Phase))
def test_a_round_that_ends_early_counts_nothing_twice_or_never(phase: Phase) -> None:
    """With every change significant, so that all that was trained must be in the model."""
    run = Run(GaiaOptions(0.0), 3)
    run.cluster.round()
    for _ in range(3):
        run.step(1)
        run.cluster.round([Fault(2, Action.LEAVE, 0, phase)])
        run.cluster.act(2, Action.JOIN)
    run.cluster.round()
    assert _lost(run) < 1e-5
    assert np.abs(run.trained).max() > 0.5, "the control: there is something to lose"


class TakesItsOldModelForTraining(Gaia):
    """The control: what its replica lacks of the newest model counts as its change."""

    def load_state(self, state: AlgorithmState) -> None:
        self._meeting = False
        super().load_state(state)


@pytest.mark.parametrize(("cls", "right"), [(Gaia, True), (TakesItsOldModelForTraining, False)])
def test_a_trainer_that_is_behind_takes_nothing_back(cls: type[Gaia], right: bool) -> None:
    """It was away for some rounds and trained meanwhile; the newest model is given to it when it meets."""
    run = Run(GaiaOptions(0.0), 3, cls)
    run.cluster.round()
    run.cluster.act(2, Action.LEAVE)
    for _ in range(3):
        run.step(2)
        run.cluster.round()
    run.cluster.act(2, Action.JOIN)
    # The first attempt fails, after the newest model was adopted.
    run.cluster.round([Fault(1, Action.LEAVE, 0, Phase.GIVING)])
    run.cluster.act(1, Action.JOIN)
    run.cluster.round()
    lost = _lost(run)
    assert lost < 1e-5 if right else lost > 0.1
    if right:
        for replica in run.cluster.replicas:
            close(replica.values, run.first + run.trained)


def test_a_resumed_trainer_still_has_to_send_what_it_had() -> None:
    """The replica and the model of a checkpoint differ by what was not significant."""
    make: Callable[[], Gaia] = lambda: Gaia(GaiaOptions(1.0))  # noqa: E731
    cluster = MemoryCluster(make, torch.ones(1), 1)
    cluster.replicas[0].values[0] = 1.5
    cluster.round()
    saved = cluster.algorithms[0].state()
    assert saved.tensors["global"].tolist() == [1.0]
    resumed = MemoryCluster(make, cluster.replicas[0].values, 1)
    resumed.algorithms[0].load_state(AlgorithmState(saved.completed_rounds, dict(saved.tensors)))
    resumed.replicas[0].values[0] += 0.6
    resumed.round()
    assert resumed.algorithms[0].global_model().tolist() == pytest.approx([2.1])


def test_a_replica_that_diverged_does_not_hide() -> None:
    cluster = MemoryCluster(lambda: Gaia(GaiaOptions(0.1)), torch.ones(2), 2)
    cluster.replicas[1].values[1] = float("nan")
    cluster.round()
    assert torch.isnan(cluster.algorithms[0].global_model()).tolist() == [False, True]
