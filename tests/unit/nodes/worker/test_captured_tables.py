"""Captured steps on all kinds of tables, and of models that do not train all of their parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import captured_steps
from shadowsync.nodes.worker.captured_steps import EAGER_STEPS
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import Drawn, Trained, as_eagerly, drawn_batch, train
from torch import nn

BATCH, COUNT, ROWS = 24, 9, 40


class Regression(nn.Module):
    """A logistic regression on tables of any dimension, with an offset that is not trained."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(dense_features + sum(embedding_dims), 1)
        self.offset = nn.Parameter(torch.tensor([0.25]), requires_grad=False)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        return logits + self.offset


class PartlyUsed(Regression):
    """One layer of it takes no part in the loss."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__(dense_features, embedding_dims)
        self.unused = nn.Linear(3, 2)
        self.last = nn.Parameter(torch.tensor([0.5]))

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        return super().forward(dense, embeddings) * self.last


COLUMNS: dict[str, Any] = {
    "y": "label",
    "one": "categorical",
    "grown": "categorical",
    "wide": "categorical",
    "grown_too": "categorical",
    "sum": {"kind": "multi_hot", "pooling": "sum"},
    "mean": {"kind": "multi_hot", "pooling": "mean"},
    "weighted_sum": {"kind": "multi_hot", "pooling": "sum", "weights": "w1"},
    "weighted_mean": {"kind": "multi_hot", "pooling": "mean", "weights": "w2"},
    "one_again": {"kind": "categorical", "table": "one"},
    "weighted_ones": {"kind": "multi_hot", "pooling": "mean", "weights": "w3", "table": "one"},
    "grown_again": {"kind": "categorical", "table": "grown"},
    "wide_sum": {"kind": "multi_hot", "pooling": "sum", "table": "wide"},
    "d0": "dense",
    "d1": "dense",
}
TABLES = {
    "grown": {"kind": "growing", "rows": ROWS},
    "grown_too": {"kind": "growing", "rows": ROWS},
    "wide": {"dim": 5},
    "mean": {"dim": 5},
    "weighted_mean": {"dim": 5},
}


def job_of(nodes: int, model: type[nn.Module] = Regression, **trainer: Any) -> Job:
    return Job.model_validate(
        {
            "data": {"format": "csv", "path": ["x"], "columns": COLUMNS},
            "model": {"name": f"{__name__}:{model.__name__}", "embedding_dim": 2, "table_rows": ROWS},
            "tables": TABLES,
            "embedding": {"nodes": nodes},
            "trainer": {"precision": "float32"} | trainer,
        }
    )


def batches(shared: TrainerContext) -> list[Drawn]:
    return [drawn_batch(shared, number, BATCH) for number in range(COUNT)]


def captured_as_eagerly(job: Job) -> Trained:
    trained = as_eagerly(job, batches)
    assert trained.events == []
    assert trained.captured >= COUNT - 2 * EAGER_STEPS
    return trained


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("nodes", [1, 3])
def test_gradients_of_all_kinds_of_tables_are_those_of_the_cpu(nodes: int, distinct: bool) -> None:
    """One node has whole tables, of which growing ones are side by side; of three each has a part."""
    job = job_of(nodes, optimizer="sgd", distinct_rows=distinct)
    on_device, on_cpu = (
        train(shared, batches(shared)) for shared in (build_shared(job, on_device=True), build_shared(job))
    )
    assert on_device.captured >= COUNT - 2 * EAGER_STEPS
    for mine, yours, other in zip(
        on_device.gradients, on_cpu.gradients, on_cpu.gradients[1:] + on_cpu.gradients[:1], strict=True
    ):
        for a, b, c in zip(mine, yours, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
            assert len(a) != len(c) or np.abs(a - c).max() > 1e-3, "the control"
    torch.testing.assert_close(on_device.flat, on_cpu.flat)
    assert not torch.equal(build_shared(job).replica.flat, on_device.flat), "the control"


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("nodes", [1, 3])
def test_captured_steps_of_all_kinds_of_tables_are_eager_ones(nodes: int, distinct: bool) -> None:
    captured_as_eagerly(job_of(nodes, distinct_rows=distinct))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "adamw"])
def test_parameters_without_a_gradient_stay_in_captured_steps(optimizer: str, precision: str) -> None:
    job = job_of(2, PartlyUsed, optimizer=optimizer, precision=precision, weight_decay=0.01)
    captured = captured_as_eagerly(job)
    shared = build_shared(job)
    before = shared.replica.flat
    for (span, mine), (_, first) in zip(
        shared.layout.views(captured.flat), shared.layout.views(before), strict=True
    ):
        # The place of a frozen parameter has no meaning.
        if not span.frozen:
            assert torch.equal(mine, first) is span.name.startswith("unused"), span.name
    if optimizer.startswith("adam"):
        missed = [
            span.name
            for span, steps_missed in zip(shared.layout.spans, captured.state["missed"], strict=True)
            if steps_missed
        ]
        assert missed == ["unused.weight", "unused.bias"]


def test_batches_that_grow_have_graphs_as_long_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of smaller batches, which no batch will have again, are none of those that there may be."""
    monkeypatch.setattr(captured_steps, "MOST_GRAPHS", 2)
    shared = build_shared(job_of(2), on_device=True)

    stepper = Stepper(shared)
    for size in (8, 64, 256, 512):
        for number in range(COUNT):
            before = stepper.captured_steps
            stepper.train(*drawn_batch(shared, number, size))
    assert stepper.captured_steps > before, "the last one is captured"
    assert stepper.captured_steps > 2 * (COUNT - 2 * EAGER_STEPS)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_difference_that_another_worker_may_have_made_is_tried_again(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    differences = [captured_steps.CaptureError("another worker drew")]
    compare = captured_steps._compare

    def once(*given: Any) -> None:
        if differences:
            raise differences.pop()
        compare(*given)

    monkeypatch.setattr(captured_steps, "_compare", once)
    shared = build_shared(job_of(2, workers=workers), on_device=True)
    trained = train(shared, [drawn_batch(shared, number, BATCH) for number in range(2 * COUNT)])
    assert bool(trained.captured) is (workers > 1)
    assert len(trained.events) == (workers == 1)
