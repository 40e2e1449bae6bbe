"""Sequences of vectors, as models get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch

from ..config.columns import ColumnSection
from ..config.tables import EmbeddedColumn


class EmbeddedSequence(NamedTuple):
    """The vectors of a column with pooling "none", in the order of its list.

    Attributes:
        vectors: float32 [B, L, K], L the longest list of the batch, and at least 1; zeros behind the vectors
            of a shorter list.
        lengths: int64 [B], number of vectors of each example, 0 to L.
    """

    vectors: torch.Tensor
    lengths: torch.Tensor

    def mask(self) -> torch.Tensor:
        """Return bool [B, L]: which places have a vector of the list."""
        places = torch.arange(self.vectors.shape[1], device=self.lengths.device)
        return places < self.lengths[:, None]


class ModelInput(NamedTuple):
    """One entry of a model's `embeddings`, told to models that take sequences.

    Attributes:
        name: the column.
        dim: K, floats in a vector.
        longest: None for one vector an example, [B, K]; otherwise an `EmbeddedSequence` comes, whose lists
            have at most so many vectors.
    """

    name: str
    dim: int
    longest: int | None


Embeddings: TypeAlias = list[torch.Tensor | EmbeddedSequence]


def model_inputs_of(
    embedded: Sequence[EmbeddedColumn], columns: Mapping[str, ColumnSection]
) -> list[ModelInput]:
    """Return the entries of a model's `embeddings`, in order."""
    return [
        ModelInput(c.name, c.dim, columns[c.name].max_ids if c.pooling == "none" else None) for c in embedded
    ]


def with_lengths(embeddings: Sequence[torch.Tensor], lengths: Mapping[int, torch.Tensor]) -> Embeddings:
    """Return a model's `embeddings` from all columns' tensors.

    `lengths` has integers [B], or floats that are whole, for each column that is a sequence, by its number.
    """
    return [
        EmbeddedSequence(vectors, lengths[number].long()) if number in lengths else vectors
        for number, vectors in enumerate(embeddings)
    ]
