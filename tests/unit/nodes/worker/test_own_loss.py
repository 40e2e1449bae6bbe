"""A loss and scores of one's own in a worker's steps: on the host, on a device, captured, and in parts."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.nodes.worker.captured_steps import EAGER_STEPS
from shadowsync.nodes.worker.step import Stepper
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.metrics.pass_sums import PassSums
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.models.own.loss import DETACHED, NOT_SCALAR, LossBatch
from shadowsync.tests.support.tables.shared import build_shared
from shadowsync.tests.support.tables.steps import Drawn, as_eagerly, train
from shadowsync.tests.unit.nodes.worker import test_captured_steps as plain
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

COUNT = plain.COUNT


class Logits(nn.Module):
    """A logistic regression with the log loss, written by hand."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.linear = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        return logits

    def loss(self, outputs: torch.Tensor, batch: LossBatch) -> torch.Tensor:
        """The mean log loss."""
        each = binary_cross_entropy_with_logits(outputs, batch.labels, reduction="none")
        if batch.weights is None:
            return each.mean()
        return (each * batch.weights).sum() / batch.weights.sum()


class Outputs(NamedTuple):
    """What `Pairs` returns."""

    raw: torch.Tensor
    side: dict[str, torch.Tensor]


class Pairs(Logits):
    """Ranks the rows of a group: softplus of each pair's difference, and the scores are not logits."""

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> Any:
        return Outputs(super().forward(dense, embeddings), {"twice": 2 * dense})

    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        """The mean over pairs of a positive and a negative of one group."""
        assert outputs.side["twice"].dtype == torch.float32
        group, labels = batch.groups["user"], batch.labels
        pairs = (group[:, None] == group) & (labels[:, None] > labels) & (group != 0)
        each = softplus(outputs.raw - outputs.raw[:, None]) * pairs
        return each.sum() / pairs.sum().clamp(min=1)

    def scores(self, outputs: Any) -> torch.Tensor:
        scores: torch.Tensor = outputs.raw - 3.0
        return scores


class Reads(Pairs):
    """Its loss asks for a value of the device."""

    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        """That of `Pairs`, or its half."""
        return super().loss(outputs, batch) * (1.0 if float(batch.labels.sum()) > 5 else 0.5)


class Bad(Logits):
    """Its loss is wrong for batches whose first label is 1."""

    kind = ""

    def loss(self, outputs: torch.Tensor, batch: LossBatch) -> torch.Tensor:
        """Right in the first batch, which `build_model` makes."""
        loss = super().loss(outputs, batch)
        if len(outputs) == 2:
            return loss
        return {"detached": loss.detach(), "shape": loss.repeat(2), "nan": loss * torch.nan}[self.kind]


class Detached(Bad):
    kind = "detached"


class Shape(Bad):
    kind = "shape"


class NaN(Bad):
    kind = "nan"


class Masked(Logits):
    """Its first output is -inf, and its loss leaves that out."""

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits = super().forward(dense, embeddings)
        return logits if len(logits) == 2 else torch.cat([logits.new_full((1,), -torch.inf), logits[1:]])

    def loss(self, outputs: torch.Tensor, batch: LossBatch) -> torch.Tensor:
        """The mean over the other rows."""
        return binary_cross_entropy_with_logits(outputs[1:], batch.labels[1:])


def job_of(model: type[nn.Module], scores: str = "logits", loss: str = "own", **trainer: Any) -> Job:
    job = plain.job_of({"name": f"{__name__}:{model.__name__}", "loss": loss, "scores": scores}, **trainer)
    tree = job.model_dump(mode="json", by_alias=True)
    tree["data"]["columns"] |= {"user": {"kind": "group"}, "session": {"kind": "group"}}
    return Job.model_validate(tree)


def drawn(shared: TrainerContext, number: int, *, weighted: bool = False) -> Drawn:
    delivery, requests, replies = plain.drawn(shared, number, weighted=weighted)
    groups = np.random.default_rng(number).integers(0, 4, (2, len(delivery.labels)), dtype=np.uint64)
    # A hash has a highest bit.
    return dataclasses.replace(delivery, groups=groups << np.uint64(62)), requests, replies


@pytest.mark.parametrize("weighted", [False, True])
def test_the_log_loss_written_by_hand_is_that_of_shadowsync(weighted: bool) -> None:
    trained = []
    for loss in ("log", "own"):
        shared = build_shared(job_of(Logits, loss=loss, clip_norm=0.1))
        trained.append(train(shared, [drawn(shared, at, weighted=weighted) for at in range(COUNT)]))
    torch.testing.assert_close(trained[0].flat, trained[1].flat)
    assert trained[0].losses == pytest.approx(trained[1].losses, rel=1e-5)
    control = train(
        build_shared(job_of(Logits, clip_norm=0.1)), [drawn(shared, at + 1) for at in range(COUNT)]
    )
    assert not torch.allclose(control.flat, trained[0].flat)


@pytest.mark.parametrize("settings", ["adam", "clipped, decays", "bfloat16"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_ranking_loss_is_captured(settings: str, weighted: bool) -> None:
    job = job_of(Pairs, "own", **plain.JOBS[settings])

    def batches(shared: TrainerContext) -> list[Drawn]:
        return [drawn(shared, number, weighted=weighted) for number in range(COUNT)]

    trained = plain.captured_as_eagerly(job, batches)
    # There is no log loss of such scores.
    assert trained.losses == [0.0] * COUNT
    assert any(gradient.any() for gradients in trained.gradients for gradient in gradients)
    # No difference of a pair depends on the bias, and Adam makes whole steps of its rounding.
    if settings != "adam":
        plain.assert_near_host(job, batches, trained)


def test_a_loss_that_no_graph_can_hold_trains_eagerly_and_the_user_is_told_once() -> None:
    trained = as_eagerly(
        job_of(Reads, "own"), lambda shared: [drawn(shared, number) for number in range(COUNT)]
    )
    (event,) = trained.events
    assert "_local_scalar_dense" in event
    assert trained.captured == 0


def test_groups_are_what_the_loss_is_of() -> None:
    """The control: with every row in a group of its own there are no pairs, and nothing is learned."""
    flats = []
    for alone in (False, True):
        shared = build_shared(job_of(Pairs, "own"))
        batches = [drawn(shared, number) for number in range(COUNT)]
        if alone:
            for delivery, _, _ in batches:
                delivery.groups[:] = np.arange(1, 1 + len(delivery.labels), dtype=np.uint64)
        before = shared.replica.flat.clone()
        train(shared, batches)
        flats.append(torch.equal(before, shared.replica.flat))
    assert flats == [False, True]


def test_scores_are_those_of_the_method() -> None:
    shared = build_shared(job_of(Pairs, "own"))
    stepper, sums, progressive = Stepper(shared), PassSums(), QualitySums()
    stepper.score_with(shared.replica.flat)
    stepper.score(*drawn(shared, 1), sums)
    own = Stepper(shared)
    own.train(*drawn(shared, 1), progressive)
    assert sums.quality.auc == progressive.auc
    rows, raw = [], stepper.module.linear
    assert isinstance(raw, nn.Linear)
    _, positives, places = sums.quality.histogram()
    rows.append(float(positives.sum()))
    assert rows[0] > 0
    assert places.max() < 0.5, "3 below the logits, which are small at first"


@pytest.mark.parametrize(
    ("model", "why"), [(Detached, DETACHED), (Shape, NOT_SCALAR), (NaN, "its loss is not finite")]
)
def test_a_batch_whose_loss_cannot_be_minimized_is_left_out(model: type[nn.Module], why: str) -> None:
    for device in (False, True):
        shared = build_shared(job_of(model), on_device=device)
        stepper, before = Stepper(shared), shared.replica.flat.clone()
        step = stepper.stage(*drawn(shared, 0))
        stepper.launch(step)
        assert stepper.finish(step) == (0.0, [])
        assert step.left_out == (
            why if model is not NaN or not device else "its loss or a gradient is not finite"
        )
        assert torch.equal(before, shared.replica.flat)


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("model", [Masked, Logits])
def test_a_batch_whose_log_loss_cannot_be_reported_changes_nothing(
    on_device: bool, model: type[nn.Module]
) -> None:
    """Its own loss and all gradients are finite. `Logits` is the control."""
    shared = build_shared(job_of(model), on_device=on_device)
    stepper, before = Stepper(shared), shared.replica.flat.clone()
    step = stepper.stage(*drawn(shared, 0))
    stepper.launch(step)
    _, gradients = stepper.finish(step)
    is_bad = model is Masked
    assert bool(step.left_out) is is_bad
    assert torch.equal(before, shared.replica.flat) is is_bad
    assert any(gradient.any() for gradient in gradients) is not is_bad


class ByPosition(Pairs):
    """Weighs each row by its position, in whatever order the columns are."""

    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        """The mean log loss, weighted."""
        assert batch.positions is not None
        assert list(batch.groups) == ["user", "session"]
        assert batch.positions.dtype == torch.int64
        weights = (batch.positions % 7).float()
        each = binary_cross_entropy_with_logits(outputs.raw, batch.labels, reduction="none")
        return (each * weights).sum() / weights.sum()


class ByWeight(Pairs):
    """The same with the weights as sample weights."""

    loss = Logits.loss

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> Any:
        return super().forward(dense, embeddings).raw


@pytest.mark.parametrize("on_device", [False, True])
def test_positions_of_rows_reach_the_loss(on_device: bool) -> None:
    """Also of a batch that is trained again, and in a captured step. With other positions it differs."""
    trained = []
    for model, shift in ((ByPosition, 0), (ByWeight, 0), (ByPosition, 1)):
        tree = job_of(model, "logits" if model is ByWeight else "own").model_dump(mode="json", by_alias=True)
        columns = tree["data"]["columns"]
        tree["data"]["columns"] = {"place": {"kind": "row_number"}, **columns}
        shared = build_shared(Job.model_validate(tree), on_device=on_device)
        batches = []
        for number in range(COUNT):
            delivery, requests, replies = drawn(shared, number)
            places = np.random.default_rng(number).integers(0, 2**40, len(delivery.labels), dtype=np.uint64)
            weights = (places % 7).astype(np.float32) if model is ByWeight else delivery.weights
            groups = np.concatenate([(places + np.uint64(shift))[None], delivery.groups])
            changed = dataclasses.replace(
                delivery, groups=groups, weights=weights, replay=number == COUNT - 2
            )
            batches.append((changed, requests, replies))
        trained.append(train(shared, batches))
    for result, other in ((trained[0], trained[1]), (trained[2], trained[1])):
        same = torch.allclose(result.flat, other.flat, rtol=1e-4, atol=1e-5)
        assert same == (result is trained[0])
    assert trained[0].captured == trained[1].captured == (COUNT - EAGER_STEPS - 1 if on_device else 0)
