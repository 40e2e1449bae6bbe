"""The weighted log loss and the focal loss.

The positive weight multiplies the loss of positives, as `pos_weight` of torch does. The focal loss is
-(1 - p_t)^gamma log(p_t), with p_t the probability of the true label (Lin et al., arXiv 1708.02002, Equation
4).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from ...config.model import ModelSection
from ..layers.dense import weighted_mean


class TrainingLoss:
    """The loss that training minimizes, and the offset that calibrates logits.

    Any thread may call it.

    Of several labels it is the sum of their mean losses, each times its weight (Caruana, Multitask Learning,
    1997, with weights).

    Args:
        model: the section [model], of which `loss`, `focal_gamma`, `positive_weight` and `label_smoothing`
            count.
        weights: factor of each label's loss, see `DataSection.loss_weights`.

    Attributes:
        is_plain: whether this is the mean log loss of one label, without a weight of positives or smoothing.
        logit_offset: the number that is added to a logit to calibrate it.
    """

    def __init__(self, model: ModelSection, weights: Sequence[float] = (1.0,)) -> None:
        self._weights = tuple(weights)
        self._gamma = model.gamma
        self._positive_weight = model.positive_weight
        self._smoothing = model.label_smoothing
        is_log_loss = self._gamma is None and self._positive_weight == 1.0 and not self._smoothing
        self.is_plain = is_log_loss and len(self._weights) == 1
        # With a weight w of positives the model learns w times the odds.
        self.logit_offset = model.logit_offset

    def mean(
        self, logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the mean loss of a batch, a scalar, in nats.

        Logits and labels are float32 [B], or [B, T] of T labels; `weights` are sample weights, float32 [B],
        none negative. The positive weight is not in the divisor, so a batch with more positives has more
        weight.
        """
        if self._gamma is not None:
            each = focal_loss(logits, labels, self._gamma)
        else:
            positive = logits.new_full((), self._positive_weight)
            if self._smoothing:
                labels = labels * (1.0 - self._smoothing) + 0.5 * self._smoothing
            each = binary_cross_entropy_with_logits(logits, labels, reduction="none", pos_weight=positive)
        if each.ndim == 1:
            return weighted_mean(each, weights)
        # Not a product with a tensor of the factors, which would have to be copied to a GPU in each step.
        labelled = zip(self._weights, each.unbind(dim=1), strict=True)
        return torch.stack([factor * weighted_mean(losses, weights) for factor, losses in labelled]).sum()


def focal_loss(logits: torch.Tensor, labels: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return the focal loss of each logit; with gamma 0 the log loss."""
    towards = torch.where(labels == 1.0, logits, -logits)
    # (1 - p_t)^gamma is computed by its logarithm, because 1 - p_t may round to 0, where the power has no
    # slope.
    loss: torch.Tensor = -torch.exp(gamma * logsigmoid(-towards)) * logsigmoid(towards)
    return loss
