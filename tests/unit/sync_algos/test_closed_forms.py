"""Every rule among trainers against its closed form in float64, over several rounds with training in them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.sync_algos.bmuf import BMUF, BMUFOptions
from shadowsync.sync_algos.contract.grouping import fixed, shuffled
from shadowsync.sync_algos.ds_sync import DSSync, DSSyncOptions
from shadowsync.sync_algos.ma import MA, MAOptions
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Action
from shadowsync.sync_algos.tree import Tree, TreeOptions
from shadowsync.tests.support.sync.exact_run import ROUNDS, SEED, SIZE, Run, close

RATES = [0.25, 1.0]
FORMS = ["interpolate", "keep"]
TRAINERS = [1, 2, 3, 5]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("trainers", TRAINERS)
def test_ma(trainers: int, rate: float, form: Any) -> None:
    options = MAOptions(elastic_rate=rate, form=form)
    run = Run(lambda: MA(options), trainers)
    for _ in run.rounds():
        mean = sum(run.snapshots) / trainers
        for index in range(trainers):
            run.pull(index, np.asarray(mean), options)
        run.check()


def test_weighted_ma() -> None:
    """Weighed by what was trained since the last completed round; also what was trained in that one."""
    options = MAOptions(weighted=True)
    run = Run(lambda: MA(options), 3)
    during = [0.0, 0.0, 0.0]
    plain = []
    for _ in run.rounds():
        # The step in the round came after the snapshot: it is in the next one.
        weights = np.array([now - 8 + before for now, before in zip(run.trained, during, strict=True)])
        assert weights.min() >= 0
        during = [8.0] * 3
        mean = np.average(run.snapshots, axis=0, weights=weights)
        plain.append(float(np.abs(mean - np.mean(run.snapshots, axis=0)).max()))
        for index in range(3):
            run.pull(index, mean, options)
        run.check()
    assert min(plain) > 1e-3, "the control: in every round an unweighted mean is another one"


def test_if_nobody_trained_all_count_the_same() -> None:
    cluster = MemoryCluster(lambda: MA(MAOptions(weighted=True, elastic_rate=1.0)), torch.zeros(3), 2)
    cluster.replicas[0].values.fill_(4.0)
    cluster.round()
    assert [replica.values.tolist() for replica in cluster.replicas] == [[2.0] * 3] * 2


def test_a_batch_that_a_device_takes_back_weighs_nothing() -> None:
    """It was counted before the last round, and found bad after it: no weight is below zero."""
    cluster = MemoryCluster(lambda: MA(MAOptions(weighted=True, elastic_rate=1.0)), torch.zeros(1), 2)
    first, second = cluster.replicas
    first.trained_examples = second.trained_examples = 8
    cluster.round()
    first.values.fill_(4.0)
    second.values.fill_(1.0)
    first.trained_examples, second.trained_examples = 0, 24
    cluster.round()
    assert [replica.values.tolist() for replica in cluster.replicas] == [[1.0]] * 2


def test_an_incomplete_round_still_weighs() -> None:
    """What was trained before a round that ended early counts in the next one."""
    cluster = MemoryCluster(lambda: MA(MAOptions(weighted=True, elastic_rate=1.0)), torch.zeros(1), 2)
    cluster.replicas[0].values.fill_(4.0)
    cluster.replicas[0].trained_examples = 30
    assert cluster.round(who=[0]) == {0: False}
    cluster.replicas[1].trained_examples = 10
    cluster.regroup()
    cluster.round()
    assert cluster.replicas[1].values.tolist() == [3.0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("trainers", [1, 3])
@pytest.mark.parametrize(
    "momentum",
    [{"eta": 0.7, "block_momentum": 0.0}, {"block_momentum": 0.6}, {"block_momentum": 0.6, "nesterov": True}],
    ids=["none", "plain", "nesterov"],
)
def test_bmuf(trainers: int, rate: float, form: Any, momentum: dict[str, Any]) -> None:
    """Chen and Huo's filter: W_g is the global model, W_init what was broadcast, Δ the filtered update."""
    options = BMUFOptions(elastic_rate=rate, form=form, **momentum)
    mu, eta = options.block_momentum, options.eta
    run = Run(lambda: BMUF(options), trainers)
    w_g = run.exact[0].copy()
    w_init, delta = w_g.copy(), np.zeros(SIZE)
    for _ in run.rounds():
        update = np.mean(run.snapshots, axis=0) - w_init
        delta = mu * delta + eta * update
        w_g = w_g + delta
        w_init = w_g + mu * delta if options.nesterov else w_g
        for index in range(trainers):
            run.pull(index, w_init, options)
        run.check()
        for algorithm in run.cluster.algorithms:
            close(algorithm.global_model(), w_g)
            close(algorithm.state().tensors["momentum"], delta)
    assert run.cluster.algorithms[0].state().completed_rounds == ROUNDS


@pytest.mark.parametrize("eta", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("trainers", TRAINERS)
def test_bmuf_with_the_momentum_for_n_trainers(trainers: int, eta: float) -> None:
    """The published μ: η / (n (1 - μ)) = 1, so that a block counts n times in the end; 0 if η is more."""
    options = BMUFOptions(elastic_rate=1.0, form="keep", eta=eta, block_momentum="auto")
    run = Run(lambda: BMUF(options), trainers)
    mu = options.momentum_of(trainers, completed_rounds=0)
    assert eta / (trainers * (1 - mu)) == pytest.approx(1.0) if eta <= trainers else mu == 0.0
    w_g, delta = run.exact[0].copy(), np.zeros(SIZE)
    for _ in run.rounds():
        delta = mu * delta + eta * (np.mean(run.snapshots, axis=0) - w_g)
        w_g = w_g + delta
        for index in range(trainers):
            run.pull(index, w_g, options)
        run.check()
        close(run.cluster.algorithms[0].global_model(), w_g)


@pytest.mark.parametrize("trainers", [1, 3])
def test_bmuf_by_default_warms_its_momentum_up(trainers: int) -> None:
    """Each μ is written out: r / (r + 8) after r rounds, until it is 1 - 1/√n."""
    run = Run(lambda: BMUF(BMUFOptions()), trainers)
    w_g, delta = run.exact[0].copy(), np.zeros(SIZE)
    for mu, _ in zip([0.0, 1 / 9, 2 / 10, 3 / 11, 4 / 12], run.rounds(), strict=True):
        delta = min(mu, 1 - trainers**-0.5) * delta + (np.mean(run.snapshots, axis=0) - w_g)
        w_g = w_g + delta
        for index in range(trainers):
            run.exact[index] = run.exact[index] + (w_g - run.snapshots[index])
        run.check()
        close(run.cluster.algorithms[0].global_model(), w_g)


def test_a_momentum_that_is_warmed_up_ends_below_the_published_one() -> None:
    options = BMUFOptions()
    values = [options.momentum_of(16, rounds) for rounds in range(200)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[8] == 0.5
    assert (
        values[23] < values[24] == values[-1] == 0.75 < BMUFOptions(block_momentum="auto").momentum_of(16, 0)
    )


@pytest.mark.parametrize(("momentum", "times"), [("auto", 4.0), (0.0, 1.0)])
def test_under_the_published_momentum_one_update_counts_as_often_as_there_are_trainers(
    momentum: Any, times: float
) -> None:
    """One step of each of four trainers, and then none: the sum of all in the end, not their mean."""
    options = BMUFOptions(elastic_rate=1.0, block_momentum=momentum)
    cluster = MemoryCluster(lambda: BMUF(options), torch.zeros(2), 4)
    for index, replica in enumerate(cluster.replicas):
        replica.values.fill_(float(index))
    for _ in range(80):
        cluster.round()
    np.testing.assert_allclose(cluster.algorithms[0].global_model().numpy(), 1.5 * times, rtol=1e-5)


def test_the_momentum_follows_the_members() -> None:
    """Two of three are left: μ is theirs from then on."""
    options = BMUFOptions(elastic_rate=1.0, block_momentum="auto")
    cluster = MemoryCluster(lambda: BMUF(options), torch.zeros(1), 3)
    cluster.replicas[0].values.fill_(3.0)
    cluster.round()
    cluster.act(2, Action.LEAVE)
    cluster.round()
    # g = 1 after the first round, v = 1; the second adds μ v = 1/2.
    assert cluster.algorithms[0].global_model().tolist() == [1.5]


def test_the_kinds_of_momentum_are_told_apart() -> None:
    """The control of the test above: global models differ by far more than its tolerance."""
    found = []
    plain: dict[str, Any] = {"block_momentum": 0.6}
    kinds: list[dict[str, Any]] = [{"block_momentum": 0.0}, plain, plain | {"nesterov": True}]
    for momentum in kinds:
        run = Run(partial(BMUF, BMUFOptions(elastic_rate=0.5, **momentum)), 2)
        list(run.rounds())
        found.append(run.cluster.algorithms[0].global_model())
    apart = [float((a - b).abs().max()) for a, b in zip(found, found[1:] + found[:1], strict=True)]
    assert min(apart) > 0.05


def test_without_training_nesterov_comes_to_rest() -> None:
    """The look-ahead itself is no training; measured against g it would be fed back and grow."""
    options = BMUFOptions(elastic_rate=1.0, block_momentum=0.9, nesterov=True)
    run = Run(lambda: BMUF(options), 2)
    list(run.rounds())
    run.stepping = False
    moved = []
    for _ in range(60):
        before = run.cluster.algorithms[0].global_model().clone()
        run.cluster.round()
        moved.append(float((run.cluster.algorithms[0].global_model() - before).norm()))
    assert moved[-1] < 0.01 * moved[0]
    # The control: one element, g as the reference of the update in place of the look-ahead.
    g, delta = 0.0, 1.0
    for _ in range(60):
        delta = 0.9 * delta + 0.9 * delta
        g += delta
    assert delta > 1.0


@pytest.mark.parametrize("reshuffle", [True, False])
@pytest.mark.parametrize(("trainers", "size"), [(1, 2), (4, 2), (5, 2), (7, 3), (3, 8)])
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("form", FORMS)
def test_ds_sync(trainers: int, size: int, reshuffle: bool, rate: float, form: Any) -> None:
    """Each goes α of the way to its group's mean; who is alone stays."""
    options = DSSyncOptions(elastic_rate=rate, form=form, group_size=size, reshuffle=reshuffle)
    run = Run(lambda: DSSync(options), trainers)
    grouping = shuffled(size) if reshuffle else fixed(size)
    for number in run.rounds():
        for group in grouping(range(trainers), number, SEED):
            mean = np.mean([run.snapshots[index] for index in group], axis=0)
            for index in group:
                run.pull(index, mean, options)
        run.check()


@pytest.mark.parametrize(
    ("trainers", "size", "every"), [(1, 2, 2), (4, 2, 3), (5, 2, 2), (7, 3, 4), (3, 8, 2)]
)
@pytest.mark.parametrize("form", FORMS)
def test_tree(trainers: int, size: int, every: int, form: Any) -> None:
    options = TreeOptions(form=form, site_size=size, site_every=every)
    run = Run(lambda: Tree(options), trainers)
    alike = 0
    for number in run.rounds():
        site_of = [0 if number % every == every - 1 else index // size for index in range(trainers)]
        alike += len(set(site_of)) == 1
        for index in range(trainers):
            site = [run.snapshots[other] for other in range(trainers) if site_of[other] == site_of[index]]
            run.pull(index, np.mean(site, axis=0), options)
        run.check()
    assert alike >= ROUNDS // every, "the control: there are rounds of all"
