"""Two towers, for retrieval (Yi et al., Sampling-Bias-Corrected Neural Modeling, RecSys 2019).

One tower computes a vector from the columns of a query, the other one from those of an item. An item's score
for a query is the product of their vectors, so the best items of a whole catalogue are found by an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from ...config.job import Job
from ...types import Float32Array, Int32Array, Int64Array, Uint64Array
from ..layers.dense import mlp
from ..layers.item_frequency import DEFAULT_RATE, LEAST_RATE, ItemFrequency
from ..layers.sequences import EmbeddedSequence, Embeddings, JaggedSequence
from ..own.loss import LossBatch


class TowerInputs(NamedTuple):
    """The inputs of a tower.

    Attributes:
        dense: numbers of the dense features.
        embeddings: numbers of the entries of `embeddings`.
    """

    dense: list[int]
    embeddings: list[int]

    def dense_runs(self) -> list[slice]:
        """Return `dense` as slices: a list of numbers would be copied to a device in each step."""
        runs: list[slice] = []
        for number in self.dense:
            if runs and runs[-1].stop == number:
                runs[-1] = slice(runs[-1].start, number + 1)
            else:
                runs.append(slice(number, number + 1))
        return runs


def towers_of(job: Job) -> dict[str, Any]:
    """Return the arguments `query`, `item` and perhaps `negatives` of a model with two towers."""
    dense, embedded = job.data.dense_names, [column.name for column in job.embedded_columns]
    negatives = {"negatives": embedded.index(job.model.negatives)} if job.model.negatives else {}
    return negatives | {
        tower: TowerInputs(
            [dense.index(name) for name in columns if name in dense],
            [embedded.index(name) for name in columns if name in embedded],
        )
        for tower, columns in (("query", job.model.query), ("item", job.model.item))
    }


class HardNegatives:
    """Which of the hard negatives of a batch count, from the job's column `model.negatives`.

    Any thread may call it.

    Attributes:
        column: its number among the job's embedded columns.
    """

    def __init__(self, job: Job) -> None:
        names = [column.name for column in job.embedded_columns]
        self.column = names.index(job.model.negatives)
        self._grows = job.embedded_columns[self.column].grows
        self._bag = sum(bool(column.pooling) for column in job.embedded_columns[: self.column])

    def mask(
        self, rows: Int32Array, lengths: Int32Array, keys: Uint64Array, items: Int64Array, longest: int
    ) -> Float32Array:
        """Return what is added to the scores of negatives, float32 [B, longest].

        It is 0 for a negative, and -inf for a place without one and for an accidental hit: the item itself.

        Args:
            rows, lengths, keys: of the batch's multi-hot columns, see `Batch.bag_rows` and so on.
            items: what tells the batch's items apart, see `LossBatch.items`.
            longest: places of an example, no fewer than it has negatives.
        """
        counts = lengths[self._bag]
        start, ends = int(lengths[: self._bag].sum()), np.cumsum(counts, dtype=np.int64)
        part = slice(start, start + int(counts.sum()))
        ids = keys[part].view(np.int64) if self._grows else rows[part].astype(np.int64)
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(ids)) - (ends - counts)[owners]
        mask = np.full((len(counts), longest), -np.inf, np.float32)
        mask[owners, places] = np.where(ids == items[owners], -np.inf, 0.0)
        return mask


def item_frequency_of(job: Job, module: nn.Module) -> ItemFrequency | None:
    """Return an empty estimate for a model that is trained with the correction; None for others."""
    if not (isinstance(module, TowerModel) and module.frequency_rate):
        return None
    (column,) = (column for column in job.embedded_columns if column.name == job.model.item[0])
    return ItemFrequency(column.table.rows, module.frequency_rate)


class Tower(nn.Module):
    """An MLP over some of a model's inputs, side by side; its output is normalized if wanted."""

    def __init__(
        self, inputs: TowerInputs, embedding_dims: Sequence[int], top: Sequence[int], dim: int
    ) -> None:
        super().__init__()
        self._dense, self._embeddings = inputs.dense_runs(), inputs.embeddings
        self.width = len(inputs.dense) + sum(embedding_dims[number] for number in inputs.embeddings)
        self.top = mlp([self.width, *top, dim], last_relu=False)

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        """Return float32 [B, dim] from dense [B, D] and T entries, of which others may be anything."""
        columns = [dense[:, run] for run in self._dense]
        columns += [cast(torch.Tensor, embeddings[number]) for number in self._embeddings]
        vectors: torch.Tensor = self.top(torch.cat(columns, dim=1))
        return vectors


class TowerModel(nn.Module):
    """A vector of the query and one of the item.

    A subclass sets `query` and `item`, modules that compute them from all inputs.

    Args:
        temperature: divisor of the product of two vectors.
        normalized: whether vectors have the length 1.
        frequency_rate: rate of the items' frequencies, see `ItemFrequency`; 0 for no correction by them.
        item_id: number of the entry of `embeddings` with the item's id.
        negatives: number of the entry with hard negatives; None without. The items then have nothing else.

    Raises ValueError for an argument that cannot be used.
    """

    query: nn.Module
    item: nn.Module

    def __init__(
        self,
        temperature: float,
        normalized: bool,
        frequency_rate: float,
        *,
        item_id: int,
        negatives: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 < temperature < float("inf"):
            raise ValueError(f"temperature: {temperature} given; give a number above 0")
        if frequency_rate and not LEAST_RATE <= frequency_rate <= 1:
            raise ValueError(
                f"frequency_rate: {frequency_rate} given; give a number from {LEAST_RATE:g} to 1, or 0 for no"
                " correction"
            )
        self.temperature, self.normalized, self.frequency_rate = temperature, normalized, frequency_rate
        self._item_id, self._negatives = item_id, negatives

    def query_vectors(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        """Return float32 [B, dim]; what belongs to items is not read."""
        return self._scaled(self.query(dense, embeddings))

    def item_vectors(self, dense: torch.Tensor, embeddings: Embeddings) -> torch.Tensor:
        """Return float32 [B, dim]; what belongs to queries is not read."""
        return self._scaled(self.item(dense, embeddings))

    def forward(self, dense: torch.Tensor, embeddings: Embeddings) -> tuple[Any, ...]:
        """Return the vectors of queries and of their items, each float32 [B, dim].

        In training those of hard negatives follow, if there are any, in the form in which they came.
        """
        vectors = self.query_vectors(dense, embeddings), self.item_vectors(dense, embeddings)
        if self._negatives is None or not self.training:
            return vectors
        return *vectors, self._negative_vectors(dense, embeddings, self._negatives)

    def _negative_vectors(
        self, dense: torch.Tensor, embeddings: Embeddings, column: int
    ) -> EmbeddedSequence | JaggedSequence:
        negatives = cast(EmbeddedSequence | JaggedSequence, embeddings[column])
        rows = negatives.values if isinstance(negatives, JaggedSequence) else negatives.vectors.flatten(0, 1)
        as_items = list(embeddings)
        as_items[self._item_id] = rows
        vectors = self.item_vectors(dense, as_items)
        if isinstance(negatives, JaggedSequence):
            return JaggedSequence(vectors, negatives.lengths)
        return EmbeddedSequence(vectors.view(*negatives.vectors.shape[:2], -1), negatives.lengths)

    def scores(self, outputs: tuple[Any, ...]) -> torch.Tensor:
        """Return the score of each example's item for its query, float32 [B]."""
        queries, items, *_ = outputs
        scores: torch.Tensor = (queries * items).sum(dim=1) / self.temperature
        return scores

    def loss(self, outputs: tuple[Any, ...], batch: LossBatch) -> torch.Tensor:
        """Return the mean in-batch softmax loss of the batch's positives."""
        assert batch.items is not None
        queries, items, *negatives = outputs
        # Each pass over [B, B] counts, so the smaller factor is divided.
        queries, hard = queries / self.temperature, None
        if negatives:
            assert batch.negatives is not None
            hard = _products(queries, negatives[0], batch.negatives.shape[1]) + batch.negatives
        return in_batch_softmax(queries @ items.T, batch.items, _weights(batch), batch.log_frequency, hard)

    def _scaled(self, vectors: torch.Tensor) -> torch.Tensor:
        # With products in bfloat16 they are not rounded once more.
        vectors = vectors.float()
        return normalize(vectors, dim=1) if self.normalized else vectors


class TwoTower(TowerModel):
    """Two towers, each an MLP with ReLU.

    Args:
        dense_features: D, the width of the dense input.
        embedding_dims: K_t of each of the T tables.
        query, item: the inputs of each tower.
        top: hidden widths of both.
        dim: width of the vectors.
        temperature, normalized, frequency_rate, negatives: see `TowerModel`.

    Raises ValueError for an argument that cannot be used.
    """

    def __init__(
        self,
        dense_features: int,  # noqa: ARG002
        embedding_dims: Sequence[int],
        *,
        query: TowerInputs,
        item: TowerInputs,
        top: Sequence[int],
        dim: int = 32,
        temperature: float = 0.05,
        normalized: bool = True,
        frequency_rate: float = DEFAULT_RATE,
        negatives: int | None = None,
    ) -> None:
        super().__init__(
            temperature, normalized, frequency_rate, item_id=item.embeddings[0], negatives=negatives
        )
        if type(dim) is not int or dim < 1:
            raise ValueError(f"dim: {dim} given; give the width of the vectors, 1 or more")
        self.query = Tower(query, embedding_dims, top, dim)
        self.item = Tower(item, embedding_dims, top, dim)


def in_batch_softmax(
    scores: torch.Tensor,
    items: torch.Tensor,
    weights: torch.Tensor,
    log_frequency: torch.Tensor | None = None,
    hard: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the softmax loss of each query's item among the items of the batch, a scalar (Equation 4).

    Hard negatives of a query are further items, for it alone. How often they come is not the batch's doing,
    so nothing is corrected between them and the query's item: what is taken from its score is taken from
    theirs. Without that their scores would be those of items that are in every batch.

    A place of the batch that has the query's own item as well is no negative of it: an accidental hit.

    Args:
        scores: of each query for each place's item, [B, B]; the diagonal has those of the pairs.
        items: what tells items apart, int64 [B].
        weights: of the pairs, float32 [B], none negative.
        log_frequency: logarithm of the probability that a place of a batch has this item, float32 [B], which
            is taken from its scores (Section 4.1); None for no correction.
        hard: scores of each query's hard negatives, [B, L], -inf where there is none; None for none at all.
    """
    hits = (items[:, None] == items).fill_diagonal_(0)
    taken = scores.new_zeros(len(items)) if log_frequency is None else log_frequency
    # A sum with what needs no gradient costs the backward pass nothing.
    corrected = scores + (-taken).expand_as(scores).masked_fill(hits, float("-inf"))
    if hard is not None:
        corrected = torch.cat([corrected, hard - taken[:, None]], dim=1)
    each = cross_entropy(corrected, torch.arange(len(items), device=items.device), reduction="none")
    total = weights.sum().clamp(min=torch.finfo(torch.float32).tiny)
    return (each * weights).sum() / total


def _products(
    queries: torch.Tensor, negatives: EmbeddedSequence | JaggedSequence, longest: int
) -> torch.Tensor:
    """Return the product of each query's vector and its negatives', [B, longest]."""
    if isinstance(negatives, JaggedSequence):
        negatives = negatives.padded(longest)
    products: torch.Tensor = negatives.vectors @ queries[:, :, None]
    return products.squeeze(2)


def _weights(batch: LossBatch) -> torch.Tensor:
    """Return what each pair counts: a pair with the label 0 is no pair, though its item is a negative."""
    return batch.labels if batch.weights is None else batch.labels * batch.weights
