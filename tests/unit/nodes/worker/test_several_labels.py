"""Steps on several labels: a device does what the CPU does, and the loss reported is the headline's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.batches import BatchAck
from shadowsync.nodes.worker.computation import LOSS_NOT_FINITE
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.errors import ProtocolError
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.layers.dense import mean_log_loss
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import Delivery
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import answered

BATCH, DENSE, DIM, ROWS = 16, 3, 2, 11


def job_of(*weights: float, name: str = "mmoe", **trainer: Any) -> Job:
    columns: dict[str, Any] = {
        f"y{at}": {"kind": "label", "loss_weight": weight} for at, weight in enumerate(weights)
    }
    columns |= {f"d{at}": "dense" for at in range(DENSE)} | {f"x{at}": "categorical" for at in range(2)}
    model = {"name": name, "embedding_dim": DIM, "table_rows": ROWS, "bottom": [6], "top": [5]}
    return Job.model_validate(
        {
            "data": {"format": "parquet", "path": ["x"], "columns": columns},
            "model": model,
            "trainer": {"precision": "float32", "optimizer": "adam", "clip_norm": 0.05} | trainer,
        }
    )


def delivery_of(number: int, labels: int = 2, *, weighted: bool = False) -> Delivery:
    generator = np.random.default_rng(number)
    drawn = (generator.random((labels, BATCH)) < 0.4).astype(np.float32)
    return Delivery(
        sequence=number,
        pass_number=0,
        id=BatchId(0, 0, number, 1),
        labels=drawn[0],
        dense=generator.normal(0, 1, (BATCH, DENSE)).astype(np.float32),
        rows=generator.integers(0, ROWS, (2, BATCH), dtype=np.int32),
        weights=generator.exponential(1.0, BATCH if weighted else 0).astype(np.float32),
        other_labels=drawn[1:] if labels > 1 else np.zeros((0, 0), np.float32),
    )


def replies_of(shared: TrainerContext, delivery: Delivery) -> tuple[list[LookupPlan], list[Float32Array]]:
    return answered(shared, delivery, np.random.default_rng(delivery.sequence))


def trained(
    shared: TrainerContext, count: int = 5, *, weighted: bool = False
) -> tuple[list[float], list[Float32Array], QualitySums, QualitySums]:
    """Losses, gradients, and the sums of scores before each step and of one batch afterwards."""
    stepper, progressive, after = Stepper(shared), QualitySums(), PassSums()
    losses, gradients = [], []
    for number in range(count):
        delivery = delivery_of(number, weighted=weighted)
        loss, parts = stepper.train(delivery, *replies_of(shared, delivery), progressive)
        losses.append(loss)
        gradients += parts
    stepper.score_with(shared.replica.flat)
    stepper.score(delivery, *replies_of(shared, delivery), after)
    return losses, gradients, progressive, after.quality


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["mmoe", "shared_bottom"])
def test_a_device_gives_what_the_cpu_gives(name: str, weighted: bool) -> None:
    # The rate is exact in float32, in which a device has it.
    job = job_of(1.0, 0.5, name=name, lr=2.0**-7)
    plain, shared = build_shared(job), build_shared(job, on_device=True)
    one, other = trained(plain, weighted=weighted), trained(shared, weighted=weighted)
    assert one[0] == other[0]
    assert all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    assert torch.equal(plain.replica.flat, shared.replica.flat)
    for mine, its in zip(one[2:], other[2:], strict=True):
        assert len(mine.others) == 1
        assert mine.to_bytes() == its.to_bytes()
    assert not torch.equal(build_shared(job).replica.flat, plain.replica.flat), "the control"


@pytest.mark.parametrize("weighted", [False, True])
def test_the_reported_loss_is_the_headlines(weighted: bool) -> None:
    shared = build_shared(job_of(1.0, 5.0))
    stepper, delivery, progressive = Stepper(shared), delivery_of(1, weighted=weighted), QualitySums()
    requests, replies = replies_of(shared, delivery)
    vectors = shared.router.assemble(requests, replies)
    with torch.no_grad():
        logits = shared.template(torch.from_numpy(delivery.dense), vectors.embeddings)
    weights = torch.from_numpy(delivery.weights) if weighted else None
    step = stepper.stage(delivery, requests, replies)
    stepper.launch(step)
    loss, _ = stepper.finish(step, progressive)
    expected = [
        float(mean_log_loss(logits[:, at], torch.from_numpy(labels), weights))
        for at, labels in enumerate((delivery.labels, *delivery.other_labels))
    ]
    assert loss == pytest.approx(expected[0], rel=1e-6)
    assert progressive.logloss == pytest.approx(expected[0], rel=1e-5)
    assert progressive.others[0].logloss == pytest.approx(expected[1], rel=1e-5)
    assert step.other_losses == pytest.approx(expected[1:], rel=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3, "the control"


@pytest.mark.parametrize("weighted", [False, True])
def test_an_acknowledgement_has_the_sums_of_each_label(weighted: bool) -> None:
    delivery = delivery_of(2, labels=3, weighted=weighted)
    ack = BatchAck.of(0, "reader-0", delivery, (0.5, 0.25, 0.75))
    weights = delivery.weights if weighted else np.ones(BATCH, np.float32)
    sums = [(float(weights.sum()) * loss) for loss in (0.5, 0.25, 0.75)]
    positives = [float((labels * weights).sum()) for labels in (delivery.labels, *delivery.other_labels)]
    assert (ack.loss_sum, ack.positives) == pytest.approx((sums[0], positives[0]))
    assert [value for pair in ack.others for value in pair] == pytest.approx(
        [sums[1], positives[1], sums[2], positives[2]]
    )
    assert positives[1] != positives[2], "the control"
    assert BatchAck.of(0, "reader-0", delivery_of(2, labels=1), (0.5,)).others == ()


def test_a_label_without_weight_trains_nothing_of_its_own() -> None:
    def moved(*weights: float) -> set[str]:
        shared = build_shared(job_of(*weights, clip_norm=None))
        before = shared.replica.flat.clone()
        trained(shared)
        views = zip(shared.layout.views(shared.replica.flat), shared.layout.views(before), strict=True)
        return {span.name for (span, now), (_, then) in views if not torch.equal(now, then)}

    assert not {name for name in moved(1.0, 0.0) if name.startswith(("towers.1", "gates.1"))}
    assert {name for name in moved(1.0, 1.0) if name.startswith("towers.1")}, "the control"


def test_a_loss_of_any_label_that_is_not_finite_leaves_the_batch_out() -> None:
    shared = build_shared(job_of(1.0, 1.0))
    for span, view in shared.layout.views(shared.replica.flat):
        if span.name == "towers.1.2.bias":
            view.fill_(float("nan"))
    before = shared.replica.flat.clone()
    stepper, delivery = Stepper(shared), delivery_of(1)
    step = stepper.stage(delivery, *replies_of(shared, delivery))
    stepper.launch(step)
    assert step.left_out == LOSS_NOT_FINITE
    assert before.isnan().any()
    assert torch.equal(before.nan_to_num(), shared.replica.flat.nan_to_num())


@pytest.mark.parametrize("labels", [1, 3])
def test_a_batch_of_other_labels_than_the_jobs_is_refused(labels: int) -> None:
    shared = build_shared(job_of(1.0, 1.0))
    delivery = delivery_of(1, labels)
    with pytest.raises(
        ProtocolError, match=f"shape .*; the job has 2 labels, and the batch {BATCH} examples"
    ):
        Stepper(shared).stage(delivery, *replies_of(shared, delivery))
    short = dataclasses.replace(delivery_of(1), other_labels=np.zeros((1, BATCH - 1), np.float32))
    with pytest.raises(ProtocolError, match="the job has 2 labels"):
        Stepper(shared).stage(short, *replies_of(shared, delivery))
