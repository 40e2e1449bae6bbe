"""Steps of DIN on sequences and weighted bags, on the CPU and on a device, whole and in parts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.layers.sequences import with_lengths
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import Drawn, drawn_batch
from torch.nn.functional import binary_cross_entropy_with_logits

BATCH, ROWS, LR = 12, 30, 0.05
COLUMNS = {
    "y": "label",
    "item": "categorical",
    "history": {"kind": "multi_hot", "pooling": "none", "max_ids": 4},
    "tags": {"kind": "multi_hot", "pooling": "mean", "weights": "scores"},
    "price": "dense",
}


def job_of(**trainer: object) -> Job:
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
    return Job.model_validate(settings)


def drawn(shared: TrainerContext, number: int = 1) -> Drawn:
    return drawn_batch(shared, number, BATCH, spread=1.5)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("distinct", [False, True])
def test_a_step_is_that_of_plain_torch(on_device: bool, distinct: bool) -> None:
    shared = build_shared(job_of(distinct_rows=distinct), on_device=on_device)
    stepper = Stepper(shared)
    step, (delivery, requests, replies) = stepper.stage(*drawn(shared)), drawn(shared)
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
    shared = build_shared(job_of(), on_device=on_device)
    stepper = Stepper(shared)
    step, sums, progressive = stepper.stage(*drawn(shared)), PassSums(), QualitySums()
    stepper.score_with(shared.replica.flat.clone())
    stepper.score(*drawn(shared), sums)
    stepper.launch(step)
    stepper.finish(step, progressive)
    assert sums.quality.logloss == pytest.approx(progressive.logloss, rel=1e-5)
