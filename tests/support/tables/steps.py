"""Batches that are drawn for a job, and what a worker's steps make of them, eager and captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker import captured_steps
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.messages import Delivery

from ..data.batches import batch_id
from .embedding_cluster import draw_rows
from .shared import build_shared

Drawn = tuple[Delivery, list[LookupPlan], list[Float32Array]]


def drawn_batch(
    shared: TrainerContext, number: int, examples: int, *, weighted: bool = False, spread: float = 0.3
) -> Drawn:
    """A batch of a job, its lookups and what answers them; the same for the same number."""
    draw, job = np.random.default_rng(number), shared.job
    rows = draw_rows(job.tables, examples, seed=number)
    single = [column for column in job.embedded_columns if not column.pooling]
    growing = [at for at, column in enumerate(single) if column.grows]
    labels = (draw.random((len(job.data.label_names), examples)) < 0.4).astype(np.float32)
    delivery = Delivery(
        sequence=number,
        pass_number=0,
        id=batch_id(number),
        labels=labels[0],
        dense=draw.normal(0, 1, (examples, job.data.dense_width)).astype(np.float32),
        rows=rows.rows,
        weights=draw.exponential(1.0, examples if weighted else 0).astype(np.float32),
        bag_rows=rows.bag_rows,
        bag_lengths=rows.bag_lengths if rows.bag_lengths.size else np.zeros((0, 0), np.int32),
        other_labels=labels[1:] if len(labels) > 1 else np.zeros((0, 0), np.float32),
        item_weights=rows.item_weights,
        # A key has its row, so that the same node has it each time.
        keys=rows.rows[growing].astype(np.uint64) * np.uint64(977) + np.uint64(1)
        if growing
        else np.zeros((0, 0), np.uint64),
    )
    return delivery, *answered(shared, delivery, draw, spread)


def answered(
    shared: TrainerContext, delivery: Delivery, draw: np.random.Generator, spread: float = 0.3
) -> tuple[list[LookupPlan], list[Float32Array]]:
    """The lookups of a batch, and vectors that answer them."""
    requests = shared.router.requests_of(delivery)
    return requests, [draw.normal(0, spread, request.floats).astype(np.float32) for request in requests]


@dataclass
class Trained:
    """Losses and gradients of each batch, weights and state at the end, and what a user was told."""

    losses: list[float]
    gradients: list[list[Float32Array]]
    flat: torch.Tensor
    state: dict[str, torch.Tensor]
    captured: int
    events: list[str]


def train(shared: TrainerContext, batches: Sequence[Drawn]) -> Trained:
    """Two steps are launched before the first is finished, as a worker does."""
    events: list[str] = []
    stepper = Stepper(shared, events.append)
    launched, losses, gradients = [], [], []
    for batch in [*batches, None]:
        if batch is not None:
            launched.append(stepper.stage(*batch))
            stepper.launch(launched[-1])
            shared.examples[0] += len(batch[0].labels)
        while len(launched) > (0 if batch is None else stepper.ahead):
            loss, parts = stepper.finish(launched.pop(0))
            losses.append(loss)
            gradients.append([part.copy() for part in parts])
    return Trained(
        losses, gradients, shared.replica.flat, shared.optimizer.state, stepper.captured_steps, events
    )


def eager(shared: TrainerContext, batches: Sequence[Drawn]) -> Trained:
    """The same without a graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured_steps, "EAGER_STEPS", 1000)
        trained = train(shared, batches)
    assert not trained.captured
    return trained


def assert_equal(one: Trained, other: Trained) -> None:
    """To the bit."""
    assert one.losses == other.losses
    for mine, yours in zip(one.gradients, other.gradients, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine, yours, strict=True))
    assert torch.equal(one.flat, other.flat)
    assert all(torch.equal(value, other.state[name]) for name, value in one.state.items())


def as_eagerly(job: Job, batches_of: Callable[[TrainerContext], Sequence[Drawn]]) -> Trained:
    """What captured steps give, which is what eager ones do."""
    results = []
    for run in (eager, train):
        shared = build_shared(job, on_device=True)
        results.append(run(shared, batches_of(shared)))
    assert_equal(*results)
    return results[1]
