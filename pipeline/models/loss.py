"""The loss of a batch and the bound of its gradient."""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

# As `torch.nn.utils.clip_grad_norm_` has it.
_CLIP_EPS = 1e-6


def mean_log_loss(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """The mean log loss in nats, a scalar, of logits and labels, float32 [B]: weighted by `weights`,
    float32 [B], none negative, if given. A batch whose weights are all 0 has loss 0 and moves nothing."""
    if weights is None:
        return binary_cross_entropy_with_logits(logits, labels)
    each = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    total = weights.sum().clamp(min=torch.finfo(torch.float32).tiny)
    loss: torch.Tensor = (each * weights).sum() / total
    return loss


def clip_(gradient: torch.Tensor, limit: float) -> torch.Tensor:
    """Scales a flat gradient, float32 [numel], in place so that its Euclidean norm is at most `limit`; gives
    the norm before, a scalar on the gradient's device. Nothing waits for the device.

    Source: Pascanu, Mikolov, Bengio, arXiv 1211.5063, Algorithm 1, over all parameters together.
    """
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    gradient.mul_((limit / (norm + _CLIP_EPS)).clamp(max=1.0))
    return norm
