"""DLRM: bottom MLP, dot interaction, top MLP (Naumov et al., arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from .layers import PairProducts
from .mlp import mlp

ALIGNMENT: Final = 8
"""Products of matrices whose widths are multiples of it are up to a sixth faster than others."""


class DLRM(nn.Module):
    """The recommendation model that a job has unless it names another.

    The top MLP's input has zeros behind it, up to a multiple of ALIGNMENT; their weights have no effect and
    no gradient.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        bottom: hidden widths of the bottom MLP; a last layer of width K follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.
        project: the interaction multiplies vectors of one width. With tables of several, K is the largest,
            and a linear map without bias brings the others to it (mixed dimensions, Ginart et al., arXiv
            1909.11810); without `project` such tables are refused.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        project: bool = False,
    ) -> None:
        super().__init__()
        dim = max(embedding_dims)
        if any(other != dim for other in embedding_dims) and not project:
            raise ValueError(
                f"dlrm needs tables of one dimension, and has some of {sorted(set(embedding_dims))}; make "
                "them equal, set model.options.project = true, or take dcn_v2 or wide_deep"
            )
        features = len(embedding_dims) + (1 if dense_features else 0)
        if features < 2:
            raise ValueError(
                "dlrm multiplies pairs of vectors; one table alone, with no dense features, has none"
            )
        self.bottom = mlp([dense_features, *bottom, dim], last_relu=True) if dense_features else None
        self.products = PairProducts(features)
        joined = (dim if dense_features else 0) + self.products.count
        self._padding = -joined % ALIGNMENT
        self.top = mlp([joined + self._padding, *top, 1], last_relu=False)
        narrow = {str(t): nn.Linear(k, dim, bias=False) for t, k in enumerate(embedding_dims) if k != dim}
        self.projections = nn.ModuleDict(narrow)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Logits [B] from dense [B, D] and a list of T embeddings [B, K_t], all float32."""
        below = [] if self.bottom is None else [self.bottom(dense)]
        if self.projections:
            embeddings = [
                self.projections[str(t)](vectors) if str(t) in self.projections else vectors
                for t, vectors in enumerate(embeddings)
            ]
        # One cat along the features is half the time of a stack, forward and backward.
        columns = [*below, *embeddings]
        vectors = torch.cat(columns, dim=1).view(len(dense), len(columns), -1)
        padding = [dense.new_zeros((dense.shape[0], self._padding))] if self._padding else []
        joined = torch.cat([*below, self.products(vectors), *padding], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits
