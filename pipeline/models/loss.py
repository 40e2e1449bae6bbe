"""The losses that a job can train with, beside the mean log loss.

The positive weight multiplies the loss of positives, as `pos_weight` of torch. The focal loss is that of Lin
et al., arXiv 1708.02002, Equation 4: -(1 - p_t)^gamma log(p_t), with the probability p_t of the true label.
"""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ..config.tables import ModelSection


class TrainingLoss:
    """The loss that steps minimize, and the logits of its true probabilities.

    Any thread may call it.

    Args:
        model: `loss`, `focal_gamma` and `positive_weight` of the job.
    """

    def __init__(self, model: ModelSection) -> None:
        self._gamma = model.gamma
        self._positive_weight = model.positive_weight
        self.is_plain = self._gamma is None and self._positive_weight == 1.0
        # With weight w of positives the odds are learned w-fold.
        self.logit_offset = model.logit_offset

    def mean(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar, in nats.

        Logits and labels are float32 [B]; `weights` are sample weights, float32 [B], none negative. The
        positive weight is in the sum and not in the divisor: a batch with more positives has more weight.
        """
        if self._gamma is not None:
            each = focal_loss(logits, labels, self._gamma)
        else:
            positive = logits.new_tensor(self._positive_weight)
            each = binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=positive)
        if weights is None:
            return each.mean()
        total = weights.sum().clamp(min=torch.finfo(torch.float32).tiny)
        loss: torch.Tensor = (each * weights).sum() / total
        return loss


def focal_loss(logits: torch.Tensor, labels: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return each example's focal loss, float32 [B]; with gamma 0 the log loss."""
    towards = torch.where(labels == 1.0, logits, -logits)
    # (1 - p_t)^gamma, by its logarithm: 1 - p_t itself rounds to 0, where the power has no slope.
    loss: torch.Tensor = -torch.exp(gamma * logsigmoid(-towards)) * logsigmoid(towards)
    return loss
