"""A replica whose optimizer's state is synchronized with its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.lab.virtual.tables import VirtualTables
from shadowsync.lab.virtual.timing import Timing
from shadowsync.nodes.replica.buffer import FlatReplica
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.sync_algos.base import Slice
from shadowsync.tests.support.jobs.runs import JobMaker
from torch.utils._python_dispatch import TorchDispatchMode

WEIGHTS = 16


def replica(state: int) -> FlatReplica:
    """16 weights and as many elements of each of `state` tensors, counted from 0."""
    return FlatReplica(torch.arange(WEIGHTS * (1.0 + state)), np.zeros(1, np.int64), WEIGHTS)


@pytest.mark.parametrize("state", [0, 1, 2])
def test_what_is_read_are_weights_and_what_is_synchronized_is_all(state: int) -> None:
    own = replica(state)
    assert torch.equal(own.read(), torch.arange(16.0))
    assert torch.equal(own.read(stride=5), torch.tensor([0.0, 5.0, 10.0, 15.0]))
    assert torch.equal(own.flat, torch.arange(16.0))
    assert own.weights == Slice(0, WEIGHTS)
    assert own.whole == Slice(0, own.numel) == Slice(0, WEIGHTS * (1 + state))
    assert torch.equal(own.snapshot(own.whole), torch.arange(WEIGHTS * (1.0 + state)))


@pytest.mark.parametrize("state", [0, 1, 2])
@pytest.mark.parametrize("change", ["add", "interpolate"])
def test_squares_alone_never_fall_below_zero(state: int, change: str) -> None:
    own = replica(state)
    for part in (Slice(0, 7), Slice(7, own.numel)):
        if change == "add":
            own.add_(part, torch.full((len(part),), -1000.0), 1.0)
        else:
            own.interpolate_(part, torch.full((len(part),), -1000.0), 0.9)
    values = own.snapshot(own.whole)
    squares = WEIGHTS * state if state else own.numel
    assert (values[:squares] < 0).all(), "weights and first moments may"
    assert (values[squares:] == 0).all()


class Meanwhile(TorchDispatchMode):
    """Has another thread's look at memory after each of torch's operations."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._look()
        return result


@pytest.mark.parametrize("change", ["add", "interpolate"])
def test_no_worker_ever_reads_a_negative_square(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlatReplica, "squares_at_once", 5)
    buffer = torch.arange(3.0 * WEIGHTS)
    own = FlatReplica(buffer, np.zeros(1, np.int64), WEIGHTS)
    lowest: list[float] = []
    seen = buffer.numpy()[2 * WEIGHTS :]
    given = torch.full((own.numel,), -1000.0)
    with Meanwhile(lambda: lowest.append(float(seen.min()))):
        if change == "add":
            own.add_(own.whole, given, 1.0)
        else:
            own.interpolate_(own.whole, given, 0.9)
    assert min(lowest) == 0.0, "it falls to that"
    assert (buffer[: 2 * WEIGHTS] < 0).all()
    assert (buffer[2 * WEIGHTS :] == 0).all()


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [("sgd", []), ("adagrad", ["sum"]), ("adam", ["exp_avg", "exp_avg_sq"])],
)
@pytest.mark.parametrize("state", ["own", "synchronized"])
def test_rounds_reach_the_optimizer_where_they_shall(
    job_file: JobMaker, optimizer: str, names: list[str], state: str
) -> None:
    sections = {"trainer": {"optimizer": optimizer}, "sync": {"optimizer_state": state}}
    job = load_job(str(job_file(sections)))
    context = TrainerContext.build(job, VirtualTables(job, Timing()).plan)
    own, weights = context.replica, context.layout.numel
    assert [name for name in context.optimizer.state if name not in ("step", "missed")] == names
    assert own.numel == weights * (1 + len(names) * (state == "synchronized"))
    before = own.snapshot(own.weights)
    own.add_(own.whole, torch.ones(own.numel), 2.0)
    assert torch.equal(own.flat, before + 2.0)
    for name in names:
        assert (context.optimizer.state[name] == 2.0 * (state == "synchronized")).all()
