"""Decoupled against its closed form in float64, with trainers that are late; equal ones make it BMUF."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from shadowsync.sync_algos.base import Slice
from shadowsync.sync_algos.bmuf import BMUF, BMUFOptions
from shadowsync.sync_algos.catalog.registry import AlgorithmError, make_algorithm
from shadowsync.sync_algos.decoupled import Decoupled, DecoupledOptions
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Phase
from shadowsync.tests.support.sync.exact_run import Array
from shadowsync.tests.support.sync.exact_run import close as exact_close

close = partial(exact_close, atol=5e-6)
SIZE, ROUNDS = 11, 8


class Run:
    """A cluster whose workers train, and its closed form in float64."""

    def __init__(self, options: DecoupledOptions, trainers: int, parts: int = 1) -> None:
        first = torch.randn(SIZE, generator=torch.Generator().manual_seed(31))
        self.options = options
        self.cluster = MemoryCluster(lambda: Decoupled(options), first, trainers, parts=parts)
        self.cluster.on_phase = self._meanwhile
        self.random = np.random.default_rng(32)
        self.center, self.momentum = first.numpy().astype(np.float64), np.zeros(SIZE)
        self.since = [np.zeros(SIZE) for _ in range(trainers)]
        self.examples = [0] * trainers
        self.merges, self.seen = 0, set[int]()
        self._snapshots: dict[int, tuple[Array, int]] = {}

    def train(self, index: int, examples: int) -> None:
        step = (self.random.normal(size=SIZE) * examples / 64).astype(np.float32)
        replica = self.cluster.replicas[index]
        replica.values.add_(torch.from_numpy(step))
        replica.trained_examples += examples
        self.since[index] = self.since[index] + step
        self.examples[index] += examples

    def merge(self, who: Sequence[int]) -> None:
        """A round of these trainers, all in one merge; checks center and replicas."""
        self._snapshots = {}
        assert self.cluster.round(who=who) == dict.fromkeys(who, True)
        self.seen |= set(who)
        counts = np.array([self._snapshots[index][1] for index in who], dtype=np.float64)
        deltas = np.array([self._snapshots[index][0] for index in who])
        mean = counts @ deltas / counts.sum()
        worth = counts.sum() ** 2 / (counts**2).sum()
        mu = self.options.momentum_of(len(self.seen), self.merges)
        self.momentum = mu * self.momentum + self.options.eta * worth / len(self.seen) * mean
        self.center = self.center + self.momentum
        self.merges += 1
        close(self.cluster.center.values, self.center)
        for index in who:
            delta, examples = self._snapshots[index]
            self.since[index] = self.since[index] - delta
            self.examples[index] -= examples
            close(self.cluster.replicas[index].values, self.center + self.since[index])

    def _meanwhile(self, index: int, phase: Phase) -> None:
        if phase is Phase.GIVING and index not in self._snapshots:
            self._snapshots[index] = self.since[index].copy(), self.examples[index]
            self.train(index, 8)


def without_momentum() -> Decoupled:
    return Decoupled(DecoupledOptions(block_momentum=0.0))


def nothing(index: int, phase: Phase) -> None:
    del index, phase


@pytest.mark.parametrize("options", [DecoupledOptions(), DecoupledOptions(eta=0.5, block_momentum="auto")])
@pytest.mark.parametrize("trainers", [1, 4])
def test_closed_form_with_late_trainers(trainers: int, options: DecoupledOptions) -> None:
    """Whoever is not in a merge has all that it trained since, with its examples, in a later one."""
    run, choice = Run(options, trainers), np.random.default_rng(7)
    late = 0
    for number in range(3 * ROUNDS):
        for index in range(trainers):
            run.train(index, 16 * (1 + (index + number) % 3))
        who = [index for index in range(trainers) if number % 3 == 0 or choice.random() < 0.6] or [0]
        late += trainers - len(who)
        run.merge(who)
    assert late >= 8 or trainers == 1, "the control: some were late"


def test_work_counts_as_much_in_a_merge_of_few_as_in_one_of_all() -> None:
    """Without momentum: four trainers merged one by one, and all at once, move the center alike."""
    step = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    moved = []
    for groups in ([[0, 1, 2, 3]], [[0], [1], [2], [3]], [[0, 1], [2, 3]]):
        cluster = MemoryCluster(without_momentum, torch.zeros(SIZE), 4)
        for replica in cluster.replicas:
            replica.trained_examples += 64
        cluster.round()
        for replica in cluster.replicas:
            replica.values.add_(step)
            replica.trained_examples += 64
        for who in groups:
            cluster.round(who=who)
        moved.append(cluster.center.values.clone())
    for one in moved[1:]:
        torch.testing.assert_close(one, moved[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(moved[0], step, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("trainers", [1, 2, 4])
def test_equal_trainers_make_it_bmuf(trainers: int) -> None:
    """Of equal examples in each merge; with unequal ones, the control, it is something else."""
    random = np.random.default_rng(5)
    first = torch.from_numpy(random.normal(size=SIZE).astype(np.float32))
    steps = random.normal(size=(ROUNDS, trainers, SIZE)).astype(np.float32)

    def replicas(cluster: MemoryCluster, examples: Sequence[int]) -> torch.Tensor:
        for number in range(ROUNDS):
            for index, replica in enumerate(cluster.replicas):
                replica.values.add_(torch.from_numpy(steps[number, index]))
                replica.trained_examples += examples[index]
            assert all(cluster.round().values())
        return torch.stack([replica.values for replica in cluster.replicas])

    same = MemoryCluster(lambda: Decoupled(DecoupledOptions()), first, trainers)
    bmuf = MemoryCluster(lambda: BMUF(BMUFOptions()), first, trainers)
    expected = replicas(bmuf, [64] * trainers)
    torch.testing.assert_close(replicas(same, [64] * trainers), expected, rtol=1e-5, atol=1e-5)
    if trainers > 1:
        other = MemoryCluster(lambda: Decoupled(DecoupledOptions()), first, trainers)
        unequal = replicas(other, [64 * (1 + index) for index in range(trainers)])
        assert float((unequal - expected).abs().max()) > 0.01


def test_a_merge_without_examples_moves_nothing() -> None:
    cluster = MemoryCluster(lambda: Decoupled(DecoupledOptions()), torch.zeros(3), 2)
    cluster.replicas[0].values.fill_(4.0)
    cluster.replicas[0].trained_examples = 8
    for _ in range(3):
        cluster.round()
    center = cluster.center.values.clone()
    assert float(center.min()) > 0.0
    cluster.round()
    assert torch.equal(cluster.center.values, center), "nor does what is left of the momentum"


def test_a_step_that_is_not_counted_yet_stays_in_the_replica() -> None:
    """Its delta would weigh nothing in the merge, and the answer would take it away from the replica."""
    cluster = MemoryCluster(without_momentum, torch.zeros(3), 2)
    for replica in cluster.replicas:
        replica.values.add_(1.0)
        replica.trained_examples += 8
    cluster.round()
    cluster.replicas[0].values.add_(4.0)
    cluster.replicas[1].values.add_(2.0)
    cluster.replicas[1].trained_examples += 8
    cluster.round()
    center = cluster.center.values.clone()
    torch.testing.assert_close(cluster.replicas[0].values - center, torch.full((3,), 4.0))
    torch.testing.assert_close(cluster.replicas[1].values, center)
    cluster.replicas[0].trained_examples += 8
    cluster.round()
    assert float((cluster.center.values - center).min()) > 0.0, "once it is counted, the center has it"
    torch.testing.assert_close(cluster.replicas[0].values, cluster.center.values)


@pytest.mark.parametrize("last", [False, True])
def test_in_its_last_round_a_trainer_sends_what_codecs_had_lost(last: bool) -> None:
    """No example is behind it, and no later round will have it; before, the control, the next one has it."""
    cluster = MemoryCluster(without_momentum, torch.zeros(3), 1)
    replica = cluster.replicas[0]
    replica.values.add_(1.0)
    replica.trained_examples += 8
    cluster.round()
    replica.values.add_(0.25)
    cluster.center.is_exact = last
    cluster.round()
    torch.testing.assert_close(cluster.center.values, torch.full((3,), 1.25 if last else 1.0))


def test_a_batch_that_a_device_takes_back_is_not_said_twice() -> None:
    """Counted, taken back and trained again: no more examples are said than were ever counted."""
    cluster = MemoryCluster(lambda: Decoupled(DecoupledOptions()), torch.zeros(3), 1)
    said, merge = list[int](), cluster.center.on_contribution

    def noted(part: Slice, member: int, examples: int) -> None:
        said.append(examples)
        merge(part, member, examples)

    cluster.center.on_contribution = noted
    for counted in (640, 512, 576, 640, 704):
        cluster.replicas[0].trained_examples = counted
        cluster.round()
    assert said == [640, 0, 0, 0, 64]


def test_a_center_made_again_has_all_work_once() -> None:
    """As the mean of the replicas: what is trained after it is all that is sent, also of a lost exchange."""
    run = Run(DecoupledOptions(block_momentum=0.0), 2)
    for _ in range(2):
        for index in range(2):
            run.train(index, 16)
        run.merge([0, 1])
    cluster = run.cluster
    cluster.on_phase = nothing
    for index in range(2):
        run.train(index, 16 + 32 * index)
    (part,) = cluster.center.slices
    cluster.center.silence(part, after_applying=True)
    assert cluster.round(who=[0]) == {0: False}, "its contribution was merged, and it does not know"
    seeds = [replica.values.clone() for replica in cluster.replicas]
    mean = torch.stack(seeds).mean(0)
    cluster.center.values.copy_(mean)
    for algorithm, replica, seed in zip(cluster.algorithms, cluster.replicas, seeds, strict=True):
        algorithm.recentered(part, seed, replica.trained_examples)
    sent, merge = dict[int, int](), cluster.center.on_contribution

    def noted(part: Slice, member: int, examples: int) -> None:
        sent[member] = examples
        merge(part, member, examples)

    cluster.center.on_contribution = noted
    assert cluster.round() == {0: True, 1: True}
    torch.testing.assert_close(cluster.center.values, mean)
    for replica in cluster.replicas:
        torch.testing.assert_close(replica.values, mean)
    assert sent == {0: 0, 1: 0}, "all examples are in the mean already"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quorum": 0}, 'quorum: 0 given; give a number of trainers, or "half"'),
        ({"quorum": "most"}, "quorum: 'most' given"),
        ({"grace": -1.0}, "grace: -1.0 given; give a number of at least 0"),
        ({"longest_wait_seconds": 0.0}, "longest_wait_seconds: 0.0 given"),
        ({"block_momentum": 1.0}, "block_momentum: 1.0 given"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, object], said: str) -> None:
    with pytest.raises(AlgorithmError) as caught:
        make_algorithm("decoupled", options)
    assert said in str(caught.value)


def test_a_quorum_above_the_number_of_trainers_is_refused() -> None:
    algorithm = Decoupled(DecoupledOptions(quorum=3))
    algorithm.check_trainers(3)
    with pytest.raises(ValueError, match="quorum: 3 given with 2 trainers; give at most 2"):
        algorithm.check_trainers(2)
