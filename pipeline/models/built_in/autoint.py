"""AutoInt (Song et al., CIKM 2019, arXiv 1810.11921): self-attention over the features of an example."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..layers.dense import mlp, set_bias_


class FeatureAttention(nn.Module):
    """One interacting layer, of [B, F, in] to [B, F, heads * width] (Equations 5 to 8).

    `ReLU(concatenated heads + W_res e)`, where a head is the mean of all features' W_v e, weighted by the
    softmax of <W_q e_m, W_k e_k> over k; without the division by a root, as in the paper.
    """

    def __init__(self, width_in: int, heads: int, width: int) -> None:
        super().__init__()
        self._heads = heads
        self.query, self.key, self.value, self.residual = (
            nn.Linear(width_in, heads * width, bias=False) for _ in range(4)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the next layer's features."""
        query, key, value = (
            part(features).unflatten(2, (self._heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = torch.matmul(query, key.transpose(2, 3)).softmax(dim=3)
        attended = torch.matmul(weights, value).transpose(1, 2).flatten(2)
        return torch.relu(attended + self.residual(features))


class AutoInt(nn.Module):
    """AutoInt, and with hidden layers AutoInt+, the sum of its logit and an MLP's.

    The features are the vector of each table, and x v of each dense feature x with a learned vector v
    (Section 4.3).

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K of each of the T tables, which are equal.
        top: hidden widths of the MLP over all dense features and vectors; without any there is no MLP.
        layers: number of interacting layers.
        heads: attention heads of a layer.
        head_dim: width of a head.

    Raises ValueError for an argument that cannot be used.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        top: Sequence[int],
        layers: int = 3,
        heads: int = 2,
        head_dim: int = 16,
    ) -> None:
        super().__init__()
        if len(set(embedding_dims)) != 1:
            raise ValueError(
                f"autoint needs tables of one dimension; these have {sorted(set(embedding_dims))}; make them"
                " equal, or use dcn_v2"
            )
        for name, value in (("layers", layers), ("heads", heads), ("head_dim", head_dim)):
            if not 1 <= value <= 1024:
                raise ValueError(f"{name}: {value} given; give 1 to 1024")
        dim, features = embedding_dims[0], dense_features + len(embedding_dims)
        self.dense_vectors = nn.Parameter(torch.empty(dense_features, dim).uniform_(-0.05, 0.05))
        widths = [dim, *[heads * head_dim] * layers]
        self.attention = nn.Sequential(*(FeatureAttention(width, heads, head_dim) for width in widths[:-1]))
        self.last = nn.Linear(features * widths[-1], 1)
        width = dense_features + sum(embedding_dims)
        self.deep = mlp([width, *top, 1], last_relu=False) if top else None

    def set_output_bias(self, logit: float) -> None:
        """Set the bias of the attention's logit, and of the MLP's to 0."""
        set_bias_(self.last, logit)
        if self.deep is not None:
            set_bias_(self.deep[-1], 0.0)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K]."""
        features = torch.cat([dense.unsqueeze(2) * self.dense_vectors, torch.stack(embeddings, dim=1)], dim=1)
        logits: torch.Tensor = self.last(self.attention(features).flatten(1)).squeeze(1)
        if self.deep is None:
            return logits
        deep: torch.Tensor = self.deep(torch.cat([dense, *embeddings], dim=1))
        return logits + deep.squeeze(1)
