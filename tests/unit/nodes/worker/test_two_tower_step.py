"""Two towers in a worker's steps: on the host, on a device, captured, in parts, again, and wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.vectors import BatchEmbeddings
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import Drawn, answered, train
from shadowsync.tests.unit.nodes.worker import test_captured_steps as plain

COUNT = plain.COUNT
TOWERS: dict[str, Any] = {
    "name": "two_tower",
    "top": [5],
    "query": ["x0", "x1", "d0"],
    "item": ["x2", "x3", "d1", "d2"],
}
NO_CORRECTION = {"frequency_rate": 0}


def job_of(options: dict[str, Any] | None = None, **trainer: Any) -> Job:
    return plain.job_of(TOWERS | {"options": {"dim": 3} | (options or {})}, **trainer)


def drawn(shared: TrainerContext, number: int, **settings: Any) -> Drawn:
    """Its items come unequally often."""
    delivery, _, _ = plain.drawn(shared, number, **settings)
    delivery.rows[2] = np.minimum(delivery.rows[2], delivery.rows[3])
    return delivery, *answered(shared, delivery, np.random.default_rng(number))


@pytest.mark.parametrize("settings", ["adam", "clipped, decays", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_captured_step_is_an_eager_one(settings: str, weighted: bool) -> None:
    job = job_of(**plain.JOBS[settings])

    def batches(shared: TrainerContext) -> list[Drawn]:
        return [drawn(shared, number, weighted=weighted) for number in range(COUNT)]

    trained = plain.captured_as_eagerly(job, batches)
    assert any(gradient.any() for gradients in trained.gradients for gradient in gradients)
    # What no difference of scores depends on is rounding, and Adam makes whole steps of it.
    if settings != "adam":
        plain.assert_near_host(job, batches, trained)


def test_a_step_minimizes_the_corrected_loss() -> None:
    """Against torch alone, with the frequencies that were counted; without them it is another step."""
    flats = {}
    for options in ({}, NO_CORRECTION):
        shared = build_shared(job_of(options, optimizer="sgd", lr=0.1))
        batches = [drawn(shared, number) for number in range(4)]
        flats[bool(options)] = train(shared, batches).flat.clone()
    assert not torch.allclose(flats[False], flats[True], atol=1e-4)
    shared = build_shared(job_of(optimizer="sgd", lr=0.1))
    counted, module = shared.item_frequency, Stepper(shared).module
    assert counted is not None
    for batch in batches:
        delivery, requests, replies = batch
        counted.add(delivery.rows[2].astype(np.int64))
        logs = torch.from_numpy(counted.log_share(delivery.rows[2].astype(np.int64)))
        vectors = [torch.from_numpy(v) for v in _vectors(shared, requests, replies)]
        _step_by_hand(shared, module, delivery, vectors, logs)
    torch.testing.assert_close(shared.replica.flat, flats[False], rtol=1e-4, atol=1e-6)


def _vectors(shared: TrainerContext, requests: Any, replies: Any) -> list[Any]:
    indices, data = shared.router.gather(requests, replies)
    return [
        vector.detach().numpy()
        for vector in BatchEmbeddings(indices.layout, indices.tensors, list(data)).embeddings
    ]


def _step_by_hand(
    shared: TrainerContext, module: Any, delivery: Any, vectors: list[torch.Tensor], logs: Any
) -> None:
    shared.layout.attach(module, shared.replica.flat, torch.zeros_like(shared.replica.flat))
    queries, items = module(torch.from_numpy(delivery.dense), vectors)
    scores = queries @ items.T / 0.05 - logs
    ids = torch.from_numpy(delivery.rows[2])
    for row in range(len(ids)):
        for place in range(len(ids)):
            if row != place and ids[row] == ids[place]:
                scores[row, place] = -torch.inf
    labels = torch.from_numpy(delivery.labels)
    each = torch.logsumexp(scores, dim=1) - scores.diagonal()
    loss = (each * labels).sum() / labels.sum().clamp(min=1)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(module.parameters(), gradients, strict=True):
            parameter -= 0.1 * gradient


def test_a_batch_that_is_trained_again_is_not_counted_again() -> None:
    shared = build_shared(job_of())
    stepper, batch = Stepper(shared), drawn(shared, 0)
    counted = shared.item_frequency
    assert counted is not None
    stepper.train(*batch)
    assert counted.examples == plain.BATCH
    before = counted.state()
    again = dataclasses.replace(batch[0], replay=True)
    _, gradients = stepper.train(again, *batch[1:])
    assert any(gradient.any() for gradient in gradients)
    scores = PassSums()
    stepper.score_with(shared.replica.flat)
    stepper.score(dataclasses.replace(batch[0], pass_number=1), *batch[1:], scores)
    assert all(np.array_equal(value, counted.state()[name]) for name, value in before.items())
    stepper.train(*batch)
    assert counted.examples == 2 * plain.BATCH, "the control"


def test_a_batch_with_numbers_that_are_not_finite_changes_nothing() -> None:
    for device in (False, True):
        shared = build_shared(job_of(), on_device=device)
        stepper, before = Stepper(shared), shared.replica.flat.clone()
        batch = drawn(shared, 0)
        batch[0].dense[0, 0] = np.nan
        step = stepper.stage(*batch)
        stepper.launch(step)
        assert stepper.finish(step) == (0.0, [])
        assert step.left_out
        assert torch.equal(before, shared.replica.flat)


def test_a_batch_without_a_positive_changes_nothing_of_a_plain_optimizer() -> None:
    shared = build_shared(job_of(optimizer="sgd", lr=0.1))
    before = shared.replica.flat.clone()
    batch = drawn(shared, 0)
    batch[0].labels[:] = 0.0
    _, gradients = Stepper(shared).train(*batch)
    assert torch.equal(before, shared.replica.flat)
    assert not any(gradient.any() for gradient in gradients)
    Stepper(shared).train(*drawn(shared, 0))
    assert not torch.equal(before, shared.replica.flat), "the control"
