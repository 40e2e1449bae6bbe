"""The built-in dense models: DCN-V2, DLRM, and Wide & Deep.

DCN-V2 (Wang et al., arXiv 2008.13535) has cross layers of full or low rank and an MLP. DLRM (Naumov et al.,
arXiv 1906.00091) has a bottom MLP, dot interaction and a top MLP. Wide & Deep (Cheng et al., arXiv
1606.07792) trains a linear model and an MLP together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from .layers import PairProducts, mlp, set_bias_

ALIGNMENT: Final = 8
"""Products of matrices whose widths are multiples of it are up to a sixth faster than others."""


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
        """Set the bias of the logit."""
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


class DLRM(nn.Module):
    """DLRM, the default model of a job.

    The top MLP's input is padded with zeros to a multiple of ALIGNMENT; the padding's weights have no effect
    and their gradients are 0. Raises ValueError for tables that do not fit.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        bottom: hidden widths of the bottom MLP; a last layer of width K follows.
        top: hidden widths of the top MLP; a last layer of width 1 follows.
        project: whether tables may have several widths. The interaction multiplies vectors of one width K,
            the largest; a linear map without bias widens the other vectors to it (mixed dimensions, Ginart et
            al., arXiv 1909.11810).
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        project: bool = False,
    ) -> None:
        super().__init__()
        dim = max(embedding_dims)
        if any(other != dim for other in embedding_dims) and not project:
            raise ValueError(
                f"dlrm needs tables of one dimension; these have {sorted(set(embedding_dims))}; make them "
                "equal, set model.options.project = true, or use dcn_v2 or wide_deep"
            )
        features = len(embedding_dims) + (1 if dense_features else 0)
        if features < 2:
            raise ValueError(
                "dlrm multiplies pairs of vectors, but one table without dense features gives no pair; add a "
                "table or dense features"
            )
        self.bottom = mlp([dense_features, *bottom, dim], last_relu=True) if dense_features else None
        self.products = PairProducts(features)
        joined = (dim if dense_features else 0) + self.products.count
        self._padding = -joined % ALIGNMENT
        self.top = mlp([joined + self._padding, *top, 1], last_relu=False)
        narrow = {str(t): nn.Linear(k, dim, bias=False) for t, k in enumerate(embedding_dims) if k != dim}
        self.projections = nn.ModuleDict(narrow)

    def set_output_bias(self, logit: float) -> None:
        """Set the bias of the logit."""
        set_bias_(self.top[-1], logit)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T [B, K_t]."""
        return self._logits([] if self.bottom is None else [self.bottom(dense)], embeddings)

    def forward_shared(
        self, dense: torch.Tensor, owner: torch.Tensor, embeddings: list[torch.Tensor]
    ) -> torch.Tensor:
        """Return the logits of examples that share rows of dense features.

        They share them if the features are those of a user, for example. `dense` is [R, D], `owner` int64
        [B]: the row of each example. The bottom MLP, a third of the products of a usual model, is computed
        once for each row.
        """
        below = [] if self.bottom is None else [self.bottom(dense).index_select(0, owner)]
        return self._logits(below, embeddings)

    def _logits(self, below: list[torch.Tensor], embeddings: list[torch.Tensor]) -> torch.Tensor:
        if self.projections:
            embeddings = [
                self.projections[str(t)](vectors) if str(t) in self.projections else vectors
                for t, vectors in enumerate(embeddings)
            ]
        # One cat along the features takes half the time of a stack, forward and backward.
        columns = [*below, *embeddings]
        batch = columns[0].shape[0]
        vectors = torch.cat(columns, dim=1).view(batch, len(columns), -1)
        padding = [embeddings[0].new_zeros((batch, self._padding))] if self._padding else []
        joined = torch.cat([*below, self.products(vectors), *padding], dim=1)
        logits: torch.Tensor = self.top(joined).squeeze(1)
        return logits


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
