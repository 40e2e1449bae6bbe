"""The weighted log loss and the focal loss.

The positive weight multiplies the loss of positives, as `pos_weight` of torch does. The focal loss is
-(1 - p_t)^gamma log(p_t), with p_t the probability of the true label (Lin et al., arXiv 1708.02002, Equation
4).
"""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ..config.tables import ModelSection


class TrainingLoss:
    """The loss that training minimizes, and the offset that calibrates logits.

    Any thread may call it.

    Args:
        model: the section [model], of which `loss`, `focal_gamma` and `positive_weight` count.

    Attributes:
        is_plain: whether this is the mean log loss, without a weight of positives.
        logit_offset: the number that is added to a logit to calibrate it.
    """

    def __init__(self, model: ModelSection) -> None:
        self._gamma = model.gamma
        self._positive_weight = model.positive_weight
        self.is_plain = self._gamma is None and self._positive_weight == 1.0
        # With a weight w of positives the model learns w times the odds.
        self.logit_offset = model.logit_offset

    def mean(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar, in nats.

        Logits and labels are float32 [B]; `weights` are sample weights, float32 [B], none negative. The
        positive weight is not in the divisor, so a batch with more positives has more weight.
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
    # (1 - p_t)^gamma is computed by its logarithm, because 1 - p_t may round to 0, where the power has no
    # slope.
    loss: torch.Tensor = -torch.exp(gamma * logsigmoid(-towards)) * logsigmoid(towards)
    return loss
