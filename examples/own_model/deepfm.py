"""DeepFM as a model of one's own: a factorization machine beside an MLP.

Source: Guo et al., arXiv 1703.04247.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class DeepFM(nn.Module):
    """A factorization machine over pairs of embeddings, beside an MLP over all of them.

    shadowsync makes it with the width of the dense input, the widths of the embeddings in the order of the
    job file's columns, and the keys of `[model.options]`.

    Args:
        dense_features: D.
        embedding_dims: K_t of each of the T tables; a factorization machine needs them equal.
        hidden: widths of the MLP.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: list[int],
        hidden: Sequence[int] = (64, 32),
    ) -> None:
        super().__init__()
        if len(set(embedding_dims)) != 1:
            raise ValueError(f"DeepFM needs embeddings of one width, and has {embedding_dims}")
        self.linear = nn.Linear(dense_features, 1)
        layers: list[nn.Module] = []
        width = dense_features + sum(embedding_dims)
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Logits [B] from dense [B, D] and T embeddings [B, K], all float32."""
        side_by_side = torch.cat([dense, *embeddings], dim=1)
        vectors = torch.stack(embeddings, dim=1)
        # The sum over all pairs, as half the square of the sum less the sum of the squares.
        pairs = 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1)
        logits: torch.Tensor = self.linear(dense).squeeze(1) + pairs + self.deep(side_by_side).squeeze(1)
        return logits
