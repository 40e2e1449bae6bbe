"""Building blocks of models: pair products, loss, gradient clipping, MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import binary_cross_entropy_with_logits

# The value of `torch.nn.utils.clip_grad_norm_`.
_CLIP_EPS = 1e-6

FIRST_SLOPE: Final = 0.25
"""The first slope of a PReLU, that of He et al., arXiv 1502.01852."""
THIN_ELEMENTS: Final = 4096
"""Layers with fewer weights gain nothing by lower precision: each product of bfloat16 takes some 25
microseconds before it begins."""


class PairProducts(nn.Module):
    """Dot products of all pairs of an example's vectors.

    Each pair is computed once, in float32 also under autocast, because lower precision saves no time for
    short vectors. Float64 inputs stay float64.

    Args:
        features: F, the number of vectors of an example.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(features, features, -1)
        self.count = len(rows)
        self.register_buffer("pairs", rows * features + columns, persistent=False)
        # For each place of a symmetric matrix the pair whose gradient belongs there. The diagonal has pair 0,
        # which the backward pass clears.
        mirror = torch.zeros((features, features), dtype=torch.int64)
        mirror[rows, columns] = mirror[columns, rows] = torch.arange(self.count)
        self.register_buffer("mirror", mirror.flatten(), persistent=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the pair products of vectors [B, F, K].

        The result is [B, F (F - 1) / 2], float32 or float64: the lower triangle, row by row.
        """
        with torch.autocast(vectors.device.type, enabled=False):
            wide = vectors if vectors.dtype == torch.float64 else vectors.float()
            pairs, mirror = self.get_buffer("pairs"), self.get_buffer("mirror")
            # Without gradients the plain form gives the same products, and can be exported.
            if not (torch.is_grad_enabled() and wide.requires_grad):
                return _products(wide, pairs)
            result = _PairProductsFunction.apply(wide, pairs, mirror)  # type: ignore[no-untyped-call]
            return cast(torch.Tensor, result)


def mean_log_loss(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean log loss in nats, a scalar.

    Logits and labels are float32 [B]. The mean is weighted by `weights`, float32 [B], none negative, if
    given. A batch with only weights of 0 has loss 0 and a gradient of 0.
    """
    if weights is None:
        return binary_cross_entropy_with_logits(logits, labels)
    return weighted_mean(binary_cross_entropy_with_logits(logits, labels, reduction="none"), weights)


def weighted_mean(each: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
    """Return the mean of the values, float32 [B]; 0 if all weights are 0."""
    if weights is None:
        return each.mean()
    total = weights.sum().clamp(min=torch.finfo(torch.float32).tiny)
    mean: torch.Tensor = (each * weights).sum() / total
    return mean


def clip_(gradient: torch.Tensor, limit: float) -> torch.Tensor:
    """Scale a flat gradient to a norm of at most `limit`.

    The norm is Euclidean, over all parameters together; the gradient is float32 [numel] and is changed in
    place. Returns the norm before scaling, a scalar on the gradient's device. Does not wait for the device.

    Source: Pascanu, Mikolov, Bengio, arXiv 1211.5063, Algorithm 1.
    """
    norm: torch.Tensor = torch.linalg.vector_norm(gradient)
    gradient.mul_((limit / (norm + _CLIP_EPS)).clamp(max=1.0))
    return norm


class ThinLinear(nn.Linear):
    """A linear layer in float32, also under autocast."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return float32 [..., out] from [..., in]."""
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(inputs)
        with torch.autocast(device, enabled=False):
            return super().forward(inputs.float())


class PReLU(nn.Module):
    """max(0, x) + slope * min(0, x), with a slope for each feature.

    Unlike torch's own it takes the features from the last dimension.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((width,), FIRST_SLOPE))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the shape of `inputs`, [..., width]."""
        return torch.where(inputs > 0, inputs, self.slope * inputs)


def relu(width: int) -> nn.Module:  # noqa: ARG001
    """Return a ReLU, of features of any width."""
    # In place, because nothing else reads a linear layer's output and its gradient does not need it.
    return nn.ReLU(inplace=True)


class MLP(nn.Sequential):
    """Linear layers and their activations, which `regularize_` finds."""


def mlp(widths: Sequence[int], *, last_relu: bool, activation: Callable[[int], nn.Module] = relu) -> MLP:
    """Return linear layers of these widths with an activation between them.

    With `last_relu` there is also one after the last layer. `activation` makes one of a width.
    """
    layers: list[nn.Module] = []
    for number, (width_in, width_out) in enumerate(pairwise(widths)):
        kind = ThinLinear if width_in * width_out < THIN_ELEMENTS else nn.Linear
        layers.append(kind(width_in, width_out))
        if last_relu or number < len(widths) - 2:
            layers.append(activation(width_out))
    return MLP(*layers)


def regularize_(module: nn.Module, *, dropout: float, layer_norm: bool) -> None:
    """Add what `model.dropout` and `model.layer_norm` say to all hidden layers of a module's MLPs, in place.

    Without either nothing changes, nor do the names of parameters. Draws no random numbers.
    """
    if not (dropout or layer_norm):
        return
    for part in [part for part in module.modules() if isinstance(part, MLP)]:
        for number in range(1, len(part), 2):
            layers = [part[number]]
            if layer_norm:
                layers.insert(0, nn.LayerNorm(cast(nn.Linear, part[number - 1]).out_features))
            if dropout:
                layers.append(nn.Dropout(dropout))
            part[number] = nn.Sequential(*layers)


def set_biases_(towers: nn.ModuleList, logit: float | Sequence[float]) -> None:
    """Set the biases of each tower's last layer, in place.

    `logit` is a list, unless there is one tower.
    """
    for tower, value in zip(towers, [logit] if isinstance(logit, float) else logit, strict=True):
        set_bias_(cast(nn.Sequential, tower)[-1], value)


def set_bias_(layer: nn.Module, value: float) -> None:
    """Set all biases of a linear layer, in place."""
    with torch.no_grad():
        layer.get_parameter("bias").fill_(value)


def _products(vectors: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class _PairProductsFunction(torch.autograd.Function):
    """Compute pair products with a backward pass of one multiplication.

    Autograd would scatter the gradient into one triangle, multiply twice, and add. Here the gradient is
    mirrored into both triangles and multiplied once.
    """

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, pairs: torch.Tensor, mirror: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(vectors, mirror)
        return _products(vectors, pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        vectors, mirror = ctx.saved_tensors
        features = vectors.shape[1]
        both = gradient.index_select(1, mirror)
        both[:, :: features + 1] = 0.0
        return torch.bmm(both.view(-1, features, features), vectors), None, None
