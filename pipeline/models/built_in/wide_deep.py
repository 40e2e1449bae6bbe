"""Wide & Deep (Cheng et al., arXiv 1606.07792): a linear model and an MLP that train together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..layers.dense import mlp, set_bias_


class WideDeep(nn.Module):
    """Wide & Deep: the sum of a linear model and an MLP.

    The linear model memorizes single ids; the MLP generalizes over them.

    The wide part has a weight for each dense feature and for each id. The weight of an id is the first
    component of its embedding, which the deep part does not see. So a table of dimension K gives K - 1
    components to the deep part, and a table of dimension 1 is in the wide part only. The paper's crossed
    features must be columns of the input. The job's dense and row optimizers train both parts; the paper uses
    FTRL for the wide part.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables; they may differ.
        top: hidden widths of the deep part; a last layer of width 1 follows.

    Raises ValueError if the deep part has no input.
    """

    def __init__(self, dense_features: int, embedding_dims: Sequence[int], *, top: Sequence[int]) -> None:
        super().__init__()
        deep_width = dense_features + sum(dim - 1 for dim in embedding_dims)
        if not deep_width:
            raise ValueError(
                "wide_deep's deep part has no input: there are no dense features, and all tables have width 1"
            )
        self.wide = nn.Linear(dense_features, 1) if dense_features else None
        self.deep = mlp([deep_width, *top, 1], last_relu=False)

    def set_output_bias(self, logit: float) -> None:
        """Set the deep part's bias to `logit`, and the wide part's to 0."""
        set_bias_(self.deep[-1], logit)
        if self.wide is not None:
            set_bias_(self.wide, 0.0)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K_t]."""
        ids = torch.cat([vectors[:, :1] for vectors in embeddings], dim=1)
        wide = ids.sum(dim=1)
        if self.wide is not None:
            wide = wide + self.wide(dense).squeeze(1)
        deep = self.deep(torch.cat([dense, *(vectors[:, 1:] for vectors in embeddings)], dim=1))
        logits: torch.Tensor = wide + deep.squeeze(1)
        return logits
