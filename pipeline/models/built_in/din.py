"""DIN, the Deep Interest Network (Zhou et al., KDD 2018, arXiv 1706.06978).

Each vector of a user's history is weighed by a small network that also sees the vector of the item to be
scored. So the sum of a history differs from item to item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import torch
from torch import nn

from ..layers.dense import PReLU, mlp, set_bias_
from ..layers.sequences import EmbeddedSequence, Embeddings, ModelInput


class ActivationUnit(nn.Module):
    """The weight a(e, v) of a history's vector e, given the target's vector v.

    An MLP of [e, v, e - v, e * v] with one output, without a softmax over the history: the sum of the
    weights tells how strong the interest is (Section 4.3). Figure 2 has the outer product in place of the
    difference and the product; these are of the authors' own code.

    Args:
        dim: K, the width of both vectors.
        hidden: widths of the hidden layers; [36] in Figure 2.
    """

    def __init__(self, dim: int, hidden: Sequence[int]) -> None:
        super().__init__()
        # No `MLP`: what is dropped of it would change the weights of a whole history.
        self.weight = nn.Sequential(*mlp([4 * dim, *hidden, 1], last_relu=False, activation=PReLU))

    def forward(self, history: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the weights [B, L] of histories [B, L, K], given targets [B, K]."""
        targets = target.unsqueeze(1).expand_as(history)
        seen = torch.cat([history, targets, history - targets, history * targets], dim=2)
        return cast(torch.Tensor, self.weight(seen)).squeeze(2)


class DIN(nn.Module):
    """DIN on sequences, or the paper's base model without any.

    Each sequence becomes the sum of a(e_j, v) e_j over its vectors e_j (Equation 3), with the target's vector
    v. An MLP with PReLU computes the logit from the dense features, all vectors of one id or of pooled bags,
    and these sums, side by side. An empty history has the sum 0. The paper's Dice is left out, because it
    needs statistics of batches.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        inputs: the T entries of `embeddings`.
        top: hidden widths of the MLP.
        attention: the target's column for each column that is a sequence.
        unit: hidden widths of the activation units.
        positions: whether each place of a sequence has a learned vector, at first 0, which is added to the
            history's vector there; place 0 is the first id of the list.

    Raises ValueError for an argument that cannot be used.
    """

    takes_sequences: Final = True

    def __init__(
        self,
        dense_features: int,
        embedding_dims: Sequence[int],
        *,
        inputs: Sequence[ModelInput],
        top: Sequence[int],
        attention: Mapping[str, str],
        unit: Sequence[int] = (36,),
        positions: bool = False,
    ) -> None:
        super().__init__()
        if not all(type(width) is int and width > 0 for width in unit):
            raise ValueError(f"unit: {list(unit)} given; give the widths of its hidden layers, as in [36]")
        names = [entry.name for entry in inputs]
        self._targets = {
            number: names.index(attention[entry.name])
            for number, entry in enumerate(inputs)
            if entry.longest is not None
        }
        self.units = nn.ModuleDict(
            {str(number): ActivationUnit(inputs[number].dim, unit) for number in self._targets}
        )
        places = {
            str(number): nn.Parameter(torch.zeros(inputs[number].longest or 0, inputs[number].dim))
            for number in self._targets
            if positions
        }
        self.places = nn.ParameterDict(places)
        width = dense_features + sum(embedding_dims)
        self.top = mlp([width, *top, 1], last_relu=False, activation=PReLU)

    def set_output_bias(self, logit: float) -> None:
        set_bias_(self.top[-1], logit)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        """Return float32 logits [B] from dense [B, D] and T entries, see `sequences`."""
        columns = [dense]
        for number, vectors in enumerate(embeddings):
            if number in self._targets:
                target = cast(torch.Tensor, embeddings[self._targets[number]])
                vectors = self._interest(str(number), cast(EmbeddedSequence, vectors), target)
            columns.append(cast(torch.Tensor, vectors))
        logits: torch.Tensor = self.top(torch.cat(columns, dim=1)).squeeze(1)
        return logits

    def _interest(self, name: str, history: EmbeddedSequence, target: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum [B, K] of a history."""
        vectors = history.vectors
        if name in self.places:
            vectors = vectors + self.places[name][: vectors.shape[1]]
        weights = self.units[name](vectors, target)
        # A place behind the list has a weight, too, and with `positions` a vector.
        weights = weights.masked_fill(~history.mask(), 0.0)
        interest: torch.Tensor = (weights.unsqueeze(2) * vectors).sum(dim=1)
        return interest
