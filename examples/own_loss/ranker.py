"""A model that ranks the rows of a user: with a loss over pairs, and scores that are no logits.

Source of the loss: Rendle et al., BPR, arXiv 1205.2618.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus


class PairAccuracy:
    """Share of the pairs of a user's rows, within a batch, whose better row has the higher score."""

    def __init__(self) -> None:
        self._right, self._pairs = 0, 0

    def add(self, scores: np.ndarray, batch: Any) -> None:
        """Add a batch: scores float32 [B]."""
        user, labels = batch.groups["user"], batch.labels
        pairs = (user[:, None] == user) & (labels[:, None] > labels)
        self._right += int(np.count_nonzero(pairs & (scores[:, None] > scores)))
        self._pairs += int(np.count_nonzero(pairs))

    def result(self) -> float | None:
        """The share; None without a pair."""
        return self._right / self._pairs if self._pairs else None


class Ranker(nn.Module):
    """An MLP over all embeddings, which learns which of two rows of a user is the better one.

    Args:
        dense_features: D.
        embedding_dims: K_t of each of the T tables.
        hidden: widths of the MLP.
    """

    metrics: ClassVar[dict[str, type]] = {"pair_accuracy": PairAccuracy}

    def __init__(
        self, dense_features: int, embedding_dims: list[int], hidden: Sequence[int] = (64, 32)
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = dense_features + sum(embedding_dims)
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            width = next_width
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs, in any form: here a dict with a value [B] from dense [B, D] and T embeddings [B, K_t]."""
        return {"value": self.layers(torch.cat([dense, *embeddings], dim=1)).squeeze(1)}

    def loss(self, outputs: dict[str, torch.Tensor], batch: Any) -> torch.Tensor:
        """The mean of log(1 + exp(negative - positive)) over the pairs of a user's rows in the batch.

        All of it has the shape [B, B], whatever pairs there are: a GPU can capture it. Without a pair it is
        0, and no parameter moves.
        """
        value, labels, user = outputs["value"], batch.labels, batch.groups["user"]
        pairs = (user[:, None] == user[None, :]) & (labels[:, None] > labels[None, :])
        each = softplus(value[None, :] - value[:, None]) * pairs
        mean: torch.Tensor = each.sum() / pairs.sum().clamp(min=1)
        return mean

    def scores(self, outputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Scores [B], by which rows are ranked."""
        return outputs["value"]
