"""DCN-V2 (Wang et al., arXiv 2008.13535): cross layers of full or low rank, and an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from ..layers.dense import mlp, set_bias_


class CrossLayer(nn.Module):
    """Cross layer of DCN-V2.

    `x' = x0 * (W x + b) + x`, element by element (Equation 1). With a `rank` r, W is U V^T, where U and V
    have r columns (Equation 2). x0, x and x' are [B, width].
    """

    def __init__(self, width: int, rank: int = 0) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False) if rank else None
        self.up = nn.Linear(rank or width, width)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's x, from x0 (`first`) and this layer's x."""
        mixed = x if self.down is None else self.down(x)
        crossed: torch.Tensor = torch.addcmul(x, first, self.up(mixed))
        return crossed


class DCNv2(nn.Module):
    """DCN-V2: cross layers and an MLP on dense features and embeddings.

    The input x0 is the dense features and all embeddings side by side; widths of embeddings may differ. Each
    cross layer raises the degree of the polynomials by one.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        top: hidden widths of the MLP.
        cross_layers: number of cross layers.
        rank: rank of the cross layers' matrices; 0 for full ones.
        structure: "stacked": the last cross layer's output is the MLP's input; "parallel": x0 is the input of
            both, and a linear layer joins their outputs (Figure 1).

    The mixture of experts of the paper's Section 3.2 is left out. Raises ValueError for an argument that
    cannot be used.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        top: Sequence[int],
        cross_layers: int = 3,
        rank: int = 0,
        structure: str = "stacked",
    ) -> None:
        super().__init__()
        width = dense_features + sum(embedding_dims)
        if cross_layers < 1:
            raise ValueError(f"cross_layers: {cross_layers} given; give 1 or more")
        if not 0 <= rank < width:
            raise ValueError(f"rank: {rank} given; the input is {width} wide, give 0 to {width - 1}")
        if structure not in ("stacked", "parallel"):
            raise ValueError(f'structure: {structure!r} given; give "stacked" or "parallel"')
        self._parallel = structure == "parallel"
        self.cross = nn.ModuleList(CrossLayer(width, rank) for _ in range(cross_layers))
        self.deep = mlp([width, *top], last_relu=True)
        deep_width = top[-1] if top else width
        self.last = nn.Linear(deep_width + (width if self._parallel else 0), 1)

    def set_output_bias(self, logit: float) -> None:
        set_bias_(self.last, logit)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K_t]."""
        first = torch.cat([dense, *embeddings], dim=1)
        x = first
        for layer in self.cross:
            x = layer(first, x)
        joined = torch.cat([x, self.deep(first)], dim=1) if self._parallel else self.deep(x)
        logits: torch.Tensor = self.last(joined).squeeze(1)
        return logits
