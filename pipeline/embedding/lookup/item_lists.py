"""Columns whose bags come row by row: sequences of vectors, and bags with weights.

The nodes return one vector for each row of a bag, as for one-hot rows. The trainer puts them side by side, or
pools them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag

from ...types import IndexArray
from .request import ColumnBags


@dataclass(frozen=True)
class PaddedLists:
    """Vectors of the lists side by side, [B, L, dim].

    L is at least the length of the longest list, and at least 1. Place b * L + i holds vector i of example b.

    Attributes:
        lengths: number of the tensor of lengths, int32 [B].
        padded: whether there may be more places than rows; these hold zeros.
    """

    batch: int
    longest: int
    lengths: int
    padded: bool = True

    @property
    def vectors(self) -> int:
        """Return the number of places for the vectors of its rows."""
        return self.batch * self.longest

    def join(self, vectors: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return float32 [B, L, dim]."""
        return vectors.view(self.batch, self.longest, vectors.shape[1])

    def split(self, gradient: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return the gradient of the vectors, [vectors, dim], from that of `join`'s result."""
        return gradient.reshape(self.vectors, gradient.shape[2])


@dataclass(frozen=True)
class JaggedLists:
    """Vectors of the lists one behind the other, [N, dim]; none are padded.

    Attributes:
        vectors: N, the number of its rows.
        lengths: number of the tensor of lengths, int32 [B].
    """

    vectors: int
    lengths: int
    padded: bool = False

    def join(self, vectors: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return float32 [N, dim]."""
        return vectors

    def split(self, gradient: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:  # noqa: ARG002
        """Return the gradient of the vectors, [N, dim], which is that of `join`'s result."""
        return gradient


@dataclass(frozen=True)
class WeightedBags:
    """Weighted sums of bags, [B, dim].

    A bag has the sum of c v over its rows. c is the row's weight w, and for a mean w divided by the sum of
    the bag's weights, in float64, rounded to float32. Weights that are all 0 have c = 0.

    Attributes:
        vectors: number of its rows.
        owners: number of the tensor with the example of each row, int64 [vectors].
        begins: of that with the first row of each bag, int64 [B].
        factors: of that with c, float32 [vectors].
    """

    batch: int
    vectors: int
    owners: int
    begins: int
    factors: int
    padded: bool = False
    lengths: None = None

    def join(self, vectors: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return float32 [B, dim]; zeros for an empty bag."""
        if not self.vectors:
            return vectors.new_zeros(self.batch, vectors.shape[1])
        every = torch.arange(self.vectors, device=vectors.device)
        factors = tensors[self.factors]
        return embedding_bag(every, vectors, tensors[self.begins], mode="sum", per_sample_weights=factors)

    def split(self, gradient: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the gradient of the vectors, [vectors, dim], from that of `join`'s result."""
        return gradient.index_select(0, tensors[self.owners]).mul_(tensors[self.factors][:, None])


ItemList: TypeAlias = PaddedLists | JaggedLists | WeightedBags
"""One column's bags, for batches with equal numbers of rows; used by the thread that trains them.

`join` and `split` take a batch's index tensors, on the device.
"""


def list_layout(
    column: int,
    bags: ColumnBags,
    add: Callable[[NDArray[Any]], int],
    pad: Callable[[str, int], int],
    *,
    jagged: bool = False,
) -> tuple[ItemList, Callable[[IndexArray], IndexArray]]:
    """Return a column's list, and what returns the places of rows by their positions among all rows.

    `add` keeps an array and returns its number; `pad` returns the padded size of what is called so. With
    `jagged` the vectors of a sequence are not padded.
    """
    if jagged and bags.pooling == "none":
        return JaggedLists(len(bags.rows), add(bags.lengths)), lambda positions: positions
    ends = np.cumsum(bags.lengths, dtype=np.int64)
    if bags.pooling != "none":
        return _weighted(column, bags, ends, add, pad), lambda positions: positions
    longest = pad(f"list {column}", max(1, int(bags.lengths.max(initial=0))))
    # For each example: its first place, minus the position of its first row.
    shift = np.arange(len(bags.lengths)) * longest - (ends - bags.lengths)
    places: IndexArray = shift[bags.owners] + np.arange(len(bags.rows))
    return PaddedLists(len(bags.lengths), longest, add(bags.lengths)), lambda positions: places[positions]


def _weighted(
    column: int,
    bags: ColumnBags,
    ends: IndexArray,
    add: Callable[[NDArray[Any]], int],
    pad: Callable[[str, int], int],
) -> WeightedBags:
    owners = bags.owners
    factors = bags.weights.astype(np.float64)
    if bags.pooling == "weighted_mean":
        totals = np.bincount(owners, weights=factors, minlength=len(bags.lengths))
        factors /= np.where(totals > 0, totals, 1.0)[owners]
    rows = pad(f"weighted {column}", len(owners))
    # Padded rows count nothing: they are in the last bag.
    return WeightedBags(
        len(bags.lengths),
        rows,
        owners=add(lengthened(owners, rows, 0)),
        begins=add(ends - bags.lengths),
        factors=add(lengthened(factors.astype(np.float32), rows, 0)),
    )


def lengthened(array: NDArray[Any], size: int, value: int) -> NDArray[Any]:
    """Return the array itself if it has this size, else a longer copy with `value` at its end."""
    if len(array) == size:
        return array
    longer = np.full(size, value, array.dtype)
    longer[: len(array)] = array
    return longer
