"""What is refused of a loss and scores of one's own, by name and before anything starts."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.input.plan import require_ne
from shadowsync.pipeline.jobfile.load import job_of_tree
from shadowsync.pipeline.models.own.loss import LossBatch
from shadowsync.pipeline.models.own.metrics import MetricBatch, OwnMetrics
from shadowsync.pipeline.models.registry import build_model
from shadowsync.pipeline.models.state_check import check_stateless
from shadowsync.pipeline.types import Float32Array
from torch import nn


class Good(nn.Module):
    """Scores of a linear model, in a tuple."""

    def __init__(self, dense_features: int, embedding_dims: list[int]) -> None:
        super().__init__()
        self.layer = nn.Linear(dense_features + sum(embedding_dims), 1)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> Any:
        """A tuple of scores [B]."""
        return (self.layer(torch.cat([dense, *embeddings], dim=1)).squeeze(1),)

    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        """The squared error."""
        loss: torch.Tensor = (outputs[0] - batch.labels).square().mean()
        return loss

    def scores(self, outputs: Any) -> torch.Tensor:
        """Scores [B]."""
        scores: torch.Tensor = outputs[0]
        return scores


class Mean:
    """The mean score of positives, less 1; below 0 for small scores."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def add(self, scores: Float32Array, batch: MetricBatch) -> None:
        self.scores += scores[(batch.labels == 1) & (batch.groups["user"] != 0)].tolist()

    def result(self) -> float | None:
        return sum(self.scores) / len(self.scores) - 1 if self.scores else None


class Text(Mean):
    def result(self) -> Any:
        return "good"


class WithMetrics(Good):
    metrics: ClassVar[dict[str, Any]] = {"mean": Mean, "text": Text, "no_class": 3}


class NoLoss(Good):
    loss = None  # type: ignore[assignment]


class NoScores(Good):
    scores = None  # type: ignore[assignment]


class Vector(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        each: torch.Tensor = (outputs[0] - batch.labels).square()
        return each


class Number(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> Any:
        return float(super().loss(outputs, batch).detach())


class Detached(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        return super().loss(outputs, batch).detach()


class OfNothing(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        del outputs
        return batch.labels.clone().requires_grad_().mean()


class NotFinite(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        return super().loss(outputs, batch) / 0.0


class Raises(Good):
    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        del outputs
        return batch.groups["shop"].float().mean()


class WrongScores(Good):
    def scores(self, outputs: Any) -> torch.Tensor:
        return torch.stack([outputs[0], outputs[0]], dim=1)


class Counts(Good):
    seen: ClassVar[int] = 0

    def loss(self, outputs: Any, batch: LossBatch) -> torch.Tensor:
        self.batches = getattr(self, "batches", 0) + 1
        return super().loss(outputs, batch) / self.batches


def job_of(of: type[nn.Module] = Good, **more: Any) -> Job:
    name = f"{__name__}:{of.__name__}"
    columns = {"y": "label", "x": "dense", "item": "categorical", "user": "group"}
    tree: dict[str, Any] = {
        "data": {"format": "csv", "path": "x", "columns": columns} | more.pop("data", {}),
        "model": {"name": name, "loss": "own", "scores": "own"} | more.pop("model", {}),
        "validation": more.pop("validation", {}),
    }
    return job_of_tree(tree)


def test_what_is_right_is_made() -> None:
    job = job_of()
    assert job.validation.metric == "auc"
    module = build_model(job)
    check_stateless(job, module)
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (NoLoss, r"model.loss: \"own\" given; .*NoLoss has no method loss"),
        (NoScores, r"model.scores: \"own\" given; .*NoScores has no method scores"),
        (Vector, r"Vector.loss: loss is not a scalar tensor, of a batch of 2"),
        (Number, r"Number.loss: loss is not a scalar tensor"),
        (Detached, r"Detached.loss: loss does not depend on the model"),
        (OfNothing, r"OfNothing.loss: it does not depend on a parameter that trains"),
        (NotFinite, r"NotFinite.loss: it is inf of a batch of 2 zeros"),
        (Raises, r"Raises.loss failed on a batch of 2: KeyError: 'shop'"),
        (WrongScores, r"WrongScores.scores returned torch.float32 \[2, 2\] for a batch of 2"),
    ],
)
def test_what_is_wrong_is_refused_by_name(model: type[nn.Module], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        build_model(job_of(model))


def test_a_loss_that_counts_is_state() -> None:
    job = job_of(Counts)
    with pytest.raises(JobFileError, match="batches changes with each call"):
        check_stateless(job, build_model(job))


def test_own_metrics_see_all_batches() -> None:
    job = job_of(WithMetrics, validation={"own": ["mean"], "metric": "mean"})
    assert job.validation.highest_is_best
    build_model(job)
    own = OwnMetrics(job, WithMetrics)
    assert own.results() == {"mean": None}
    ones, groups = np.ones(2, np.float32), np.array([[1, 0]], np.uint64)
    own.add(0.5 * ones, ones, None, groups)
    own.add(0.25 * ones, ones, None, groups)
    assert own.results() == {"mean": 0.375 - 1}
    own.add(np.nan * ones, ones, None, groups)
    assert own.results() == {"mean": None}, "not finite"


class Positions:
    """The sum of the rows' positions."""

    def __init__(self) -> None:
        self.sum = 0

    def add(self, scores: Float32Array, batch: MetricBatch) -> None:
        assert len(scores) == 2
        assert batch.positions is not None
        assert list(batch.groups) == ["user"]
        self.sum += int(batch.positions.sum())

    def result(self) -> float:
        return float(self.sum)


class WithPositions(Good):
    metrics: ClassVar[dict[str, Any]] = {"sum": Positions}


def test_own_metrics_see_positions() -> None:
    plain = job_of(WithPositions, validation={"own": ["sum"], "metric": "sum"})
    with pytest.raises(JobFileError, match=r"sum of .* failed: AssertionError"):
        build_model(plain)
    tree = plain.model_dump(mode="json", by_alias=True)
    tree["data"]["columns"] = {"place": {"kind": "row_number"}, **tree["data"]["columns"]}
    job = Job.model_validate(tree)
    build_model(job)
    own, ones = OwnMetrics(job, WithPositions), np.ones(2, np.float32)
    own.add(ones, ones, None, np.array([[2**40, 3], [7, 7]], np.uint64))
    assert own.results() == {"sum": 2.0**40 + 3}


@pytest.mark.parametrize(
    ("model", "own", "said"),
    [
        (
            WithMetrics,
            "median",
            "'median' given; the attribute metrics of .*WithMetrics has mean, text, no_class",
        ),
        (Good, "mean", "'mean' given; the attribute metrics of .*Good has none"),
        (WithMetrics, "text", "text of .* failed: ValueError: could not convert"),
        (WithMetrics, "no_class", "no_class of .* failed: TypeError"),
    ],
)
def test_own_metrics_that_are_none_are_refused(model: type[nn.Module], own: str, said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        build_model(job_of(model, validation={"own": [own]}))


def test_without_the_key_the_methods_are_not_asked() -> None:
    """Old job files mean what they meant: a class may have methods of these names."""
    job = job_of(WrongScores, model={"loss": "log", "scores": "logits"})
    with pytest.raises(JobFileError, match="forward returned tuple"):
        build_model(job)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": {"name": "dlrm"}}, r"model.loss: \"own\" given; .* 'dlrm' is built in"),
        ({"model": {"loss": "log"}}, 'model.scores: "own" given; the log loss is one of logits'),
        ({"model": {"positive_weight": 2.0}}, "the own loss has its own weights"),
        ({"model": {"label_smoothing": 0.1}}, "the own loss needs labels of 0 and 1"),
        ({"model": {"focal_gamma": 1.0}}, 'it needs model.loss = "focal"'),
        ({"validation": {"metric": "mean"}}, "'mean' given; give one of ne, "),
        ({"validation": {"own": ["auc"]}}, "give each name once, and none of a built-in metric"),
        ({"validation": {"own": ["a", "a"]}}, "give each name once"),
        (
            {"model": {"name": "dlrm", "loss": "log", "scores": "logits"}, "validation": {"own": ["a"]}},
            "validation.own: given; it is for a model of your own, and 'dlrm' is built in",
        ),
        ({"data": {"negative_share": 0.5}}, "scores of the own loss cannot be calibrated back"),
        ({"validation": {"metric": "ne"}}, "'ne' needs probabilities"),
        ({"validation": {"metric": "calibration_error"}}, "'calibration_error' needs probabilities"),
    ],
)
def test_keys_that_do_not_go_with_it(more: dict[str, Any], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        job_of(**more)


def test_runs_of_own_scores_are_not_compared_by_ne() -> None:
    with pytest.raises(JobFileError, match="runs are compared by NE"):
        require_ne(job_of())
    require_ne(job_of(model={"scores": "logits"}))
