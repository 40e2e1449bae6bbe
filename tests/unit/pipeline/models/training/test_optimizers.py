"""The shared optimizers against closed forms in float64, with two workers on one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.config.trainer import TrainerSection
from shadowsync.pipeline.models.training.optimizers import EMA_EVERY, SharedOptimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ..conftest import TORCH

Name = Literal["sgd", "adagrad", "adam", "adamw"]
Float64Array = NDArray[np.float64]
ADAMS: tuple[Name, ...] = ("adam", "adamw")
NAMES: tuple[Name, ...] = ("sgd", "adagrad", *ADAMS)
SIZE, STEPS, LR = 50, 8, 0.05
MOMENTS = {"exp_avg", "exp_avg_sq", "step", "missed"}
STATE = {"sgd": set(), "adagrad": {"sum", "step"}, "adam": MOMENTS, "adamw": MOMENTS}


def _start() -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    flat = torch.randn(SIZE, generator=generator)
    scale = torch.logspace(-4, 2, SIZE)
    return flat, [torch.randn(SIZE, generator=generator) * scale for _ in range(STEPS)]


def _closed_form(name: Name, flat: torch.Tensor, gradients: list[torch.Tensor]) -> Float64Array:
    w = flat.numpy().astype(np.float64)
    total, first, second = np.zeros(SIZE), np.zeros(SIZE), np.zeros(SIZE)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.numpy().astype(np.float64)
        if name == "sgd":
            w = w - LR * g
        elif name == "adagrad":
            total = total + g * g
            w = w - LR * g / (np.sqrt(total) + 1e-10)
        else:
            first = 0.9 * first + 0.1 * g
            second = 0.999 * second + 0.001 * g * g
            w = w - LR * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
    return w


def _run(shared: SharedOptimizer, gradients: list[torch.Tensor], workers: int) -> None:
    """The gradients in order, each by the next worker in turn."""
    buffers = [torch.zeros(SIZE) for _ in range(workers)]
    steppers = [shared.for_worker(buffer) for buffer in buffers]
    for at, gradient in enumerate(gradients):
        buffers[at % workers].copy_(gradient)
        steppers[at % workers].step()


def _make(name: Name, flat: torch.Tensor) -> SharedOptimizer:
    return SharedOptimizer(TrainerSection(optimizer=name, lr=LR), flat)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_closed_form(name: Name, workers: int) -> None:
    flat, gradients = _start()
    expected = _closed_form(name, flat, gradients)
    shared = _make(name, flat)
    _run(shared, gradients, workers)
    np.testing.assert_allclose(flat.numpy(), expected, rtol=2e-5, atol=2e-6)
    moved = np.abs(expected - _start()[0].numpy()).max()
    assert moved > 1e-2, "the control: the steps went somewhere"


@pytest.mark.parametrize("name", ["adagrad", "adam", "adamw"])
def test_states_of_their_own_would_differ(name: Name) -> None:
    """The control of sharing: two workers with a state each end elsewhere."""
    flat, gradients = _start()
    expected = _closed_form(name, flat, gradients)
    apart = [_make(name, flat), _make(name, flat)]
    buffers = [torch.zeros(SIZE) for _ in apart]
    steppers = [shared.for_worker(buffer) for shared, buffer in zip(apart, buffers, strict=True)]
    for at, gradient in enumerate(gradients):
        buffers[at % 2].copy_(gradient)
        steppers[at % 2].step()
    assert np.abs(flat.numpy() - expected).max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_state_is_one_and_visible(name: Name) -> None:
    """What a checkpoint reads is what the workers write, in place."""
    flat, gradients = _start()
    shared = _make(name, flat)
    assert set(shared.state) == STATE[name]
    held = dict(shared.state)
    before = {key: value.clone() for key, value in held.items()}
    _run(shared, gradients, workers=2)
    assert all(shared.state[key] is value for key, value in held.items())
    assert all(not torch.equal(value, before[key]) for key, value in held.items() if key != "missed")
    shapes = {"step": (), "missed": (1,)}
    for key, value in held.items():
        assert value.dtype == torch.float32
        assert value.shape == shapes.get(key, (SIZE,))
    assert float(held.get("step", torch.tensor(STEPS))) == STEPS


def test_the_moving_average_has_each_step_by_its_age() -> None:
    """Without a share of what was before the first one; the control is the last weights."""
    flat, rate = _start()[0], 0.98**EMA_EVERY
    shared = SharedOptimizer(TrainerSection(optimizer="sgd", ema=0.98), flat)
    assert shared.averaged() is flat
    seen = []
    for _ in range(9):
        flat.add_(torch.randn(SIZE))
        seen.append(flat.double().numpy().copy())
        shared.average()
    weights = rate ** np.arange(len(seen))[::-1]
    np.testing.assert_allclose(
        shared.averaged().numpy(), np.average(seen, axis=0, weights=weights), atol=1e-5
    )
    assert np.abs(shared.averaged().numpy() - flat.numpy()).max() > 1e-2
    again = shared.clone()
    assert torch.equal(again.averaged(), shared.averaged())


@pytest.mark.parametrize("name", ["adagrad", "adam", "adamw"])
def test_state_can_be_put_back(name: Name) -> None:
    """As a checkpoint or a joining node does: copied into place; the control keeps a fresh state."""
    flat, gradients = _start()
    expected = _closed_form(name, flat, gradients)
    first = _make(name, flat)
    _run(first, gradients[:4], workers=1)
    again, fresh = flat.clone(), flat.clone()
    second = _make(name, again)
    for key, value in first.state.items():
        second.state[key].copy_(value)
    _run(second, gradients[4:], workers=2)
    _run(_make(name, fresh), gradients[4:], workers=2)
    np.testing.assert_allclose(again.numpy(), expected, rtol=2e-5, atol=2e-6)
    assert np.abs(fresh.numpy() - expected).max() > 1e-2


@pytest.mark.parametrize("name", NAMES)
def test_making_one_and_a_zero_gradient_move_nothing(name: Name) -> None:
    """So the gaps between parameters stay zero."""
    flat, _ = _start()
    flat[10:16] = 0.0
    before = flat.clone()
    stepper = _make(name, flat).for_worker(torch.zeros(SIZE))
    assert torch.equal(flat, before)
    for _ in range(3):
        stepper.step()
    assert torch.equal(flat, before)
    gradient = torch.ones(SIZE)
    gradient[10:16] = 0.0
    _run(_make(name, flat), [gradient] * 3, workers=2)
    assert not flat[10:16].any()
    assert (flat != before).sum() == SIZE - 6


def _ended(name: Name, decay: float, scales: list[float]) -> torch.Tensor:
    """Where a worker gets to with a weight decay and a rate that changes."""
    flat, gradients = _start()
    buffer = torch.zeros(SIZE)
    settings = TrainerSection(optimizer=name, lr=LR, weight_decay=decay)
    stepper = SharedOptimizer(settings, flat).for_worker(buffer)
    for gradient, scale in zip(gradients, scales, strict=True):
        buffer.copy_(gradient)
        stepper.step(scale)
    return flat


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", NAMES)
def test_torchs_own_with_weight_decay_and_a_rate_that_changes(name: Name, decay: float) -> None:
    flat, gradients = _start()
    scales = [1.0, 0.5, 0.25, 0.0, 1.0, 0.125, 0.75, 0.3]
    parameter = torch.nn.Parameter(flat)
    reference = TORCH[name]([parameter], lr=LR, weight_decay=decay)
    for gradient, scale in zip(gradients, scales, strict=True):
        reference.param_groups[0]["lr"] = LR * scale
        parameter.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(_ended(name, decay, scales), parameter.detach(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_and_the_scale_of_the_rate_matter(name: Name) -> None:
    """The control of the test above."""
    plain = _ended(name, 0.0, [1.0] * STEPS)
    for other in (_ended(name, 0.1, [1.0] * STEPS), _ended(name, 0.0, [0.5] * STEPS)):
        assert (plain - other).abs().max() > 1e-3


def test_decoupled_decay_is_another_than_l2() -> None:
    l2, decoupled = (_ended(name, 0.1, [1.0] * STEPS) for name in ADAMS)
    assert (l2 - decoupled).abs().max() > 1e-3


class AfterEach(TorchDispatchMode):
    """Call something after each of torch's operations."""

    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._then = then

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        done = func(*args, **(kwargs or {}))
        self._then()
        return done


def _other_worker(state: dict[str, torch.Tensor]) -> AfterEach:
    """Another worker, which overwrites what this one adds to the squares and moments."""
    kept = [values for name, values in state.items() if name != "step"]
    return AfterEach(lambda: [values.zero_() for values in kept])


@pytest.mark.parametrize("on_device", [False, True], ids=["fused", "as on a device"])
@pytest.mark.parametrize("name", NAMES)
def test_a_square_that_another_worker_overwrites_makes_no_huge_step(name: Name, on_device: bool) -> None:
    """On a device an update is several operations, and another worker's come in between."""
    flat, gradients = _start()
    before = flat.clone()
    shared = _make(name, flat)
    with _other_worker(shared.state):
        shared.for_worker(gradients[0].clone()).step(1.0, torch.tensor(False) if on_device else None)
    assert not any(values.any() for key, values in shared.state.items() if key != "step")
    # The first step of each is the rate times at most 1; of SGD, times the gradient.
    most = LR * (float(gradients[0].abs().max()) if name == "sgd" else 1.0)
    assert 0 < (flat - before).abs().max() <= 1.001 * most


def test_of_torchs_own_adagrad_it_does() -> None:
    """The control of the test above."""
    flat, gradients = _start()
    parameter = torch.nn.Parameter(flat.clone())
    parameter.grad = gradients[0].clone()
    optimizer = torch.optim.Adagrad([parameter], lr=LR, foreach=False)
    with _other_worker(optimizer.state[parameter]):
        optimizer.step()
    assert (flat - parameter.detach()).abs().max() > 1e5


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("name", ADAMS)
def test_a_bad_batch_takes_nothing_off_the_step_count(name: Name, bad: bool) -> None:
    """Not even for a moment: another worker would divide by the 0 that it sees."""
    flat, gradients = _start()
    shared = _make(name, flat)
    seen: list[float] = []
    with AfterEach(lambda: seen.append(float(shared.state["step"]))):
        shared.for_worker(gradients[0].clone()).step(1.0, torch.tensor(bad))
    assert seen == sorted(seen)
    assert seen[-1] == (0.0 if bad else 1.0)
