"""The weighted loss and the clipped gradient, against torch's own and against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shadowsync.pipeline.models.layers import clip_, mean_log_loss
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
