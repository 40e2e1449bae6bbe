"""Batches that are cut into parts, against the same updates made by hand in plain torch."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.computation import LOSS_NOT_FINITE
from shadowsync.nodes.worker.step import STEP_NOT_FINITE, Step, Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.tables.shared import build_shared, on_fake_device
from torch.nn.functional import binary_cross_entropy_with_logits

BATCH, DENSE, TABLES, DIM, ROWS, LR = 16, 3, 4, 2, 11, 0.05


def _job(**trainer: Any) -> Job:
    return Job.model_validate(
        {
            "data": {
                "format": "parquet",
                "path": ["x"],
                "dense_features": DENSE,
                "categorical_features": TABLES,
            },
            "model": {"embedding_dim": DIM, "table_rows": ROWS, "bottom": [6], "top": [5]},
            "embedding": {"nodes": 2},
            "trainer": {"precision": "float32", "optimizer": "sgd", "lr": LR} | trainer,
        }
    )


Drawn = tuple[Delivery, list[LookupPlan], list[Float32Array]]


def _staged(
    shared: TrainerContext,
    stepper: Stepper,
    number: int = 1,
    *,
    weighted: bool = False,
    bad: int | None = None,
) -> Step:
    return stepper.stage(*_drawn(shared, number, weighted=weighted, bad=bad))


def _drawn(
    shared: TrainerContext, number: int = 1, *, weighted: bool = False, bad: int | None = None
) -> Drawn:
    generator = np.random.default_rng(number)
    weights = generator.exponential(1.0, BATCH) if weighted else np.zeros(0)
    delivery = Delivery(
        sequence=1,
        pass_number=0,
        id=BatchId(0, 0, 1, 1),
        labels=(generator.random(BATCH) < 0.4).astype(np.float32),
        dense=generator.normal(0, 1, (BATCH, DENSE)).astype(np.float32),
        rows=generator.integers(0, ROWS, (TABLES, BATCH), dtype=np.int32),
        weights=weights.astype(np.float32),
    )
    if bad is not None:
        delivery.dense[bad, 1] = np.nan
    requests = shared.router.requests(delivery.rows)
    replies = [generator.normal(0, 0.3, r.floats).astype(np.float32) for r in requests]
    return delivery, requests, replies


@dataclasses.dataclass
class ByHand:
    """What parts give, one after the other: with W the sum of the batch's weights and W_p that of part p,
    `w_p+1 = w_p - lr * grad l_p(w_p)`, and of the rows `sum of W_p / W * grad l_p(w_p)`."""

    flat: torch.Tensor
    loss: float
    gradients: list[torch.Tensor]
    logits: list[float]


def _by_hand(shared: TrainerContext, bounds: list[tuple[int, int]], weighted: bool) -> ByHand:
    delivery, requests, replies = _drawn(shared, weighted=weighted)
    flat = shared.layout.gather(shared.template)
    labels, dense = torch.from_numpy(delivery.labels), torch.from_numpy(delivery.dense)
    weights = torch.from_numpy(delivery.weights) if weighted else torch.ones(BATCH)
    result = ByHand(flat, 0.0, [torch.zeros(request.floats) for request in requests], [])
    for start, stop in bounds:
        module = copy.deepcopy(shared.template)
        shared.layout.attach(module, flat.clone())
        vectors = shared.router.assemble(requests, replies)
        logits = module(dense[start:stop], [table[start:stop] for table in vectors.embeddings])
        part = weights[start:stop]
        each = binary_cross_entropy_with_logits(logits, labels[start:stop], reduction="none")
        loss, share = (each * part).sum() / part.sum(), float(part.sum() / weights.sum())
        loss.backward()  # type: ignore[no-untyped-call]
        for total, leaf in zip(result.gradients, vectors.leaves, strict=True):
            assert leaf.grad is not None
            total.add_(leaf.grad, alpha=share)
        parameters = dict(module.named_parameters())
        for span, view in shared.layout.views(flat):
            gradient = parameters[span.name].grad
            assert gradient is not None
            view.sub_(gradient, alpha=LR)
        result.loss += share * float(loss.detach())
        result.logits += logits.detach().tolist()
    return result


BOUNDS = {
    1.0: [(0, 16)],
    2.0: [(0, 8), (8, 16)],
    3.0: [(0, 5), (5, 10), (10, 16)],
    64.0: [(at, at + 1) for at in range(16)],
}


@pytest.mark.parametrize("micro_batches", list(BOUNDS))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("distinct", [False, True])
def test_parts_give_what_they_give_by_hand(
    micro_batches: float, weighted: bool, on_device: bool, distinct: bool
) -> None:
    shared = build_shared(_job(distinct_rows=distinct))
    wanted = _by_hand(shared, BOUNDS[micro_batches], weighted)
    untrained = shared.replica.flat.clone()
    if on_device:
        shared = on_fake_device(shared)
    shared.micro_batches.set(micro_batches)
    stepper, sums = Stepper(shared), QualitySums()
    step = _staged(shared, stepper, weighted=weighted)
    stepper.launch(step)
    loss, gradients = stepper.finish(step, sums)
    assert step.updates == len(BOUNDS[micro_batches])
    torch.testing.assert_close(shared.replica.flat, wanted.flat)
    for gradient, by_hand in zip(gradients, wanted.gradients, strict=True):
        torch.testing.assert_close(torch.from_numpy(gradient), by_hand)
    assert loss == pytest.approx(wanted.loss, rel=1e-5)
    assert sums.logloss == pytest.approx(loss, rel=1e-5), "each example is scored before its own update"
    assert sums.examples == BATCH
    # The control: one update of the whole batch gives something else.
    shared.replica.flat.copy_(untrained)
    whole = _by_hand(shared, BOUNDS[1.0], weighted)
    near = torch.allclose(whole.flat, wanted.flat, rtol=1e-4, atol=1e-6)
    assert near is (micro_batches == 1.0)


@pytest.mark.parametrize("weighted", [False, True])
def test_where_updates_change_nothing_the_rows_get_the_gradients_of_the_whole_batch(weighted: bool) -> None:
    shared = build_shared(_job(lr=1e-30))
    results = []
    for micro_batches in (1.0, 5.0):
        shared.micro_batches.set(micro_batches)
        stepper = Stepper(shared)
        step = _staged(shared, stepper, weighted=weighted)
        stepper.launch(step)
        results.append(stepper.finish(step))
    (loss, whole), (other_loss, in_micro_batches) = results
    assert other_loss == pytest.approx(loss, rel=1e-5)
    for one, other in zip(whole, in_micro_batches, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("bad", "part"), [(1, 0), (13, 3)])
@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_bad_part_ends_its_batch(bad: int, part: int, on_device: bool, optimizer: str) -> None:
    """The parts before it have made their updates, and nothing of the batch is pushed."""
    job = _job(optimizer=optimizer, clip_norm=1.0)
    shared, fine = build_shared(job), build_shared(job)
    if on_device:
        shared = on_fake_device(shared)
    for one in (shared, fine):
        one.micro_batches.set(4.0)
    stepper, other, sums = Stepper(shared), Stepper(fine), QualitySums()
    step, same = _staged(shared, stepper, bad=bad), _staged(fine, other)
    stepper.launch(step)
    result = stepper.finish(step, sums)
    assert (result, sums.examples) == ((0.0, []), 0)
    assert step.left_out == (STEP_NOT_FINITE if on_device else LOSS_NOT_FINITE)
    for _ in range(part):
        other.compute(same)
        other.update(same)
    # Adagrad on a device is several operations, which round between them; all else is alike to the bit.
    rtol, atol = (1e-6, 1e-8) if on_device and optimizer == "adagrad" else (0.0, 0.0)
    torch.testing.assert_close(shared.replica.flat, fine.replica.flat, rtol=rtol, atol=atol)
    if not on_device:
        assert step.updates == part
    other.compute(same)
    other.update(same)
    assert (shared.replica.flat - fine.replica.flat).abs().max() > 1e-4, "the control"


def test_each_part_is_clipped_and_a_batch_counts_once() -> None:
    shared = build_shared(_job(clip_norm=1e-3))
    shared.micro_batches.set(4.0)
    stepper, before = Stepper(shared), shared.replica.flat.clone()
    step = _staged(shared, stepper)
    moves = []
    while step.is_computing:
        stepper.compute(step)
        stepper.update(step)
        moves.append(float((shared.replica.flat - before).norm()))
        before = shared.replica.flat.clone()
    stepper.finish(step)
    assert moves == [pytest.approx(1e-3 * LR, rel=0.01)] * 4
    assert stepper.clipped_steps == 1
