"""Built-in models of several labels: shared bottom, MMoE and PLE.

The shared-bottom model (Caruana, Multitask Learning, Machine Learning 28, 1997) has layers that all labels
share, and a tower for each label. MMoE, the multi-gate mixture-of-experts (Ma et al., KDD 2018, Modeling Task
Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts), has experts that all labels share,
and of each label a gate that mixes them and a tower. PLE, progressive layered extraction (Tang et al.,
RecSys 2020), also has experts of each label, in several levels. With one label they are like any other model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from ..layers.dense import ThinLinear, mlp, set_biases_


def _towers(width: int, top: Sequence[int], tasks: int) -> nn.ModuleList:
    return nn.ModuleList(mlp([width, *top, 1], last_relu=False) for _ in range(tasks))


def _logits(towers: nn.ModuleList, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the towers' outputs, [B, T], or [B] of one tower.

    `inputs` has the input of each tower, [B, width].
    """
    columns = [tower(x) for tower, x in zip(towers, inputs, strict=True)]
    return columns[0].squeeze(1) if len(columns) == 1 else torch.cat(columns, dim=1)


class _WithTowers(nn.Module):
    """A model with a tower for each label."""

    towers: nn.ModuleList

    def set_output_bias(self, logit: float | Sequence[float]) -> None:
        """Set the bias of each label's logit; one number for one label."""
        set_biases_(self.towers, logit)


class SharedBottom(_WithTowers):
    """Shared bottom: `y_k = h^k(f(x))`.

    x is the dense features and all embeddings side by side; widths of embeddings may differ. f is the shared
    MLP, with a ReLU after each layer, h^k the tower of label k.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the tables.
        bottom: widths of the shared layers; without any, the towers see x.
        top: hidden widths of each tower; a last layer of width 1 follows.
        tasks: T, the number of labels.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        tasks: int = 1,
    ) -> None:
        super().__init__()
        widths = [dense_features + sum(embedding_dims), *bottom]
        self.bottom = mlp(widths, last_relu=True)
        self.towers = _towers(widths[-1], top, tasks)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits, [B] for one label, otherwise [B, T].

        Inputs are dense [B, D] and the embeddings, [B, K_t] each.
        """
        shared = self.bottom(torch.cat([dense, *embeddings], dim=1))
        return _logits(self.towers, [shared] * len(self.towers))


class MMoE(_WithTowers):
    """Multi-gate mixture-of-experts.

    `y_k = h^k(f^k(x))` with `f^k(x) = sum over i of g^k(x)_i f_i(x)` (Equations 6 and 7), where h^k is the
    tower of label k and f_i expert i, an MLP with a ReLU after each layer. The gates are
    `g^k(x) = softmax(W_gk x)`, without a bias. x is as for `SharedBottom`. Raises ValueError for an argument
    that cannot be used.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the tables.
        bottom: widths of each expert's layers, at least one.
        top: hidden widths of each tower; a last layer of width 1 follows.
        experts: number of experts.
        tasks: T, the number of labels.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        experts: int = 8,
        tasks: int = 1,
    ) -> None:
        super().__init__()
        width = dense_features + sum(embedding_dims)
        if not bottom:
            raise ValueError("bottom: no widths given; an expert of mmoe has at least one layer")
        if not 1 <= experts <= 1024:
            raise ValueError(f"experts: {experts} given; give 1 to 1024")
        self.experts = nn.ModuleList(mlp([width, *bottom], last_relu=True) for _ in range(experts))
        # In float32 also under autocast: a gate is thin, and its softmax is sensitive.
        self.gates = nn.ModuleList(ThinLinear(width, experts, bias=False) for _ in range(tasks))
        self.towers = _towers(bottom[-1], top, tasks)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits, [B] for one label, otherwise [B, T].

        Inputs are dense [B, D] and the embeddings, [B, K_t] each.
        """
        x = torch.cat([dense, *embeddings], dim=1)
        experts = torch.stack([expert(x) for expert in self.experts], dim=1)
        gates = torch.stack([gate(x).softmax(dim=1) for gate in self.gates], dim=1)
        # [B, T, experts] times [B, experts, width].
        mixed = torch.bmm(gates.to(experts.dtype), experts)
        return _logits(self.towers, mixed.unbind(dim=1))


class ExtractionLevel(nn.Module):
    """One level of PLE: experts of each label, and experts that all labels share.

    The output of label k mixes its own experts and the shared ones, by the softmax of `W_k x_k`; that of the
    shared part mixes all experts, and is what the shared experts of the next level see (Equations 5 and 6).

    Args:
        width: of each input.
        bottom: widths of each expert's layers.
        tasks: T, the number of labels.
        specific: number of experts of each label.
        shared: number of shared experts.
        is_last: whether nothing sees the output of the shared part, which is then left out.
    """

    def __init__(
        self, width: int, bottom: Sequence[int], tasks: int, specific: int, shared: int, *, is_last: bool
    ) -> None:
        super().__init__()

        def experts(count: int) -> nn.ModuleList:
            return nn.ModuleList(mlp([width, *bottom], last_relu=True) for _ in range(count))

        self.own = nn.ModuleList(experts(specific) for _ in range(tasks))
        self.shared = experts(shared)
        self.gates = nn.ModuleList(ThinLinear(width, specific + shared, bias=False) for _ in range(tasks))
        self.shared_gate = None if is_last else ThinLinear(width, tasks * specific + shared, bias=False)

    def forward(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the outputs of each label and of the shared part, from inputs [B, width] in this order."""
        *of_labels, of_all = inputs
        shared = [expert(of_all) for expert in self.shared]
        specific = [
            [expert(x) for expert in cast(nn.ModuleList, experts)]
            for experts, x in zip(self.own, of_labels, strict=True)
        ]
        outputs = [
            _mixed(gate(x), [*experts, *shared])
            for gate, x, experts in zip(self.gates, of_labels, specific, strict=True)
        ]
        if self.shared_gate is not None:
            every = [expert for experts in specific for expert in experts]
            outputs.append(_mixed(self.shared_gate(of_all), [*every, *shared]))
        return outputs


def _mixed(gate: torch.Tensor, experts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of experts' outputs, weighted by the softmax of a gate, [B, number of experts]."""
    outputs = torch.stack(list(experts), dim=1)
    weights = gate.softmax(dim=1).unsqueeze(1).to(outputs.dtype)
    return torch.bmm(weights, outputs).squeeze(1)


class PLE(_WithTowers):
    """Progressive layered extraction (Tang et al., RecSys 2020).

    Levels of experts, each mixed by gates, and a tower for each label on its output of the last level. x is
    as for `SharedBottom`, and the input of all parts of the first level. With one level it is the paper's
    CGC. Raises ValueError for an argument that cannot be used.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the tables.
        bottom: widths of each expert's layers, at least one.
        top: hidden widths of each tower; a last layer of width 1 follows.
        levels: number of levels.
        experts: number of experts of each label in a level.
        shared_experts: number of experts in a level that all labels share.
        tasks: T, the number of labels.
    """

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        bottom: Sequence[int],
        top: Sequence[int],
        levels: int = 2,
        experts: int = 2,
        shared_experts: int = 2,
        tasks: int = 1,
    ) -> None:
        super().__init__()
        if not bottom:
            raise ValueError("bottom: no widths given; an expert of ple has at least one layer")
        counts = (("levels", levels), ("experts", experts), ("shared_experts", shared_experts))
        for name, value in counts:
            if not 1 <= value <= 1024:
                raise ValueError(f"{name}: {value} given; give 1 to 1024")
        widths = [dense_features + sum(embedding_dims), *[bottom[-1]] * (levels - 1)]
        self.levels = nn.ModuleList(
            ExtractionLevel(width, bottom, tasks, experts, shared_experts, is_last=number == levels - 1)
            for number, width in enumerate(widths)
        )
        self.towers = _towers(bottom[-1], top, tasks)

    def forward(self, dense: torch.Tensor, embeddings: list[torch.Tensor]) -> torch.Tensor:
        """Return float32 logits, [B] for one label, otherwise [B, T].

        Inputs are dense [B, D] and the embeddings, [B, K_t] each.
        """
        x = torch.cat([dense, *embeddings], dim=1)
        outputs = [x] * (len(self.towers) + 1)
        for level in self.levels:
            outputs = level(outputs)
        return _logits(self.towers, outputs)
