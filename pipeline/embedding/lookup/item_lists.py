"""Tables whose bags come row by row: sequences of vectors, and bags with weights.

The nodes return one vector for each row of a bag, as for one-hot rows. The trainer puts them side by side, or
pools them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from ...types import IndexArray
from .request import TableBags


class ItemList(Protocol):
    """One table's bags of one batch; used by the thread that trains it.

    `vectors` is the number of places for the vectors of its rows. With `padded` there are more places than
    rows; the others hold zeros.
    """

    vectors: int
    padded: bool

    def places(self, positions: IndexArray) -> IndexArray:
        """Return the places of rows, given by their positions among all rows."""
        ...

    def join(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return what the model gets, from float32 [vectors, dim]."""
        ...

    def split(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the vectors, float32 [vectors, dim], from that of `join`'s result."""
        ...


class PaddedLists:
    """Vectors of the lists side by side, [B, L, dim].

    L is the length of the longest list, and at least 1. Place b * L + i holds vector i of example b.
    """

    padded = True

    def __init__(self, bags: TableBags) -> None:
        self._batch = len(bags.lengths)
        self._longest = max(1, int(bags.lengths.max(initial=0)))
        self.vectors = self._batch * self._longest
        ends = np.cumsum(bags.lengths, dtype=np.int64)
        # For each example: its first place, minus the position of its first row.
        shift = np.arange(self._batch) * self._longest - (ends - bags.lengths)
        self._places: IndexArray = shift[bags.owners] + np.arange(len(bags.rows))

    def places(self, positions: IndexArray) -> IndexArray:
        return self._places[positions]

    def join(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return float32 [B, L, dim]."""
        return vectors.view(self._batch, self._longest, vectors.shape[1])

    def split(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.reshape(self.vectors, gradient.shape[2])


class WeightedBags:
    """Weighted sums of bags, [B, dim].

    A bag has the sum of c v over its rows. c is the row's weight w, and for a mean w divided by the sum of
    the bag's weights, in float64, rounded to float32. Weights that are all 0 have c = 0.
    """

    padded = False

    def __init__(self, bags: TableBags, device: torch.device) -> None:
        owners = bags.owners
        factors = bags.weights.astype(np.float64)
        if bags.pooling == "weighted_mean":
            totals = np.bincount(owners, weights=factors, minlength=len(bags.lengths))
            factors /= np.where(totals > 0, totals, 1.0)[owners]
        self.vectors = len(owners)
        ends = np.cumsum(bags.lengths, dtype=np.int64)
        self._batch = len(bags.lengths)
        self._owners = torch.from_numpy(owners).to(device)
        self._begins = torch.from_numpy(ends - bags.lengths).to(device)
        self._factors = torch.from_numpy(factors.astype(np.float32)).to(device)

    def places(self, positions: IndexArray) -> IndexArray:
        return positions

    def join(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return float32 [B, dim]; zeros for an empty bag."""
        if not self.vectors:
            return vectors.new_zeros(self._batch, vectors.shape[1])
        every = torch.arange(self.vectors, device=vectors.device)
        return embedding_bag(every, vectors, self._begins, mode="sum", per_sample_weights=self._factors)

    def split(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.index_select(0, self._owners).mul_(self._factors[:, None])


def item_lists(bags: Mapping[int, TableBags], device: torch.device) -> dict[int, ItemList]:
    """Return the tables whose bags come row by row, by number."""
    lists: dict[int, ItemList] = {}
    for table, table_bags in bags.items():
        if table_bags.pooling == "none":
            lists[table] = PaddedLists(table_bags)
        elif table_bags.pooling not in ("sum", "mean"):
            lists[table] = WeightedBags(table_bags, device)
    return lists
