"""A step against the same one made by hand in plain torch."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.tests.support.data.plain_job import plain_job
from shadowsync.tests.support.tables.shared import build_shared, on_fake_device
from shadowsync.tests.support.tables.steps import Drawn, drawn_batch
from torch.nn.functional import binary_cross_entropy_with_logits

BATCH, DENSE, TABLES, DIM, ROWS, LR = 16, 3, 4, 2, 11, 0.05


def _job(**trainer: Any) -> Job:
    model = {"embedding_dim": DIM, "table_rows": ROWS, "bottom": [6], "top": [5]}
    trainer = {"precision": "float32", "optimizer": "sgd", "lr": LR} | trainer
    return plain_job(DENSE, TABLES, model=model, embedding={"nodes": 2}, trainer=trainer)


def _drawn(shared: TrainerContext, *, weighted: bool) -> Drawn:
    return drawn_batch(shared, 1, BATCH, weighted=weighted)


@dataclasses.dataclass
class ByHand:
    """The weights after a step, `w - lr * grad l(w)`, its mean loss, and the rows' gradients."""

    flat: torch.Tensor
    loss: float
    gradients: list[torch.Tensor]


def _by_hand(shared: TrainerContext, *, weighted: bool) -> ByHand:
    delivery, requests, replies = _drawn(shared, weighted=weighted)
    flat = shared.layout.gather(shared.template)
    module = copy.deepcopy(shared.template)
    shared.layout.attach(module, flat.clone())
    vectors = shared.router.assemble(requests, replies)
    logits = module(torch.from_numpy(delivery.dense), vectors.embeddings)
    each = binary_cross_entropy_with_logits(logits, torch.from_numpy(delivery.labels), reduction="none")
    weights = torch.from_numpy(delivery.weights) if weighted else torch.ones(BATCH)
    loss = (each * weights).sum() / weights.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    parameters = dict(module.named_parameters())
    for span, view in shared.layout.views(flat):
        gradient = parameters[span.name].grad
        assert gradient is not None
        view.sub_(gradient, alpha=LR)
    of_rows = [leaf.grad for leaf in vectors.leaves]
    return ByHand(flat, float(loss.detach()), [gradient for gradient in of_rows if gradient is not None])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("distinct", [False, True])
def test_a_step_is_what_it_is_by_hand(weighted: bool, on_device: bool, distinct: bool) -> None:
    shared = build_shared(_job(distinct_rows=distinct))
    wanted, control = _by_hand(shared, weighted=weighted), _by_hand(shared, weighted=not weighted)
    if on_device:
        shared = on_fake_device(shared)
    sums = QualitySums()
    loss, gradients = Stepper(shared).train(*_drawn(shared, weighted=weighted), sums)
    torch.testing.assert_close(shared.replica.flat, wanted.flat)
    for gradient, by_hand in zip(gradients, wanted.gradients, strict=True):
        torch.testing.assert_close(torch.from_numpy(gradient), by_hand)
    assert loss == pytest.approx(wanted.loss, rel=1e-5)
    assert sums.logloss == pytest.approx(loss, rel=1e-5)
    assert sums.examples == BATCH
    assert not torch.allclose(control.flat, wanted.flat, rtol=1e-4, atol=1e-6), "the control"


@pytest.mark.parametrize("on_device", [False, True])
def test_a_step_is_clipped_and_counted(on_device: bool) -> None:
    shared = build_shared(_job(clip_norm=1e-3), on_device=on_device)
    stepper, before = Stepper(shared), shared.replica.flat.clone()
    stepper.train(*_drawn(shared, weighted=False))
    assert float((shared.replica.flat - before).norm()) == pytest.approx(1e-3 * LR, rel=0.01)
    assert stepper.clipped_steps == 1
