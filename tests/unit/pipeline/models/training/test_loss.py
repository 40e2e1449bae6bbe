"""The weighted loss and the clipped gradient, against torch's own and against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shadowsync.pipeline.config.model import ModelSection
from shadowsync.pipeline.models.layers.dense import clip_, mean_log_loss
from shadowsync.pipeline.models.training.loss import TrainingLoss, focal_loss
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


def _batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(64, generator=generator)
    labels = (torch.rand(64, generator=generator) < 0.3).float()
    return logits, labels, torch.rand(64, generator=generator) * 3


def test_weighted_mean() -> None:
    logits, labels, weights = _batch()
    z, y, w = (part.double().numpy() for part in (logits, labels, weights))
    each = np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0) - z * y
    expected = float((each * w).sum() / w.sum())
    assert float(mean_log_loss(logits, labels, weights)) == pytest.approx(expected, rel=1e-6)
    plain = float(mean_log_loss(logits, labels))
    assert plain == float(binary_cross_entropy_with_logits(logits, labels))
    assert abs(plain - expected) > 1e-3, "the control: the weights matter"


def test_its_gradient_is_that_of_the_weights() -> None:
    logits, labels, weights = _batch()
    logits.requires_grad_()
    mean_log_loss(logits, labels, weights).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    expected = (torch.sigmoid(logits.detach()) - labels) * weights / weights.sum()
    torch.testing.assert_close(logits.grad, expected)


def test_a_batch_without_any_weight_moves_nothing() -> None:
    logits, labels, _ = _batch()
    logits.requires_grad_()
    loss = mean_log_loss(logits, labels, torch.zeros(64))
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_is_torchs(limit: float) -> None:
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(1000, generator=generator)
    parameters = [nn.Parameter(torch.zeros(300)), nn.Parameter(torch.zeros(700))]
    for parameter, part in zip(parameters, torch.split(gradient.clone(), [300, 700]), strict=True):
        parameter.grad = part
    expected = nn.utils.clip_grad_norm_(parameters, limit)
    before = gradient.clone()
    norm = clip_(gradient, limit)
    torch.testing.assert_close(norm, expected)
    torch.testing.assert_close(gradient, torch.cat([p.grad for p in parameters if p.grad is not None]))
    assert torch.equal(gradient, before) == (limit > float(norm))


def test_the_positive_weight_is_torchs() -> None:
    logits, labels, weights = _batch()
    loss = TrainingLoss(ModelSection(positive_weight=7.0))
    expected = binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor(7.0))
    assert float(loss.mean(logits, labels)) == pytest.approx(float(expected), rel=1e-6)
    weighted = weights * (1 + 6 * labels)
    expected = mean_log_loss(logits, labels, weighted) * weighted.sum() / weights.sum()
    assert float(loss.mean(logits, labels, weights)) == pytest.approx(float(expected), rel=1e-6)


def test_the_best_constant_under_a_positive_weight_is_calibrated_back() -> None:
    labels = (torch.arange(1000) % 20 == 0).float()
    loss, logit = TrainingLoss(ModelSection(positive_weight=5.0)), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([logit], max_iter=100)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss.mean(logit.expand(1000), labels)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    assert float(torch.sigmoid(logit.detach() + loss.logit_offset)) == pytest.approx(0.05, abs=1e-4)
    assert float(torch.sigmoid(logit.detach())) > 0.2, "the control"


@pytest.mark.parametrize("positive", [1.0, 3.0])
def test_smoothed_labels_are_the_mean_of_both(positive: float) -> None:
    """e / 2 of the loss is of either label; the control is the loss without."""
    logits, labels, weights = _batch()
    section = ModelSection(label_smoothing=0.2, positive_weight=positive)
    loss, plain = TrainingLoss(section), TrainingLoss(ModelSection(positive_weight=positive))
    assert not loss.is_plain
    of = [float(plain.mean(logits, y, weights)) for y in (labels, labels * 0, labels * 0 + 1)]
    assert float(loss.mean(logits, labels, weights)) == pytest.approx(0.8 * of[0] + 0.1 * (of[1] + of[2]))
    assert abs(float(loss.mean(logits, labels, weights)) - of[0]) > 1e-3


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_the_focal_loss_is_its_formula(gamma: float) -> None:
    logits, labels, _ = _batch()
    p = torch.sigmoid(logits.double())
    true = torch.where(labels == 1.0, p, 1 - p)
    expected = -((1 - true) ** gamma) * true.log()
    torch.testing.assert_close(focal_loss(logits, labels, gamma).double(), expected, rtol=1e-5, atol=1e-6)
    mean = TrainingLoss(ModelSection(loss="focal", focal_gamma=gamma)).mean(logits, labels)
    assert float(mean) == pytest.approx(float(expected.mean()), rel=1e-5)


def test_the_focal_loss_has_a_gradient_where_an_example_is_certain() -> None:
    logits = torch.tensor([200.0, -200.0, 200.0], requires_grad=True)
    focal_loss(logits, torch.tensor([1.0, 0.0, 0.0]), 0.5).sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[2] == pytest.approx(1.0), "certain and wrong"
