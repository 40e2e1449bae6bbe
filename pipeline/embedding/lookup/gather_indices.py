"""Where the vectors of a batch go, as index tensors on the device that computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .request import BankLookup, DistinctRows, LookupPlan, TableBags


@dataclass(frozen=True, slots=True)
class SplitTableRows:
    """The rows of one piece of a split table in a bank's answer.

    Attributes:
        table: its number.
        examples: int64 [rows]: the example of each.
    """

    table: int
    examples: torch.Tensor


@dataclass(frozen=True, slots=True)
class DistinctIndices:
    """A `DistinctRows` on the device."""

    which: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor


@dataclass(frozen=True, slots=True)
class BankIndices:
    """A `BankLookup` with its index tensors.

    Of the answer's vectors come first `single` for single rows, then, B each, those of the tables of `bags`.
    Of all `examples` single rows come first those of the tables of `whole`, B each, then those of `parts`.
    """

    dim: int
    vectors: int
    single: int
    examples: int
    batch: int
    repeats: DistinctIndices | None
    whole: tuple[int, ...]
    parts: tuple[SplitTableRows, ...]
    bags: tuple[int, ...]


class GatherIndices:
    """Of one batch. Used by the thread that trains it.

    Attributes:
        nodes: for each node, its banks.
        floats: for each node, how many floats its answer has.
        batch: B.
        tables: how many tables there are.
        divisors: by table, for those whose bags give the mean: float32 [B, 1], by what each sum is divided.
        device: where the tensors are.
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
        self.nodes = [tuple(self._route(bank) for bank in request.banks) for request in requests]

    def _route(self, bank: BankLookup) -> BankIndices:
        parts = [
            SplitTableRows(table, torch.from_numpy(positions).to(self.device))
            for table, positions in zip(bank.cut, bank.positions, strict=True)
        ]
        share, distinct = bank.share, bank.distinct
        return BankIndices(
            dim=share.dim,
            vectors=share.single + share.pieces * share.batch,
            single=share.single,
            examples=share.single if distinct is None else len(distinct.which),
            batch=self.batch,
            repeats=None if distinct is None else self._repeats(distinct),
            whole=bank.whole,
            parts=tuple(parts),
            bags=bank.bags,
        )

    def _repeats(self, distinct: DistinctRows) -> DistinctIndices:
        arrays = (distinct.which, distinct.order, distinct.begins)
        return DistinctIndices(*(torch.from_numpy(array).to(self.device) for array in arrays))


def _divisor(bags: TableBags, device: torch.device) -> torch.Tensor:
    # An empty bag's sum is zeros, and stays that.
    return torch.from_numpy(bags.lengths).clamp(min=1).float()[:, None].to(device)
