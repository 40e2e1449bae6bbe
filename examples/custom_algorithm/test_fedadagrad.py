"""The algorithm against its closed form, and against its contract."""

from __future__ import annotations

import pytest
import torch
from fedadagrad import FedAdagrad, FedAdagradOptions  # type: ignore[import-not-found]
from shadowsync.sync_algos.memory.cluster import MemoryCluster
from shadowsync.sync_algos.memory.faults import Action, Fault, Phase
from shadowsync.testing import check_algorithm

TRAINERS, SIZE = 3, 5


@pytest.mark.parametrize("options", [{}, {"outer_lr": 1.0, "epsilon": 1.0}, {"epsilon": 0.1}])
def test_it_keeps_the_contract(options: dict[str, float]) -> None:
    check_algorithm(FedAdagrad, options)


def test_the_outer_step_is_that_of_torch() -> None:
    """torch.optim.Adagrad in float64, with g - mean as the gradient."""
    cluster = MemoryCluster(lambda: FedAdagrad(FedAdagradOptions()), torch.ones(SIZE), TRAINERS)
    outer = torch.nn.Parameter(torch.ones(SIZE, dtype=torch.float64))
    optimizer = torch.optim.Adagrad([outer], lr=0.1, eps=0.001)
    replicas = [torch.ones(SIZE, dtype=torch.float64) for _ in range(TRAINERS)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        for index in range(TRAINERS):
            step = torch.randn(SIZE, generator=generator)
            cluster.replicas[index].values.add_(step)
            replicas[index] = replicas[index] + step
        assert cluster.round() == dict.fromkeys(range(TRAINERS), True)
        outer.grad = outer.detach() - torch.stack(replicas).mean(0)
        optimizer.step()
        replicas = [outer.detach().clone() for _ in replicas]
        for index in range(TRAINERS):
            torch.testing.assert_close(
                cluster.replicas[index].values.double(), replicas[index], rtol=1e-5, atol=1e-5
            )


def test_training_goes_on_meanwhile() -> None:
    """A step taken in the middle of a round is still there after it."""
    cluster = MemoryCluster(lambda: FedAdagrad(FedAdagradOptions()), torch.zeros(SIZE), TRAINERS)

    def train(index: int, phase: Phase) -> None:
        if phase is Phase.GIVING:
            cluster.replicas[index].values.add_(float(index))

    cluster.on_phase = train
    cluster.round()
    assert [replica.values[0].item() for replica in cluster.replicas] == [0.0, 1.0, 2.0]


def test_a_trainer_dies_while_the_mean_is_taken() -> None:
    cluster = MemoryCluster(lambda: FedAdagrad(FedAdagradOptions()), torch.zeros(SIZE), TRAINERS)
    cluster.replicas[0].values.fill_(3.0)
    assert cluster.round([Fault(2, Action.DIE, 2, Phase.GIVING)]) == {0: False, 1: False}
    assert cluster.replicas[0].values[0].item() == 3.0
    assert cluster.round() == {0: True, 1: True}
