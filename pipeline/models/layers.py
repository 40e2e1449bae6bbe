"""Products of all pairs of vectors, with a backward pass that multiplies once."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable


class PairProducts(nn.Module):
    """The dot products of each vector of an example with every other one, each pair once.

    In float32 whatever autocast says (in float64 of such): vectors are short, so that lower precision saves
    no time here.

    Args:
        features: F, how many vectors an example has.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        rows, columns = torch.tril_indices(features, features, -1)
        self.count = len(rows)
        self.register_buffer("pairs", rows * features + columns, persistent=False)
        # Where a pair's gradient belongs in a symmetric matrix; what gets into the diagonal is cleared there.
        mirror = torch.zeros((features, features), dtype=torch.int64)
        mirror[rows, columns] = mirror[columns, rows] = torch.arange(self.count)
        self.register_buffer("mirror", mirror.flatten(), persistent=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """[B, F (F - 1) / 2], float32 or float64, from [B, F, K]: the lower triangle, row by row."""
        with torch.autocast(vectors.device.type, enabled=False):
            wide = vectors if vectors.dtype == torch.float64 else vectors.float()
            pairs, mirror = self.get_buffer("pairs"), self.get_buffer("mirror")
            # The plain form can be exported; it is the same products.
            if not (torch.is_grad_enabled() and wide.requires_grad):
                return _products(wide, pairs)
            result = _PairProducts.apply(wide, pairs, mirror)  # type: ignore[no-untyped-call]
            return cast(torch.Tensor, result)


def _products(vectors: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class _PairProducts(torch.autograd.Function):
    """Autograd would scatter the gradient into one triangle, multiply twice, and add. Mirrored into both
    triangles it is multiplied once."""

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
