"""Sequences of vectors, as models get them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch.nn.functional import pad

from ...config.columns import ColumnSection
from ...config.tables import EmbeddedColumn


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


class JaggedSequence(NamedTuple):
    """The vectors of a column with pooling "none", the lists one behind the other, without padding.

    For a model that says `takes_jagged = True`.

    Attributes:
        values: float32 [N, K], N the ids of all lists of the batch, in the order of examples and lists;
            [0, K] if all are empty.
        lengths: int64 [B], number of vectors of each example.
    """

    values: torch.Tensor
    lengths: torch.Tensor

    def offsets(self) -> torch.Tensor:
        """Return where each list begins, and the last one ends, int64 [B + 1]."""
        return pad(self.lengths.cumsum(0), (1, 0))

    def owners(self) -> torch.Tensor:
        """Return the example of each vector, int64 [N]."""
        examples = torch.arange(len(self.lengths), device=self.lengths.device)
        return examples.repeat_interleave(self.lengths, output_size=len(self.values))

    def places(self) -> torch.Tensor:
        """Return each vector's place in its list, from 0, int64 [N]."""
        begins = self.offsets()[:-1][self.owners()]
        return torch.arange(len(self.values), device=begins.device) - begins

    def sum(self) -> torch.Tensor:
        """Return the sum of each list, [B, K]; zeros for an empty one."""
        sums = self.values.new_zeros(len(self.lengths), self.values.shape[1])
        return sums.index_add(0, self.owners(), self.values)

    def mean(self) -> torch.Tensor:
        """Return the mean of each list, [B, K]; zeros for an empty one."""
        return self.sum() / self.lengths.clamp(min=1)[:, None]

    def nested(self) -> torch.Tensor:
        """Return the lists as a nested tensor of the layout `torch.jagged`, on the same memory."""
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets())
        return nested

    def padded(self, longest: int | None = None) -> EmbeddedSequence:
        """Return the lists padded to `longest` vectors, by default to the longest of the batch.

        Without it the host waits for the device. Raises ValueError for a longer list, on the host.
        """
        if longest is None:
            longest = max(1, int(self.lengths.max())) if len(self.lengths) else 1
        elif self.lengths.device.type == "cpu" and (self.lengths > longest).any():
            raise ValueError(f"longest: {longest} given; a list has {int(self.lengths.max())} vectors")
        vectors = self.values.new_zeros(len(self.lengths) * longest, self.values.shape[1])
        vectors = vectors.index_copy(0, self.owners() * longest + self.places(), self.values)
        return EmbeddedSequence(vectors.view(len(self.lengths), longest, -1), self.lengths)


class ModelInput(NamedTuple):
    """One entry of a model's `embeddings`, told to models that take sequences.

    Attributes:
        name: the column.
        dim: K, floats in a vector.
        longest: None for one vector an example, [B, K]; otherwise an `EmbeddedSequence` or a
            `JaggedSequence` comes, whose lists have at most so many vectors.
    """

    name: str
    dim: int
    longest: int | None


ModelEmbedding: TypeAlias = torch.Tensor | EmbeddedSequence | JaggedSequence
Embeddings: TypeAlias = list[ModelEmbedding]


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
    One of [B, L, K] is padded, one of [N, K] is jagged.
    """
    return [
        (EmbeddedSequence if vectors.ndim == 3 else JaggedSequence)(vectors, lengths[number].long())
        if number in lengths
        else vectors
        for number, vectors in enumerate(embeddings)
    ]
