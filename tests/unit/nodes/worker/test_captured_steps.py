"""Captured steps, on the streams of a device that is not there: what eager ones give, to the bit.

The fake device's graph does again what torch did in the capture, on the same memory: what a step takes from
Python would stay as it was then.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import captured_steps
from shadowsync.nodes.worker.captured_steps import EAGER_STEPS, MOST_GRAPHS
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.tests.support.fake_graph import captured
from shadowsync.tests.support.fake_streams import FakeStreams
from shadowsync.tests.support.tables.shared import build_shared, on_fake_device
from shadowsync.tests.support.tables.steps import Drawn, Trained, as_eagerly, assert_equal, drawn_batch, train
from shadowsync.tests.unit.nodes.worker import test_sequence_step as sequences
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

BATCH, DENSE, TABLES, ROWS, COUNT = 16, 3, 4, 11, 9


class Reads(nn.Module):
    """A logistic regression; its forward pass asks for a value of the device, as no graph can."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        return logits * (1.0 if float(dense.detach().sum()) > 0 else 0.5)


class Remembers(Reads):
    """Its forward pass depends on a number of Python, which a graph does not see changing."""

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        self.passes = getattr(self, "passes", 0) + 1
        logits: torch.Tensor = self.linear(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        return logits * self.passes


class Draws(Reads):
    """Drops out half of its input."""

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        inputs = nn.functional.dropout(torch.cat([dense, *embeddings], dim=1), training=self.training)
        logits: torch.Tensor = self.linear(inputs).squeeze(1)
        return logits


def job_of(model: dict[str, Any] | None = None, **trainer: Any) -> Job:
    columns: dict[str, Any] = {"y": "label"} | {f"d{at}": "dense" for at in range(DENSE)}
    columns |= {f"x{at}": "categorical" for at in range(TABLES)}
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"], "columns": columns},
            "model": {"embedding_dim": 2, "table_rows": ROWS} | (model or {"bottom": [6], "top": [5]}),
            # Split by rows, so that the nodes' parts of a batch differ from one to the next.
            "embedding": {"nodes": 2},
            "trainer": {"precision": "float32", "exact_rows": False} | trainer,
        }
    )


def own(model: type[nn.Module]) -> dict[str, Any]:
    return {"name": f"{__name__}:{model.__name__}"}


def drawn(shared: TrainerContext, number: int, *, weighted: bool = False, batch: int = BATCH) -> Drawn:
    return drawn_batch(shared, number, batch, weighted=weighted)


def batches(shared: TrainerContext) -> list[Drawn]:
    return [drawn(shared, number) for number in range(COUNT)]


def captured_as_eagerly(job: Job, batches_of: Callable[[TrainerContext], list[Drawn]] = batches) -> Trained:
    """What captured steps give, all but the first ones of the COUNT batches: what eager ones do."""
    trained = as_eagerly(job, batches_of)
    assert (trained.captured, trained.events) == (COUNT - EAGER_STEPS, [])
    return trained


def assert_near_host(job: Job, batches_of: Callable[[TrainerContext], list[Drawn]], device: Trained) -> None:
    """The same job on the host trains the same, but for rounding."""
    host = build_shared(job)
    torch.testing.assert_close(train(host, batches_of(host)).flat, device.flat, rtol=1e-4, atol=1e-5)


SCHEDULE = {"kind": "linear", "warmup_examples": 3 * BATCH, "decay_examples": 30 * BATCH}
JOBS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "lr": 0.1},
    "adagrad": {"optimizer": "adagrad"},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.01},
    "clipped, decays": {"optimizer": "adagrad", "clip_norm": 0.05, "weight_decay": 0.01},
    "a schedule": {"optimizer": "adam", "schedule": SCHEDULE},
    "distinct rows": {"distinct_rows": True},
    "bfloat16": {"precision": "bfloat16"},
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", list(JOBS))
def test_captured_steps_are_eager_ones(settings: str, weighted: bool) -> None:
    job = job_of(**JOBS[settings])
    trained = captured_as_eagerly(
        job, lambda shared: [drawn(shared, number, weighted=weighted) for number in range(COUNT)]
    )
    assert not torch.equal(build_shared(job).replica.flat, trained.flat), "the control"


@pytest.mark.parametrize(
    "name",
    ["autoint", "dcn_v2", "deepfm", "dlrm", "finalmlp", "mmoe", "ple", "shared_bottom", "wide_deep"],
)
def test_models_are_captured(name: str) -> None:
    captured_as_eagerly(job_of({"name": name}))


def test_sequences_have_a_graph_for_each_power_of_two() -> None:
    trained = as_eagerly(
        sequences.job_of(), lambda shared: [sequences.drawn(shared, at) for at in range(4 * COUNT)]
    )
    assert trained.captured > 2 * COUNT


def test_a_model_that_draws_random_numbers_is_captured() -> None:
    shared = build_shared(job_of(own(Draws)), on_device=True)
    trained = train(shared, batches(shared))
    assert (trained.captured, trained.events) == (COUNT - EAGER_STEPS, [])


@pytest.mark.parametrize(
    ("model", "reason"), [(Reads, "_local_scalar_dense"), (Remembers, "is not the step itself")]
)
def test_a_model_that_no_graph_can_hold_trains_eagerly_and_the_user_is_told_once(
    model: type[nn.Module], reason: str
) -> None:
    trained = as_eagerly(job_of(own(model)), batches)
    (event,) = trained.events
    assert reason in event
    assert trained.captured == 0


def test_a_graph_without_memory_leaves_steps_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("tried to allocate 1 GiB")

    monkeypatch.setattr(FakeStreams, "graph", full)
    trained = as_eagerly(job_of(), batches)
    assert trained.captured == 0
    assert "tried to allocate 1 GiB" in trained.events[0]


@pytest.mark.parametrize("settings", ["sgd", "adagrad", "adam", "adamw"])
def test_a_bad_batch_changes_nothing_in_a_captured_step(settings: str) -> None:
    results = []
    for bad in (True, False):
        shared = build_shared(job_of(**JOBS[settings]), on_device=True)
        given = batches(shared)
        if bad:
            worse = drawn(shared, 100)
            worse[0].dense[2, 1] = np.nan
            given.insert(6, worse)
        results.append(train(shared, given))
    with_bad, without = results
    assert with_bad.captured == without.captured + 1
    assert (with_bad.losses.pop(6), with_bad.gradients.pop(6)) == (0.0, [])
    if settings == "adagrad":
        # Nothing goes by its number of steps.
        del with_bad.state["step"], without.state["step"]
    assert_equal(with_bad, without)


def test_a_bad_batch_at_the_time_of_the_capture_only_puts_it_off() -> None:
    shared = build_shared(job_of(), on_device=True)
    given = [drawn(shared, number) for number in range(3 * COUNT)]
    given[EAGER_STEPS][0].dense[2, 1] = np.nan
    trained = train(shared, given)
    assert trained.events == []
    assert trained.captured == 3 * COUNT - 2 * EAGER_STEPS - 1


def test_a_replay_makes_no_update_and_is_followed_by_captured_steps() -> None:
    def one_again(shared: TrainerContext) -> list[Drawn]:
        made = batches(shared)
        made[6] = (dataclasses.replace(made[6][0], replay=True), *made[6][1:])
        return made

    assert as_eagerly(job_of(), one_again).captured == COUNT - EAGER_STEPS - 1


def test_a_shorter_batch_is_eager() -> None:
    def one_shorter(shared: TrainerContext) -> list[Drawn]:
        return [drawn(shared, number, batch=5 if number == 7 else BATCH) for number in range(COUNT)]

    assert as_eagerly(job_of(), one_shorter).captured == COUNT - EAGER_STEPS - 1


def test_there_are_so_many_graphs_and_no_more() -> None:
    shared = build_shared(job_of(), on_device=True)
    sizes = range(BATCH, BATCH + MOST_GRAPHS + 2)
    given = [drawn(shared, number, batch=size) for size in sizes for number in range(EAGER_STEPS + 1)]
    assert train(shared, given).captured == MOST_GRAPHS


@pytest.mark.parametrize("distinct", [False, True])
def test_locked_memory_goes_to_the_device_from_where_it_is(distinct: bool) -> None:
    job, results, copies = job_of(distinct_rows=distinct), [], []
    for is_locked in (False, True):
        streams = FakeStreams()
        shared = on_fake_device(build_shared(job), streams)
        given = batches(shared)
        locks = [shared.device.page_lock(reply) for _, _, replies in given for reply in replies if is_locked]
        results.append(train(shared, given))
        copies.append(sum(line.startswith("copy") for line in streams.log))
        del locks
    assert_equal(*results)
    # One to the device and one back for each batch; locked, one more for each node's part.
    assert copies[0] == 2 * COUNT
    assert copies[1] == 4 * COUNT


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what torch is asked for, and of it what is more than another view of memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all = self.work = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.all += 1
        self.work += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(tables: int, *, eager_only: bool) -> tuple[int, int]:
    """Operations of stage, launch and finish of a step of `dlrm`, all and without views."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "TABLES", tables)
        if eager_only:
            patch.setattr(captured_steps, "EAGER_STEPS", 1000)
        # What a device does by itself when it replays is no operation of the host.
        patch.setattr(FakeStreams, "graph", lambda *given: _quietly(captured(given[2])))
        shared = build_shared(job_of(clip_norm=1.0), on_device=True)
        stepper = Stepper(shared)
        for number in range(2 * EAGER_STEPS):
            stepper.train(*drawn(shared, number))
        assert bool(stepper.captured_steps) is not eager_only
        batch = drawn(shared, 100)
        with _Operations() as counted:
            stepper.train(*batch)
    return counted.all, counted.work


def _quietly(replay: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with _disable_current_modes():
            replay()

    return run


def test_a_captured_step_is_few_operations_and_none_for_a_table() -> None:
    (few, _), (many, _) = (operations(tables, eager_only=False) for tables in (4, 26))
    assert few == many <= 45


def test_an_eager_step_on_a_device_has_no_work_for_a_table() -> None:
    (_, few), (views, many) = (operations(tables, eager_only=True) for tables in (4, 26))
    assert few == many <= 130
    assert views > 130, "the control: what is counted"


def test_padded_rows_get_no_gradient_and_cost_no_other_its_own() -> None:
    """The gradients of distinct, padded rows are those of rows that are not padded."""
    results = []
    for distinct in (True, False):
        job = job_of(distinct_rows=distinct)
        padded, plain = build_shared(job, on_device=True), build_shared(job)
        gradients = []
        for shared in (padded, plain):
            stepper = Stepper(shared)
            gradients.append(stepper.train(*drawn(shared, 1))[1])
        for mine, yours in zip(*gradients, strict=True):
            np.testing.assert_array_equal(mine, yours)
        results.append(sum(len(part) for part in gradients[0]))
    assert results[0] < results[1], "the control: rows repeat"
