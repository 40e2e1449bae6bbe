"""DLRM: bottom MLP, dot interaction, top MLP (Naumov et al., arXiv 1906.00091)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def mlp(widths: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them, and after the last if `last_relu`."""
    layers: list[nn.Module] = []
    for at, (width_in, width_out) in enumerate(pairwise(widths)):
        layers.append(nn.Linear(width_in, width_out))
        if last_relu or at < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """The recommendation model that a job has unless it names another.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables; here all equal, K.
        bottom: hidden widths of the bottom MLP; a last layer of width K follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.
    """

    def __init__(
        self, dense_features: int, embedding_dims: Sequence[int], *, bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        dim = embedding_dims[0]
        if any(other != dim for other in embedding_dims):
            raise ValueError("dlrm needs tables of one dimension")
        features = len(embedding_dims) + (1 if dense_features else 0)
        if features < 2:
            raise ValueError(
                "dlrm multiplies pairs of vectors; one table alone, with no dense features, has none"
            )
        self.bottom = mlp([dense_features, *bottom, dim], last_relu=True) if dense_features else None
        pairs = torch.tril_indices(features, features, -1)
        self.register_buffer("pairs", pairs[0] * features + pairs[1], persistent=False)
        self.top = mlp([(dim if dense_features else 0) + pairs.shape[1], *top, 1], last_relu=False)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Logits [B] from dense [B, D] and a list of T embeddings [B, K], all float32."""
        below = [] if self.bottom is None else [self.bottom(dense)]
        # One cat along the features is half the time of a stack, forward and backward.
        columns = [*below, *embeddings]
        vectors = torch.cat(columns, dim=1).view(len(dense), len(columns), -1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        crossed = products.index_select(1, self.get_buffer("pairs"))
        joined = torch.cat([*below, crossed], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits
