"""Steps of DIN on sequences and weighted bags, on the CPU and on a device, whole and in parts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.layers.sequences import with_lengths
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.tables.shared import build_shared, on_fake_device
from torch.nn.functional import binary_cross_entropy_with_logits

BATCH, ROWS, LR = 12, 30, 0.05
COLUMNS = {
    "y": "label",
    "item": "categorical",
    "history": {"kind": "multi_hot", "pooling": "none", "max_ids": 4},
    "tags": {"kind": "multi_hot", "pooling": "mean", "weights": "scores"},
    "price": "dense",
}


def context(on_device: bool = False, **trainer: object) -> TrainerContext:
    settings = {
        "data": {"format": "csv", "path": ["x"], "columns": COLUMNS},
        "model": {
            "name": "din",
            "attention": {"history": "item"},
            "embedding_dim": 3,
            "table_rows": ROWS,
            "top": [5],
            "options": {"positions": True},
        },
        "embedding": {"nodes": 2},
        "trainer": {"precision": "float32", "optimizer": "sgd", "lr": LR} | trainer,
    }
    shared = build_shared(Job.model_validate(settings))
    return on_fake_device(shared) if on_device else shared


Drawn = tuple[Delivery, list[LookupPlan], list[Float32Array]]


def staged(shared: TrainerContext, stepper: Stepper) -> Step:
    return stepper.stage(*drawn(shared))


def drawn(shared: TrainerContext, number: int = 1) -> Drawn:
    draw = np.random.default_rng(number)
    lengths = draw.integers(0, 5, (2, BATCH), dtype=np.int32)
    lengths[0, :2] = (0, 4)
    items = int(lengths.sum())
    delivery = Delivery(
        sequence=1,
        pass_number=0,
        id=BatchId(0, 0, 1, 1),
        labels=(draw.random(BATCH) < 0.4).astype(np.float32),
        dense=draw.normal(0, 1, (BATCH, 1)).astype(np.float32),
        rows=draw.integers(0, ROWS, (1, BATCH), dtype=np.int32),
        bag_rows=draw.integers(0, ROWS, items, dtype=np.int32),
        bag_lengths=lengths,
        item_weights=draw.exponential(1.0, items).astype(np.float32),
    )
    requests = shared.router.requests(
        delivery.rows, delivery.bag_rows, delivery.bag_lengths, delivery.item_weights
    )
    replies = [draw.normal(0, 1.5, request.floats).astype(np.float32) for request in requests]
    return delivery, requests, replies


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("distinct", [False, True])
def test_a_step_is_that_of_plain_torch(on_device: bool, distinct: bool) -> None:
    shared = context(on_device, distinct_rows=distinct)
    stepper = Stepper(shared)
    step = staged(shared, stepper)
    delivery, requests, replies = drawn(shared)
    by_hand = shared.router.assemble(requests, replies)
    module = copy.deepcopy(shared.template)
    shared.layout.attach(module, shared.replica.flat.clone())
    logits = module(torch.from_numpy(delivery.dense), with_lengths(by_hand.embeddings, by_hand.lengths))
    loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(delivery.labels))
    loss.backward()  # type: ignore[no-untyped-call]
    before = shared.replica.flat.clone()
    sums = QualitySums()
    stepper.launch(step)
    got, gradients = stepper.finish(step, sums)
    assert got == pytest.approx(float(loss.detach()), rel=1e-5)
    assert sums.examples == BATCH
    for gradient, wanted in zip(gradients, by_hand.gradients(), strict=True):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-7)
        assert np.abs(wanted).max() > 1e-3
    slopes = shared.layout.gather(module).zero_()
    for (_, view), parameter in zip(shared.layout.views(slopes), module.parameters(), strict=True):
        assert parameter.grad is not None
        view.copy_(parameter.grad)
    torch.testing.assert_close(shared.replica.flat, before - LR * slopes, rtol=1e-5, atol=1e-7)
    assert (shared.replica.flat - before).abs().max() > 1e-4


@pytest.mark.parametrize("on_device", [False, True])
def test_scores_are_those_of_a_step(on_device: bool) -> None:
    shared = context(on_device)
    stepper = Stepper(shared)
    step, sums, progressive = staged(shared, stepper), PassSums(), QualitySums()
    stepper.score_with(shared.replica.flat.clone())
    stepper.score(*drawn(shared), sums)
    stepper.launch(step)
    stepper.finish(step, progressive)
    assert sums.quality.logloss == pytest.approx(progressive.logloss, rel=1e-5)
