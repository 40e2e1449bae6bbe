"""examples/other_areas/kfac.py: its step is that of an explicit solve, and its thread keeps up."""

from __future__ import annotations

import copy
import threading
from functools import partial
from pathlib import Path

import pytest
import shadowsync
import torch
from shadowsync.tests.support.loops.attached_loops import hub, in_threads
from torch import nn

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.other_areas.kfac import KFAC, OPTIMIZERS, autoencoder, losses

ROWS = 40


def _model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def _data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, 5, generator=generator), torch.randn(ROWS, 3, generator=generator)


def _error(made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return (made - wanted).square().sum(dim=1).mean()


def _linear(model: nn.Sequential, layer: int) -> nn.Linear:
    found = model[layer]
    assert isinstance(found, nn.Linear)
    return found


def _gradient(layer: nn.Linear) -> torch.Tensor:
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)


def _step(model: nn.Module, optimizer: KFAC, seed: int = 0) -> None:
    inputs, wanted = _data(seed)
    optimizer.zero_grad()
    made = model(inputs)
    optimizer.observe(_error(made, _data(seed + 100)[1]))
    _error(made, wanted).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _fisher(model: nn.Sequential, layer: int, seed: int) -> torch.Tensor:
    """A ⊗ G of a layer, in float64, from each example's own forward and backward pass."""
    model = copy.deepcopy(model).double()
    (inputs, _), (_, drawn) = _data(seed), _data(seed + 100)
    of_inputs, of_gradients = torch.zeros(()), torch.zeros(())
    for row, wanted in zip(inputs.double(), drawn.double(), strict=True):
        below = model[:layer](row)
        output = model[layer](below).detach().requires_grad_()
        (model[layer + 1 :](output) - wanted).square().sum().backward()
        assert output.grad is not None
        one = torch.cat([below.detach(), torch.ones(1, dtype=torch.float64)])
        of_inputs = of_inputs + one.outer(one) / ROWS
        of_gradients = of_gradients + output.grad.outer(output.grad) / ROWS
    # The weights' gradient is row-major: the output comes first.
    return torch.kron(of_gradients, of_inputs)


@pytest.mark.parametrize("damping", [1.0, 1e-2])
@pytest.mark.parametrize("layer", [0, 2])
def test_the_first_step_is_that_of_an_explicit_solve(layer: int, damping: float) -> None:
    model = _model()
    before = copy.deepcopy(model)
    lr = 0.1
    optimizer = KFAC(model, lr=lr, damping=damping, clip=1e9, every=1)
    _step(model, optimizer)
    old, new = _linear(before, layer), _linear(model, layer)
    moved = torch.cat([old.weight - new.weight, (old.bias - new.bias)[:, None]], dim=1).double() / lr
    exact = copy.deepcopy(before).double()
    inputs, wanted = _data(0)
    _error(exact(inputs.double()), wanted.double()).backward()  # type: ignore[no-untyped-call]
    gradient = _gradient(_linear(exact, layer))
    fisher = _fisher(before, layer, 0)
    solved = torch.linalg.solve(fisher + damping * torch.eye(len(fisher)), gradient.flatten())
    # What `direction` gives is compared; the weights' own rounding is larger.
    found = optimizer.direction(new, gradient.float()).double().flatten()
    assert (found - solved).norm() < 1e-5 * solved.norm()
    assert (moved.flatten() - solved).norm() < 1e-3 * solved.norm()
    # The control: another damping, and the gradient itself.
    other = torch.linalg.solve(fisher + 1.1 * damping * torch.eye(len(fisher)), gradient.flatten())
    assert (other - solved).norm() > 1e-3 * solved.norm()
    assert (gradient.flatten() / damping - solved).norm() > 1e-2 * solved.norm()


def test_the_factors_are_moving_averages() -> None:
    model = _model()
    optimizer = KFAC(model, decay=0.9, lr=0.0, every=1)
    inputs = [torch.cat([_data(seed)[0], torch.ones(ROWS, 1)], dim=1) for seed in (0, 1)]
    first, second = (rows.T @ rows / ROWS for rows in inputs)
    _step(model, optimizer, 0)
    torch.testing.assert_close(optimizer.factors(_linear(model, 0))[0], first)
    _step(model, optimizer, 1)
    torch.testing.assert_close(optimizer.factors(_linear(model, 0))[0], 0.9 * first + 0.1 * second)


def test_the_thread_refreshes_while_the_loop_trains() -> None:
    model, kept = _model(), _model()
    optimizer, never = KFAC(model), KFAC(kept, every=10**9)
    try:
        for at in range(100_000):
            _step(model, optimizer, at % 50)
            if len(optimizer.ages) > 20 and optimizer.ages[-1] < optimizer.ages[-2]:
                break
        assert max(optimizer.ages) < len(optimizer.ages) - 1, "it has been refreshed"
    finally:
        optimizer.close()
    assert not any(thread.name == "K-FAC" for thread in threading.enumerate())
    for at in range(20):
        _step(kept, never, at)
    assert never.ages == list(range(20)), "the control"


def test_an_error_of_the_thread_is_raised_by_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    optimizer = KFAC(model)
    _step(model, optimizer)

    def fail() -> None:
        raise ArithmeticError("planted")

    monkeypatch.setattr(optimizer, "_refresh", fail)

    def train() -> None:
        for at in range(100_000):
            _step(model, optimizer, at % 50)

    with pytest.raises(RuntimeError, match="could not be refreshed"):
        train()
    optimizer.close()


def test_it_comes_to_a_loss_in_fewer_steps_than_adam() -> None:
    pytest.importorskip("sklearn")
    found = {}
    for name in ("K-FAC, in every 5th step", "Adam, rate 0.01", "K-FAC, in the first step only"):
        model = autoencoder(0)
        optimizer = KFAC(model, every=5) if name not in OPTIMIZERS else OPTIMIZERS[name](model)
        found[name] = list(losses(model, optimizer, 0, 60))[-1]
    assert found["K-FAC, in every 5th step"] < found["Adam, rate 0.01"]
    assert found["K-FAC, in every 5th step"] < found["K-FAC, in the first step only"]


def test_it_steps_attached_loops() -> None:
    """Other threads, and a copy of the module, which must not copy the optimizer."""

    def loop(address: str, index: int) -> float:
        model = _model()
        optimizer = KFAC(model)
        try:
            with shadowsync.attach(model, optimizer, join=address, wait_for=2) as sync:
                for at in range(100_000):
                    _step(model, optimizer, at % 50 + index)
                    if sync.metrics()["rounds"] >= 3:
                        break
                mean = sync.model("mine")
                return float(_error(mean(_data(0)[0]), _data(0)[1]).detach())
        finally:
            optimizer.close()

    with hub(sync__algorithm="ma") as own:
        found = in_threads(*(partial(loop, own.endpoint, at) for at in range(2)))
    assert max(found) < float(_error(_model()(_data(0)[0]), _data(0)[1]).detach())
    assert own.book is not None
    assert all(one.synchronized > 0 for one in own.book.loops)
