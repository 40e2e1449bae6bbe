"""DeepFM (Guo et al., arXiv 1703.04247): a factorization machine and an MLP over the same vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..layers.dense import mlp, set_bias_


class DeepFM(nn.Module):
    """DeepFM: `y = w x + sum over i < j of <v_i, v_j> + MLP(x, v_1, ..., v_T)` (Equations 1 to 4).

    As in `wide_deep`, the first component of an id's embedding is its weight in the linear part, and the
    others are its vector v, which both other parts share. Dense features are in the linear part and the MLP;
    the paper makes fields of them, which buckets do here.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K of each of the T tables, which are equal and at least 2.
        top: hidden widths of the MLP; a last layer of width 1 follows.

    Raises ValueError for tables that do not fit.
    """

    def __init__(self, dense_features: int, embedding_dims: Sequence[int], *, top: Sequence[int]) -> None:
        super().__init__()
        if len(set(embedding_dims)) != 1 or embedding_dims[0] < 2:
            raise ValueError(
                f"deepfm needs tables of one dimension, at least 2; these have {sorted(set(embedding_dims))};"
                " make them equal, or use dcn_v2 or wide_deep"
            )
        self.linear = nn.Linear(dense_features, 1) if dense_features else None
        width = dense_features + len(embedding_dims) * (embedding_dims[0] - 1)
        self.deep = mlp([width, *top, 1], last_relu=False)

    def set_output_bias(self, logit: float) -> None:
        """Set the MLP's bias to `logit`, and the linear part's to 0."""
        set_bias_(self.deep[-1], logit)
        if self.linear is not None:
            set_bias_(self.linear, 0.0)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K]."""
        fields = torch.stack(embeddings, dim=1)
        vectors = fields[:, :, 1:]
        logits = fields[:, :, 0].sum(dim=1)
        # Of all pairs, as half of the square of the sum less the sum of the squares.
        logits = logits + 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        if self.linear is not None:
            logits = logits + self.linear(dense).squeeze(1)
        deep: torch.Tensor = self.deep(torch.cat([dense, vectors.flatten(1)], dim=1))
        return logits + deep.squeeze(1)
