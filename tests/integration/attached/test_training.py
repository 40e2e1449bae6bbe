"""Ways to train that an attached loop keeps: each beside a twin that computes the same, rounds included."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import shadowsync
import torch
from shadowsync.attached.loop import AttachedLoop
from shadowsync.tests.support.gpu import GPU, needs_gpu
from shadowsync.tests.support.loops.attached_loops import (
    Task,
    hub,
    in_threads,
    sgd,
    small_loop,
    small_model,
    weights_of,
)
from torch import nn

RATE, EVERY = 0.25, 2
SETTINGS: dict[str, Any] = {
    "sync__mode": "fixed",
    "sync__every": EVERY,
    "sync__options": {"elastic_rate": RATE},
}
Step = Callable[[], None]
# Makes the step of a loop, from its model and its optimizer.
Way = Callable[[nn.Module, torch.optim.Optimizer, Task], Step]


def _loss(model: nn.Module, task: Task) -> torch.Tensor:
    device = next(model.parameters()).device
    x, y = (one.to(device) for one in task.batch())
    return nn.functional.mse_loss(model(x).float(), y)


def autocast(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    device = next(model.parameters()).device.type

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = _loss(model, task)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    device = next(model.parameters()).device.type
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = _loss(model, task)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return step


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        for _ in range(3):
            (_loss(model, task) / 3).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)], milestones=[3]
    )

    def step() -> None:
        task.step(model, optimizer)
        schedule.step()

    return step


def compiled(backend: str, model: nn.Module, optimizer: torch.optim.Optimizer, task: Task) -> Step:
    fast: Any = torch.compile(model, backend=backend)
    return lambda: (task.step(fast, optimizer), None)[1]


@contextmanager
def beside_a_twin(
    way: Way, steps: int, *, device: str = "cpu", make: Callable[..., Any] = sgd, tolerance: float = 1e-6
) -> Iterator[tuple[nn.Module, nn.Module, AttachedLoop]]:
    """Train a loop at a fixed rate, and a twin that computes the rounds of EASGD itself."""
    model, twin = small_model().to(device), small_model().to(device)
    optimizer, other = make(model), make(twin)
    center, apart = weights_of(twin), []
    with hub(**SETTINGS) as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
        step, same = way(model, optimizer, Task(0)), way(twin, other, Task(0))
        for number in range(1, steps + 1):
            step()
            same()
            assert sync.steps == number
            if number % EVERY == 0:
                # Without the round they differ, the control.
                apart.append(float((weights_of(model) - weights_of(twin)).abs().max()))
                delta = RATE * (weights_of(twin) - center)
                center += delta
                moved = weights_of(twin) - (1 - RATE) * delta
                nn.utils.vector_to_parameters(moved, twin.parameters())
            assert torch.allclose(weights_of(model), weights_of(twin), atol=tolerance), number
        assert sync.metrics()["rounds"] == steps // EVERY
        yield model, twin, sync
    assert min(apart) > 20 * tolerance


@pytest.mark.parametrize(
    ("way", "make"),
    [
        (autocast, sgd),
        (scaled, sgd),
        (accumulated, sgd),
        (scheduled, sgd),
        (scheduled, lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)),
    ],
)
def test_a_way_to_train_is_kept(way: Way, make: Callable[..., Any]) -> None:
    with beside_a_twin(way, 8, make=make) as (model, twin, _):
        # Buffers are this loop's own, and nobody changes them.
        for mine, others in zip(model.buffers(), twin.buffers(), strict=True):
            assert torch.allclose(mine, others, atol=1e-5)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.matrix)])
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
def test_a_compiled_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """Also without a compiler: what holds on to parameters is the traced program, whoever makes it fast."""
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("it needs a C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with beside_a_twin(partial(compiled, backend), 4, tolerance=1e-5):
        pass


@pytest.mark.parametrize("way", [autocast, scaled])
@pytest.mark.parametrize("mark", [pytest.param(None, marks=needs_gpu)])
def test_a_way_to_train_is_kept_on_a_gpu(way: Way, mark: None) -> None:
    del mark
    with beside_a_twin(way, 8, device=GPU, tolerance=1e-4) as (model, _, sync):
        assert next(model.parameters()).is_cuda
        assert next(sync.model("center").parameters()).is_cuda


def test_a_step_that_a_scaler_skips_is_no_step() -> None:
    model, task = small_model(), Task(0)
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with hub(**SETTINGS) as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:

        def step(factor: float) -> None:
            optimizer.zero_grad()
            scaler.scale(factor * _loss(model, task)).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()

        step(1.0)
        before = weights_of(model)
        step(float("inf"))
        assert torch.equal(weights_of(model), before)
        assert (sync.steps, sync.metrics()["rounds"], scaler.get_scale()) == (1, 0, 512.0)
        # The control: the next step is counted, and ends a round of two.
        step(1.0)
        assert not torch.equal(weights_of(model), before)
        assert (sync.steps, sync.metrics()["rounds"]) == (2, 1)


class LowRank(nn.Module):
    """A frozen layer, and what is trained beside it: LoRA."""

    def __init__(self, width: int, rank: int, *, frozen: bool) -> None:
        super().__init__()
        self.base = nn.Linear(width, width)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        self.base.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_parameters_are_never_sent(frozen: bool) -> None:
    width, rank, steps = 128, 2, 6
    model = LowRank(width, rank, frozen=frozen)
    base = model.base.weight.detach().clone()
    optimizer = sgd(model, lr=0.01)
    with hub(**SETTINGS) as own, shadowsync.attach(model, optimizer, join=own.endpoint) as sync:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.ones(4, width)).pow(2).mean().backward()
            optimizer.step()
        found = sync.metrics()
        low_rank = steps // EVERY * 4 * 2 * width * rank
        assert found["rounds"] == steps // EVERY
        whole = low_rank + steps // EVERY * 4 * (width * width + width)
        wanted = low_rank if frozen else whole
        # Headers, the first value and what is sent again aside; the two differ by a factor of more than 30.
        assert wanted <= found["sent_bytes"] < 10 * wanted
        one = sync.model("center")
    assert torch.equal(model.base.weight, base) == frozen
    assert isinstance(one, LowRank)
    assert torch.equal(one.base.weight, base) == frozen


def test_statistics_of_a_batchnorm_are_each_loops_own() -> None:
    """Two loops whose parameters are equal after each round, on data of their own."""
    both = threading.Barrier(2)

    def loop(address: str, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, optimizer, step = small_loop(index)
        with shadowsync.attach(model, optimizer, join=address, wait_for=2) as sync:
            # Rounds do not wait for a loop that has not begun.
            both.wait(60)
            for _ in range(4 * EVERY):
                step()
            norm: Any = sync.model("mine")[1]  # type: ignore[index]
            return weights_of(model), norm.running_mean, model[1].running_mean.clone()  # type: ignore

    settings = SETTINGS | {"sync__algorithm": "ma", "sync__options": {"elastic_rate": 1.0}}
    with hub(**settings) as own:
        first, second = in_threads(*(partial(loop, own.endpoint, at) for at in range(2)))
    assert torch.allclose(first[0], second[0], atol=1e-5)
    # The control for their equality: what is not sent differs.
    assert (first[2] - second[2]).abs().max() > 1e-3
    for _, copied, mine in (first, second):
        assert torch.equal(copied, mine)
