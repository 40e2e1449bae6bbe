"""Index tensors that place a batch's vectors, on the device that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from .item_lists import ItemList, item_lists
from .request import BankLookup, DistinctRows, LookupPlan, TableBags


@dataclass(frozen=True, slots=True)
class SplitTableRows:
    """The rows of a table in the bank's reply, and their places.

    Attributes:
        table: number of the table.
        examples: int64 [rows]: of a table with one row an example the example of each row; of other tables
            its place, see `ItemList`.
        vectors: number of the table's vectors, B with one row an example.
        padded: whether some of the vectors are of no row.
    """

    table: int
    examples: torch.Tensor
    vectors: int
    padded: bool = False


@dataclass(frozen=True, slots=True)
class DistinctIndices:
    """The index arrays of a `DistinctRows` as tensors on the device."""

    which: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor


@dataclass(frozen=True, slots=True)
class BankIndices:
    """A `BankLookup` with its index tensors.

    A reply has `single` vectors of single rows, then B vectors for each table of `bags`. The `examples`
    single rows, repeats included, are those of the tables of `whole`, B each, then those of `parts`. Only
    nodes' own sums are vectors of `bags`.
    """

    dim: int
    vectors: int
    single: int
    examples: int
    batch: int
    distinct: DistinctIndices | None
    whole: tuple[int, ...]
    parts: tuple[SplitTableRows, ...]
    bags: tuple[int, ...]


class GatherIndices:
    """The index tensors of one batch.

    Used by the thread that trains the batch.

    Attributes:
        nodes: indices of the banks of each node.
        floats: number of floats in each node's reply.
        batch: B.
        tables: number of tables.
        divisors: for each table of pooling "mean" float32 [B, 1], by which the nodes' sums are divided.
        lists: the tables whose bags come row by row.
        device: device of the tensors.
    """

    def __init__(self, requests: Sequence[LookupPlan], tables: int, device: torch.device) -> None:
        self.batch = requests[0].batch
        self.tables = tables
        self.device = device
        self.floats = [request.floats for request in requests]
        self.divisors = {
            table: _divisor(bags, device)
            for table, bags in requests[0].bags.items()
            if bags.pooling == "mean"
        }
        self.lists: Mapping[int, ItemList] = item_lists(requests[0].bags, device)
        self.nodes = [tuple(self._bank_indices(bank) for bank in request.banks) for request in requests]

    def _bank_indices(self, bank: BankLookup) -> BankIndices:
        parts = [
            SplitTableRows(table, torch.from_numpy(positions).to(self.device), self.batch)
            for table, positions in zip(bank.cut, bank.positions[: len(bank.cut)], strict=True)
        ]
        for table, positions in zip(bank.listed, bank.positions[len(bank.cut) :], strict=True):
            item_list = self.lists[table]
            places = torch.from_numpy(item_list.places(positions)).to(self.device)
            parts.append(SplitTableRows(table, places, item_list.vectors, item_list.padded))
        share, distinct = bank.share, bank.distinct
        return BankIndices(
            dim=share.dim,
            vectors=share.single + share.pieces * share.batch,
            single=share.single,
            examples=share.single if distinct is None else len(distinct.which),
            batch=self.batch,
            distinct=None if distinct is None else self._distinct_indices(distinct),
            whole=bank.whole,
            parts=tuple(parts),
            bags=bank.bags,
        )

    def _distinct_indices(self, distinct: DistinctRows) -> DistinctIndices:
        arrays = (distinct.which, distinct.order, distinct.begins)
        return DistinctIndices(*(torch.from_numpy(array).to(self.device) for array in arrays))


def _divisor(bags: TableBags, device: torch.device) -> torch.Tensor:
    # The sum of an empty bag is zeros, so a divisor of 1 keeps it.
    return torch.from_numpy(bags.lengths).clamp(min=1).float()[:, None].to(device)
