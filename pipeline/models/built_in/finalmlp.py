"""FinalMLP (Mao et al., AAAI 2023, arXiv 2304.00902): two MLPs with gates of their own, and their product."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..layers.dense import mlp, set_bias_


class FinalMLP(nn.Module):
    """FinalMLP: `y = b + w_1 o_1 + w_2 o_2 + sum over heads of o_1h W_h o_2h` (Equations 6 to 8).

    o_1 and o_2 are the outputs of two MLPs of the dense features and embeddings side by side, each input
    times a gate of its stream, 2 sigmoid(g) (Equations 4 and 5). The gates are learned numbers; the paper
    may also compute them from chosen columns.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables; they may differ.
        bottom: widths of the first stream's layers, at least one.
        top: widths of the second stream's layers, at least one.
        heads: into how many parts both outputs are cut for the product; divides their widths.

    Raises ValueError for an argument that cannot be used.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        heads: int = 1,
    ) -> None:
        super().__init__()
        if not bottom or not top:
            raise ValueError("finalmlp has two streams: give widths as model.bottom and as model.top")
        if heads < 1 or bottom[-1] % heads or top[-1] % heads:
            raise ValueError(
                f"heads: {heads} given; give a number that divides the last widths of model.bottom and"
                f" model.top, {bottom[-1]} and {top[-1]}"
            )
        width = dense_features + sum(embedding_dims)
        self.gates = nn.Parameter(torch.zeros(2, width))
        self.first = mlp([width, *bottom], last_relu=True)
        self.second = mlp([width, *top], last_relu=True)
        self.linear = nn.Linear(bottom[-1] + top[-1], 1)
        self.products = nn.Parameter(torch.empty(heads, bottom[-1] // heads, top[-1] // heads))
        nn.init.xavier_normal_(self.products)

    def set_output_bias(self, logit: float) -> None:
        set_bias_(self.linear, logit)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K_t]."""
        x = torch.cat([dense, *embeddings], dim=1)
        gates = 2.0 * torch.sigmoid(self.gates)
        first, second = self.first(x * gates[0]), self.second(x * gates[1])
        logits: torch.Tensor = self.linear(torch.cat([first, second], dim=1)).squeeze(1)
        heads = self.products.shape[0]
        # [heads, B, width of a head] of both.
        left, right = (stream.unflatten(1, (heads, -1)).transpose(0, 1) for stream in (first, second))
        products: torch.Tensor = (torch.bmm(left, self.products) * right).sum(dim=(0, 2))
        return logits + products
