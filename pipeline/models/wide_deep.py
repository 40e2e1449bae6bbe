"""Wide & Deep (Cheng et al., arXiv 1606.07792): a linear model and an MLP, trained together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from .mlp import mlp


class WideDeep(nn.Module):
    """The sum of a linear model, which remembers single ids, and of an MLP, which generalizes over them.

    The wide part has a weight for each dense feature and one for each id: the first component of its
    embedding, which the deep part does not see. So a table of dimension K gives the deep part K - 1, and a
    table of dimension 1 is in the wide part only. Crossed features, which the paper's wide part has, are
    columns of the input like others. Both parts are trained by the job's one dense optimizer and one row
    optimizer, where the paper has FTRL for the wide part.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables; they may differ.
        top: hidden widths of the deep part; a last layer of width 1 follows.
    """

    def __init__(self, dense_features: int, embedding_dims: Sequence[int], *, top: Sequence[int]) -> None:
        super().__init__()
        deep_width = dense_features + sum(dim - 1 for dim in embedding_dims)
        if not deep_width:
            raise ValueError("wide_deep's deep part has no input: no dense feature, and tables of width 1")
        self.wide = nn.Linear(dense_features, 1) if dense_features else None
        self.deep = mlp([deep_width, *top, 1], last_relu=False)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Logits [B] from dense [B, D] and a list of T embeddings [B, K_t], all float32."""
        ids = torch.cat([vectors[:, :1] for vectors in embeddings], dim=1)
        wide = ids.sum(dim=1)
        if self.wide is not None:
            wide = wide + self.wide(dense).squeeze(1)
        deep = self.deep(torch.cat([dense, *(vectors[:, 1:] for vectors in embeddings)], dim=1))
        logits: torch.Tensor = wide + deep.squeeze(1)
        return logits
