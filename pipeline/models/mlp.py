"""The multi-layer perceptron that the models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import nn

THIN_ELEMENTS: Final = 4096
"""Layers with fewer weights gain nothing by lower precision: each product of bfloat16 takes some 25
microseconds before it begins."""


class ThinLinear(nn.Linear):
    """A linear layer in float32, whatever autocast says."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """float32 [..., out] from [..., in]."""
        device = inputs.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(inputs)
        with torch.autocast(device, enabled=False):
            return super().forward(inputs.float())


def mlp(widths: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them, and after the last if `last_relu`."""
    layers: list[nn.Module] = []
    for at, (width_in, width_out) in enumerate(pairwise(widths)):
        kind = ThinLinear if width_in * width_out < THIN_ELEMENTS else nn.Linear
        layers.append(kind(width_in, width_out))
        if last_relu or at < len(widths) - 2:
            # In place: nothing else reads a linear layer's output, and its gradient does not need it.
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)
