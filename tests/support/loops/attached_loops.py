"""Loops for tests of `shadowsync.attach`, and a hub as a thread of the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from shadowsync.attached.hub.serve import HubThread
from shadowsync.attached.job import loop_job
from shadowsync.attached.loop import AttachedLoop
from shadowsync.nodes.runtime.settings import NodeSettings
from torch import nn

QUICK = {"sync.duty": 1.0, "run.node_timeout_seconds": 60.0, "sync.timeout_seconds": 30.0}
END_SECONDS = 120.0
# Loops of several threads make their models from one generator.
_SEEDING = threading.Lock()


def small_model(seed: int = 1) -> nn.Sequential:
    """Two layers and a BatchNorm; the same for the same seed."""
    with _SEEDING:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


class Task:
    """A regression with its own stream of batches: y = x a + b, the same a and b for all."""

    def __init__(self, seed: int) -> None:
        teacher = torch.Generator().manual_seed(99)
        self._slope = torch.randn(6, 1, generator=teacher)
        self._draws = torch.Generator().manual_seed(seed)

    def batch(self, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(size, 6, generator=self._draws)
        return x, x @ self._slope

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        """Train one batch; gives its loss before the step."""
        x, y = self.batch()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())


def loss_of(model: nn.Module) -> float:
    """Its loss on examples that are always the same."""
    x, y = Task(1000).batch(256)
    with torch.no_grad():
        return float(nn.functional.mse_loss(model(x), y))


def weights_of(model: nn.Module) -> torch.Tensor:
    """All parameters, flat and copied."""
    return torch.cat([p.detach().clone().view(-1) for p in model.parameters()])


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def small_loop(
    task: int = 0, *, seed: int = 1
) -> tuple[nn.Sequential, torch.optim.Optimizer, Callable[[], float]]:
    """A small model, its optimizer, and what trains a batch of the task with this stream."""
    model, own = small_model(seed), Task(task)
    optimizer = sgd(model)
    return model, optimizer, lambda: own.step(model, optimizer)


def train_until(
    sync: AttachedLoop, step: Callable[[], Any], done: Callable[[dict[str, float]], bool]
) -> None:
    """Train until the loop's own figures say so; fails past END_SECONDS.

    Not after a number of steps: what is waited for may take the same time whatever a step takes.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < END_SECONDS:
        step()
        if done(sync.metrics()):
            return
    raise AssertionError(f"not after {END_SECONDS:g} s: {sync.metrics()}")


@contextmanager
def hub(
    process: Mapping[str, Any] | None = None, thread: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[HubThread]:
    """A hub for the time of the block; settings by key, a dot written as two underscores.

    What is not of the job is in `process`, fields of its `NodeSettings`, and in `thread`, of `HubThread`.
    """
    given = QUICK | {name.replace("__", "."): value for name, value in settings.items()}
    own = HubThread(
        NodeSettings(loop_job(given), **{"bind": "127.0.0.1", **(process or {})}), **(thread or {})
    )
    own.start()
    try:
        yield own
    finally:
        own.stop()
        assert own.join(END_SECONDS), "the hub goes on"


def in_threads(*works: Callable[[], Any]) -> list[Any]:
    """Run these at the same time; gives their results, or raises the first error."""
    results: dict[int, Any] = {}
    errors: list[BaseException] = []

    def run(at: int, work: Callable[[], Any]) -> None:
        try:
            results[at] = work()
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair, name=f"loop {pair[0]}") for pair in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(END_SECONDS)
        assert not thread.is_alive(), "a loop goes on"
    if errors:
        raise errors[0]
    return [results[at] for at in range(len(works))]
