"""DLRM (Naumov et al., arXiv 1906.00091): a bottom MLP, dot interaction and a top MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from ..layers.dense import PairProducts, mlp, set_bias_

ALIGNMENT: Final = 8
"""Products of matrices whose widths are multiples of it are up to a sixth faster than others."""


class DLRM(nn.Module):
    """DLRM, the default model of a job.

    The top MLP's input is padded with zeros to a multiple of ALIGNMENT; the padding's weights have no effect
    and their gradients are 0. Raises ValueError for tables that do not fit.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        bottom: hidden widths of the bottom MLP; a last layer of width K follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.
        project: whether tables may have several widths. The interaction multiplies vectors of one width K,
            the largest; a linear map without bias widens the other vectors to it (mixed dimensions, Ginart et
            al., arXiv 1909.11810).
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
                f"dlrm needs tables of one dimension; these have {sorted(set(embedding_dims))}; make them "
                "equal, set model.options.project = true, or use dcn_v2 or wide_deep"
            )
        features = len(embedding_dims) + (1 if dense_features else 0)
        if features < 2:
            raise ValueError(
                "dlrm multiplies pairs of vectors, but one table without dense features gives no pair; add a "
                "table or dense features"
            )
        self.bottom = mlp([dense_features, *bottom, dim], last_relu=True) if dense_features else None
        self.products = PairProducts(features)
        joined = (dim if dense_features else 0) + self.products.count
        self._padding = -joined % ALIGNMENT
        self.top = mlp([joined + self._padding, *top, 1], last_relu=False)
        narrow = {str(t): nn.Linear(k, dim, bias=False) for t, k in enumerate(embedding_dims) if k != dim}
        self.projections = nn.ModuleDict(narrow)

    def set_output_bias(self, logit: float) -> None:
        set_bias_(self.top[-1], logit)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K_t]."""
        return self._logits([] if self.bottom is None else [self.bottom(dense)], embeddings)

    def forward_shared(
        self, dense: torch.Tensor, owner: torch.Tensor, embeddings: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the logits of examples that share rows of dense features.

        They share them if the features are those of a user, for example. `dense` is [R, D], `owner` int64
        [B]: the row of each example. The bottom MLP, a third of the products of a usual model, is computed
        once for each row.
        """
        below = [] if self.bottom is None else [self.bottom(dense).index_select(0, owner)]
        return self._logits(below, embeddings)

    def _logits(self, below: list[torch.Tensor], embeddings: list[torch.Tensor]) -> torch.Tensor:
        if self.projections:
            embeddings = [
                self.projections[str(t)](vectors) if str(t) in self.projections else vectors
                for t, vectors in enumerate(embeddings)
            ]
        # One cat along the features takes half the time of a stack, forward and backward.
        columns = [*below, *embeddings]
        batch = columns[0].shape[0]
        vectors = torch.cat(columns, dim=1).view(batch, len(columns), -1)
        padding = [embeddings[0].new_zeros((batch, self._padding))] if self._padding else []
        joined = torch.cat([*below, self.products(vectors), *padding], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits
