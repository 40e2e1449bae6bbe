"""How the vectors of a batch get from the nodes' replies into its columns: a layout, and index tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ...types import Float32Array, IndexArray
from .item_lists import ItemList, PaddedLists, lengthened, list_layout
from .request import BankLookup, ColumnBags, DistinctRows, LookupPlan

Pad: TypeAlias = Callable[[str, int], int]
"""Returns the padded size of what is called so and has this size."""

Span: TypeAlias = tuple[int, int, int]
"""Floats of a reply: where they begin, where they begin in the padded one, and their number."""


@dataclass(frozen=True, slots=True)
class SplitColumns:
    """The columns of one dimension with vectors from several places, one behind the other: of split tables.

    Also those whose bags come row by row.

    Attributes:
        columns: number and vectors of each column: B with one row an example, else see `ItemList`.
        zeroed: whether some of the vectors are of no row; they are zeros.
        spare: 1 if there is a vector behind all others, for padded rows; else 0.
    """

    columns: tuple[tuple[int, int], ...]
    zeroed: bool
    spare: int

    @property
    def vectors(self) -> int:
        """Return the number of all vectors, without the spare one."""
        return sum(vectors for _, vectors in self.columns)


@dataclass(frozen=True, slots=True)
class BankIndices:
    """A `BankLookup`, with the numbers of its index tensors.

    A reply has `single` vectors of single rows, then B vectors for each column of `bags`. The `examples`
    single rows, repeats included, are those of the columns of `whole`, B each, then those of split columns.
    Only nodes' own sums are vectors of `bags`.

    Attributes:
        distinct: numbers of the tensors of `DistinctRows`: `which`, `order` and `begins`.
        places: int64 [rows of split columns]: the place of each in `SplitColumns`; None if there are none.
    """

    dim: int
    single: int
    examples: int
    batch: int
    distinct: tuple[int, int, int] | None
    whole: tuple[int, ...]
    places: int | None
    bags: tuple[int, ...]

    @property
    def vectors(self) -> int:
        """Return the number of vectors of the reply."""
        return self.single + len(self.bags) * self.batch


@dataclass(frozen=True, slots=True)
class GatherLayout:
    """What is equal for batches whose numbers of rows are equal.

    Attributes:
        nodes: the banks of each node.
        batch: B.
        columns: number of columns.
        split: the split columns of each dimension.
        divisors: columns of pooling "mean" with the number of a tensor, float32 [B, 1], by which the nodes'
            sums are divided.
        lists: the columns whose bags come row by row.
    """

    nodes: tuple[tuple[BankIndices, ...], ...]
    batch: int
    columns: int
    split: tuple[tuple[int, SplitColumns], ...]
    divisors: tuple[tuple[int, int], ...]
    lists: tuple[tuple[int, ItemList], ...]

    @property
    def floats(self) -> tuple[int, ...]:
        """Return the number of floats of each node's reply."""
        return tuple(sum(bank.vectors * bank.dim for bank in banks) for banks in self.nodes)

    @property
    def lengths(self) -> dict[int, int]:
        """Return the number of the tensor of lengths, int32 [B], of each column that is a sequence."""
        return {column: of.lengths for column, of in self.lists if of.lengths is not None}


def _exact(what: str, size: int) -> int:  # noqa: ARG001
    return size


@dataclass(frozen=True, slots=True, eq=False)
class GatherIndices:
    """The layout and the index tensors of one batch.

    Used by the thread that trains the batch.

    Attributes:
        layout: what may be equal for the next batch.
        tensors: the index tensors, on the host.
        spans: for each node the floats of its reply, and where they are in the layout.
    """

    layout: GatherLayout
    tensors: list[torch.Tensor]
    spans: tuple[tuple[Span, ...], ...]

    @classmethod
    def of(
        cls, requests: Sequence[LookupPlan], columns: int, pad: Pad | None = None, *, jagged: bool = False
    ) -> GatherIndices:
        """Return those of a batch with these requests.

        With `pad` there are more rows than those of the batch, so that more batches have one layout; the
        others are of no use, and their gradients have no meaning. With `jagged` sequences are not padded,
        which does not go together.
        """
        return _Builder(requests, columns, pad, jagged=jagged).build()

    def longest_of(self, column: int) -> int:
        """Return the places of each example in a column that is a sequence; if jagged, those it needs."""
        of = dict(self.layout.lists)[column]
        if isinstance(of, PaddedLists):
            return of.longest
        assert of.lengths is not None
        return max(1, int(self.tensors[of.lengths].max()))


class _Builder:
    def __init__(
        self, requests: Sequence[LookupPlan], columns: int, pad: Pad | None, *, jagged: bool
    ) -> None:
        self._requests, self._columns, self._batch = requests, columns, requests[0].batch
        self._pad, self._is_padded = pad or _exact, pad is not None
        self._tensors: list[torch.Tensor] = []
        bags = requests[0].bags
        self._lists: dict[int, ItemList] = {}
        self._places_of: dict[int, Callable[[IndexArray], IndexArray]] = {}
        for column, of_column in bags.items():
            if of_column.pooling not in ("sum", "mean"):
                self._lists[column], self._places_of[column] = list_layout(
                    column, of_column, self._add, self._pad, jagged=jagged
                )
        self._starts: dict[int, int] = {}
        self._split = self._split_columns()

    def build(self) -> GatherIndices:
        nodes = [
            tuple(self._bank(f"{number}.{place}", bank) for place, bank in enumerate(request.banks))
            for number, request in enumerate(self._requests)
        ]
        bags = self._requests[0].bags
        divisors = tuple(
            (column, self._add(_divisor(of_column)))
            for column, of_column in bags.items()
            if of_column.pooling == "mean"
        )
        layout = GatherLayout(
            tuple(nodes),
            self._batch,
            self._columns,
            tuple(self._split.items()),
            divisors,
            tuple(self._lists.items()),
        )
        spans = tuple(
            tuple(_spans(request.banks, banks)) for request, banks in zip(self._requests, nodes, strict=True)
        )
        return GatherIndices(layout, self._tensors, spans)

    def _add(self, array: NDArray[Any]) -> int:
        """Keep an index array without a copy; return its number."""
        self._tensors.append(torch.from_numpy(array))
        return len(self._tensors) - 1

    def _split_columns(self) -> dict[int, SplitColumns]:
        """Lay out the split columns of each dimension, and note where each begins."""
        vectors: dict[int, dict[int, int]] = {}
        for request in self._requests:
            for bank in request.banks:
                of_dim = vectors.setdefault(bank.share.dim, {})
                of_dim.update(dict.fromkeys(bank.cut, self._batch))
                of_dim.update({column: self._lists[column].vectors for column in bank.listed})
        for of_dim in vectors.values():
            start = 0
            for column, count in of_dim.items():
                self._starts[column] = start
                start += count
        return {
            dim: SplitColumns(
                columns=tuple(of_dim.items()),
                zeroed=any(self._lists[column].padded for column in of_dim if column in self._lists),
                spare=int(self._is_padded),
            )
            for dim, of_dim in vectors.items()
            if of_dim
        }

    def _bank(self, name: str, bank: BankLookup) -> BankIndices:
        share, distinct = bank.share, bank.distinct
        places = self._places(name, bank)
        whole = len(bank.whole) * self._batch
        examples = whole + (0 if places is None else len(places))
        single = examples
        if distinct is not None:
            # One more than there are: its gradient is that of all padded rows.
            spare = int(self._is_padded)
            single = self._pad(f"distinct {name}", share.single + spare)
        return BankIndices(
            dim=share.dim,
            single=single,
            examples=examples,
            batch=self._batch,
            distinct=None if distinct is None else self._distinct(distinct, single, examples),
            whole=bank.whole,
            places=None if places is None else self._add(places),
            bags=bank.bags,
        )

    def _places(self, name: str, bank: BankLookup) -> IndexArray | None:
        """Return the places of the bank's rows of split columns, padded by that of the spare vector."""
        if not bank.cut and not bank.listed:
            return None
        known = [
            positions + self._starts[column]
            for column, positions in zip(bank.cut, bank.positions[: len(bank.cut)], strict=True)
        ]
        for column, positions in zip(bank.listed, bank.positions[len(bank.cut) :], strict=True):
            known.append(self._places_of[column](positions) + self._starts[column])
        places: IndexArray = known[0] if len(known) == 1 else np.concatenate(known)
        size = self._pad(f"split {name}", len(places))
        return lengthened(places, size, self._split[bank.share.dim].vectors)

    def _distinct(self, rows: DistinctRows, single: int, examples: int) -> tuple[int, int, int]:
        add, distinct, requested = self._add, len(rows.begins), len(rows.which)
        which, order = lengthened(rows.which, examples, distinct), rows.order
        if requested < examples:
            order = np.arange(examples, dtype=np.int64)
            order[:requested] = rows.order
        begins = lengthened(rows.begins, single, examples)
        # The first padded bag has the gradients of all padded rows.
        begins[distinct : distinct + 1] = requested
        return add(which), add(order), add(begins)


def _spans(lookups: Sequence[BankLookup], banks: Sequence[BankIndices]) -> list[Span]:
    """Return the floats of a reply that stay together in its padded form."""
    spans: list[Span] = []
    source = target = 0
    for lookup, bank in zip(lookups, banks, strict=True):
        single, bags = lookup.share.single * bank.dim, len(bank.bags) * bank.batch * bank.dim
        for floats, padded in ((single, bank.single * bank.dim), (bags, bags)):
            if floats and spans and spans[-1][0] - spans[-1][1] == source - target:
                start, place, length = spans[-1]
                spans[-1] = (start, place, length + floats)
            elif floats:
                spans.append((source, target, floats))
            source, target = source + floats, target + padded
    return spans


def _divisor(bags: ColumnBags) -> Float32Array:
    # The sum of an empty bag is zeros, so a divisor of 1 keeps it.
    return np.maximum(bags.lengths, 1).astype(np.float32)[:, None]
