"""A model of one's own that is not finite for some batches, the same ones whoever trains them."""

from __future__ import annotations

import torch
from torch import nn

NAME = "shadowsync.tests.support.jobs.unruly_model:Unruly"


class Unruly(nn.Module):
    """A logistic regression that divides by zero for about one batch in `one_in`, by the batch's content.

    Args:
        kind: what is not finite of those: the "loss"; or behind a finite loss the gradient of the "dense"
            parameters, or of the "rows" alone.
        one_in: 1 for every batch, 0 for none.
    """

    def __init__(
        self, dense_features: int, embedding_dims: list[int], kind: str = "loss", one_in: int = 20
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(dense_features + sum(embedding_dims), 1)
        self.kind, self.one_in = kind, one_in

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.linear(torch.cat([dense, *embeddings], dim=1)).squeeze(1)
        if self.training and self._is_bad(dense):
            if self.kind == "loss":
                return logits / torch.zeros_like(logits)
            # The root of 0 is 0, and its gradient infinite.
            inner = logits if self.kind == "dense" else torch.stack([e.sum() for e in embeddings]).sum()
            return logits + torch.sqrt(inner * 0.0)
        return logits

    def _is_bad(self, dense: torch.Tensor) -> bool:
        if self.one_in < 2:
            return self.one_in == 1
        return int(dense.double().abs().sum().item() * 1e4) % self.one_in == 0
