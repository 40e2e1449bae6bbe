"""A causal transformer over a history (SASRec: Kang and McAuley, 2018, arXiv 1808.09781), as a query tower.

Its item tower is the table of the items itself, so the best next items of a whole catalogue are found by an
index over the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

import torch
from torch import nn
from torch.nn.functional import pad

from ...config.job import Job
from ...config.towers import histories_of
from ..layers.attention import Block, ListBlocks, attend, attend_padded
from ..layers.dense import mlp
from ..layers.item_frequency import DEFAULT_RATE
from ..layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence, ModelInput
from .two_tower import TowerInputs, TowerModel


def history_of(job: Job) -> dict[str, bool]:
    """Return the argument `recent_first` of a job's model with a history; see `config.history`."""
    (name,) = histories_of(job.model, job.embedded_columns)
    return {"recent_first": job.data.columns[name].keep == "first"}


class TransformerBlock(nn.Module):
    """x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)) (Section 3.3 of SASRec).

    What attention and MLP return is dropped out; the weights of attention are not, as that needs all of them
    in memory.

    Args:
        dim: K, the width of a vector.
        heads: number of heads.
        dropout: probability.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.projection, self.joined = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = mlp([dim, dim, dim], last_relu=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, vectors: torch.Tensor, blocks: Sequence[Block] | None) -> torch.Tensor:
        """Return the shape of `vectors`: [N, K] of lists in these blocks, or padded [B, L, K] without."""
        projected = self.projection(self.attention_norm(vectors))
        seen = (
            attend_padded(projected, self._heads)
            if blocks is None
            else attend(projected, blocks, self._heads)
        )
        vectors = vectors + self.dropout(self.joined(seen))
        result: torch.Tensor = vectors + self.dropout(self.mlp(self.mlp_norm(vectors)))
        return result


class HistoryTower(nn.Module):
    """The vector of a query from its history, and from other columns if there are any.

    Without others it is the transformer's output for the most recent item. With others an MLP computes it
    from that output and these columns, side by side. In place of the output an empty history has a learned
    vector.

    Args:
        inputs: those of the query; one of its entries is a sequence.
        entries: the T entries of `embeddings`.
        top: hidden widths of the MLP.
        blocks: number of blocks.
        heads: number of heads.
        recent_first: whether lists begin with the most recent item.
        dropout: probability.
    """

    def __init__(
        self,
        inputs: TowerInputs,
        entries: Sequence[ModelInput],
        *,
        top: Sequence[int],
        blocks: int,
        heads: int,
        recent_first: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        (self._history,) = [number for number in inputs.embeddings if entries[number].longest is not None]
        self._dense = inputs.dense_runs()
        self._others = [number for number in inputs.embeddings if number != self._history]
        self._recent_first = recent_first
        history = entries[self._history]
        longest, dim = history.longest or 1, history.dim
        # Place 0 is the most recent item's. The first vectors of ids are small, and so are these.
        self.places = nn.Parameter(torch.empty(longest, dim).uniform_(-0.05, 0.05))
        self.empty = nn.Parameter(torch.empty(dim).uniform_(-0.05, 0.05))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(TransformerBlock(dim, heads, dropout) for _ in range(blocks))
        self.last_norm = nn.LayerNorm(dim)
        width = len(inputs.dense) + sum(entries[number].dim for number in self._others)
        self.top = mlp([dim + width, *top, dim], last_relu=False) if width else None

    def encode(self, history: EmbeddedSequence | JaggedSequence) -> torch.Tensor:
        """Return the outputs for all items of the lists.

        They are [N, K] of a jagged sequence, in its order, or [B, L, K], where those behind a list have no
        meaning. Each depends on the items of its list up to itself, by time.
        """
        if isinstance(history, JaggedSequence):
            lists = ListBlocks.of(history.lengths, latest_first=self._recent_first)
            outputs = self._by_blocks(history, lists)
            return torch.empty_like(outputs).index_copy(0, lists.order, outputs)
        return self._reversed(self._padded(history), history.lengths)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        """Return float32 [B, K] from dense [B, D] and T entries, of which those of items may be anything."""
        history = cast(EmbeddedSequence | JaggedSequence, embeddings[self._history])
        if isinstance(history, JaggedSequence):
            lists = ListBlocks.of(history.lengths, latest_first=self._recent_first)
            # One more for empty lists, if there are no others.
            outputs, last = pad(self._by_blocks(history, lists), (0, 0, 0, 1)), lists.last
        else:
            batch, longest, _ = history.vectors.shape
            outputs = self._padded(history).flatten(0, 1)
            first = torch.arange(batch, device=outputs.device) * longest
            last = first + (history.lengths - 1).clamp(min=0)
        vectors = torch.where(history.lengths[:, None] > 0, outputs.index_select(0, last), self.empty)
        if self.top is None:
            return vectors
        columns = [vectors, *(dense[:, run] for run in self._dense)]
        columns += [cast(torch.Tensor, embeddings[number]) for number in self._others]
        return cast(torch.Tensor, self.top(torch.cat(columns, dim=1)))

    def _by_blocks(self, history: JaggedSequence, lists: ListBlocks) -> torch.Tensor:
        """Return the outputs, [N, K], in the order of the blocks."""
        return self._transformed(history.values.index_select(0, lists.order), lists.ages, lists.blocks)

    def _padded(self, history: EmbeddedSequence) -> torch.Tensor:
        """Return the outputs, [B, L, K], from the oldest item on."""
        places = torch.arange(history.vectors.shape[1], device=history.lengths.device)
        ages = (history.lengths[:, None] - 1 - places).clamp(min=0)
        return self._transformed(self._reversed(history.vectors, history.lengths), ages, None)

    def _reversed(self, vectors: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return padded lists the other way round if they begin with the most recent item."""
        if not self._recent_first:
            return vectors
        places = torch.arange(vectors.shape[1], device=lengths.device)
        others = lengths[:, None] - 1 - places
        others = torch.where(others >= 0, others, places)
        return vectors.gather(1, others[..., None].expand_as(vectors))

    def _transformed(
        self, vectors: torch.Tensor, ages: torch.Tensor, blocks: Sequence[Block] | None
    ) -> torch.Tensor:
        vectors = self.dropout(vectors + self.places[ages])
        for block in self.blocks:
            vectors = block(vectors, blocks)
        return cast(torch.Tensor, self.last_norm(vectors))


class ItemTower(nn.Module):
    """The vector of the item's id, as it is in the table."""

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()
        (self._id,) = inputs.embeddings

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:  # noqa: ARG002
        """Return float32 [B, K]."""
        return cast(torch.Tensor, embeddings[self._id])


class SequenceModel(TowerModel):
    """SASRec as two towers, trained by the softmax over the items of a batch.

    An example has a history and the next item. The query's vector is that of `HistoryTower`, the item's that
    of its row, and the rows of both are of one table.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        inputs: the T entries of `embeddings`.
        query, item: the inputs of each tower.
        recent_first: whether the history begins with the most recent item.
        top: hidden widths of the MLP over the columns of the query beside the history.
        dropout: probability.
        blocks: number of blocks of the transformer.
        heads: number of heads, a divisor of K.
        temperature, normalized, frequency_rate, negatives: see `TowerModel`.

    Raises ValueError for an argument that cannot be used.
    """

    takes_sequences: Final = True
    takes_jagged: Final = True

    def __init__(
        self,
        dense_features: int,  # noqa: ARG002
        embedding_dims: Sequence[int],
        *,
        inputs: Sequence[ModelInput],
        query: TowerInputs,
        item: TowerInputs,
        recent_first: bool,
        top: Sequence[int],
        dropout: float,
        blocks: int = 2,
        heads: int = 1,
        temperature: float = 0.05,
        normalized: bool = True,
        frequency_rate: float = DEFAULT_RATE,
        negatives: int | None = None,
    ) -> None:
        dim = embedding_dims[item.embeddings[0]]
        for name, number in (("blocks", blocks), ("heads", heads)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{name}: {number} given; give their number, 1 or more")
        if dim % heads:
            raise ValueError(f"heads: {heads} given; give a divisor of the {dim} floats of a row")
        super().__init__(
            temperature, normalized, frequency_rate, item_id=item.embeddings[0], negatives=negatives
        )
        self.query = HistoryTower(
            query,
            inputs,
            top=top,
            blocks=blocks,
            heads=heads,
            recent_first=recent_first,
            dropout=dropout,
        )
        self.item = ItemTower(item)
