"""Each row of a batch once, however many examples have it. Knows no torch.

What one batch asks of one embedding node. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...types import IndexArray, Int32Array


@dataclass(frozen=True, slots=True, eq=False)
class DistinctRows:
    """The distinct ones among S rows of a bank, and how to get from those to these and back.

    Ids have long tails: of a batch's rows only some are distinct, and the others need not travel.

    Attributes:
        rows: int32 [D]: each row once.
        which: int32 [S]: which of `rows` each is.
        order: int64 [S]: the places of the first of `rows`, ascending, then those of the next.
        begins: int64 [D]: where in `order` the places of each of `rows` begin.
    """

    rows: Int32Array
    which: Int32Array
    order: IndexArray
    begins: IndexArray

    @classmethod
    def of(cls, rows: Int32Array, tables: int = 0, batch: int = 0) -> DistinctRows:
        """Of rows int32 [S], at least 0, the first of which are those of so many tables, `batch` each.

        No two tables have a row in common, nor one with what follows them, so each is sorted by itself.
        """
        # Row and place in one number: numpy sorts numbers by vector instructions, but not by an index.
        keys = rows.astype(np.int64)
        keys <<= 32
        keys |= np.arange(len(rows), dtype=np.int64)
        keys[: tables * batch].reshape(tables, batch).sort(axis=1)
        keys[tables * batch :].sort()
        order = keys & 0xFFFFFFFF
        keys >>= 32
        first = np.ones(len(rows), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        begins = np.flatnonzero(first)
        numbers = np.arange(len(begins), dtype=np.int32)
        which = np.empty(len(rows), np.int32)
        which[order] = np.repeat(numbers, np.diff(begins, append=len(rows)))
        return cls(keys[begins].astype(np.int32), which, order, begins)


NO_BAG_LENGTHS: Int32Array = np.zeros((0, 0), np.int32)


@dataclass(frozen=True, slots=True)
class BankShare:
    """How one bank's part of a request lies among its rows, and its answer among the floats.

    Attributes:
        dim: floats in a row.
        single: rows that are answered one by one; they come first.
        bag_rows: rows of bags; they come after those.
        pieces: tables with bags, or pieces of such, that the node keeps in this bank.
        batch: B; the answer has the sums of B bags for each piece, after the single rows. 0 without bags.
    """

    dim: int
    single: int
    bag_rows: int
    pieces: int
    batch: int

    @property
    def rows(self) -> int:
        """All its rows."""
        return self.single + self.bag_rows

    @property
    def floats(self) -> int:
        """All its floats in the answer, and in the gradients."""
        return (self.single + self.pieces * self.batch) * self.dim


def bank_shares(
    dims: Sequence[int],
    rows: int,
    counts: Sequence[int] = (),
    bag_pieces: Sequence[int] = (),
    bag_lengths: Int32Array = NO_BAG_LENGTHS,
) -> list[BankShare]:
    """What each bank gets of a request. Any thread may call it.

    Args:
        dims: floats in a row of each bank of the node.
        rows: how many rows are asked for in all.
        counts: how many of them are of each bank; () where there is one bank.
        bag_pieces: how many tables with bags, or pieces of such, the node keeps in each bank; () for none.
        bag_lengths: int32 [P, B], P the sum of `bag_pieces`: see `messages.Lookup`; [0, 0] if P is 0.

    Raises:
        ValueError: counts or lengths that are not those of `rows`, or of another node.
    """
    counts = tuple(counts) or ((rows,) if len(dims) == 1 else ())
    if len(counts) != len(dims) or min(counts, default=0) < 0 or sum(counts) != rows:
        given = f"{len(counts)} counts of rows that sum up to {sum(counts)}"
        raise ValueError(f"{given}, for {rows} rows in {len(dims)} banks")
    pieces = tuple(bag_pieces) or (0,) * len(dims)
    if bag_lengths.ndim != 2 or len(bag_lengths) != sum(pieces):
        raise ValueError(f"bag_lengths of the shape {list(bag_lengths.shape)}, for {sum(pieces)} with bags")
    if bag_lengths.size and int(bag_lengths.min()) < 0:
        raise ValueError(f"a bag of {int(bag_lengths.min())} rows")
    batch = bag_lengths.shape[1]
    totals = bag_lengths.sum(axis=1, dtype=np.int64).tolist() if sum(pieces) else []
    shares, at = [], 0
    for dim, count, own in zip(dims, counts, pieces, strict=True):
        bagged = sum(totals[at : at + own])
        at += own
        if bagged > count:
            raise ValueError(f"bags of {bagged} rows, among {count} in a bank")
        shares.append(BankShare(dim, count - bagged, bagged, own, batch if own else 0))
    return shares


def count_floats(
    dims: Sequence[int],
    rows: int,
    counts: Sequence[int] = (),
    bag_pieces: Sequence[int] = (),
    bag_lengths: Int32Array = NO_BAG_LENGTHS,
) -> int:
    """Floats of the answer to a request; arguments and errors as of `bank_shares`."""
    return sum(share.floats for share in bank_shares(dims, rows, counts, bag_pieces, bag_lengths))


@dataclass(frozen=True, slots=True, eq=False)
class BankLookup:
    """The part of a request that goes to one bank of the node, and where its answer belongs.

    The single rows are, one after the other: for each table of `whole` those of all B examples; for each
    piece of `cut` those that fall into it. With `distinct` each of them that differs is asked for once. Then
    come, for each table of `bags`, the rows of its bags that the node keeps. The answer has a vector for each
    single row asked for, and for each table of `bags` one for each of the B examples.

    Attributes:
        share: how many rows and floats are asked for.
        distinct: of the single rows; None where all of them are asked for.
        whole: the tables with one row an example that the node keeps whole, ascending.
        cut: the split tables with one row an example that the node keeps a piece of, ascending.
        positions: for each piece of `cut`, which examples have their row in it: int64, ascending.
        bags: the tables with bags that the node keeps whole or a piece of, ascending.
    """

    share: BankShare
    distinct: DistinctRows | None
    whole: tuple[int, ...]
    cut: tuple[int, ...]
    positions: tuple[IndexArray, ...]
    bags: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TableBags:
    """The bags of one table in one batch.

    Attributes:
        rows: int32 [E]: those of the first example's bag, then those of the next.
        lengths: int32 [B]: how many rows the bag of each example has.
        pooling: "sum" or "mean" of the vectors of a bag; an empty one gives zeros.
    """

    rows: Int32Array
    lengths: Int32Array
    pooling: str

    def inside(self, start: int, stop: int) -> tuple[Int32Array, Int32Array]:
        """The rows from `start` on and below `stop`, in the same order, and how many each bag has of them."""
        here = (self.rows >= start) & (self.rows < stop)
        so_far = np.zeros(len(here) + 1, np.int32)
        np.cumsum(here, out=so_far[1:])
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return self.rows[here], so_far[ends] - so_far[ends - self.lengths]


@dataclass(frozen=True, slots=True, eq=False)
class LookupPlan:
    """One request, and where its answer belongs.

    Attributes:
        node: the node that is asked.
        rows: int32 [N], each local to its bank of the node, bank after bank. N may be 0: the answer is then
            empty but for the zeros of empty bags, and the node is asked and told all the same, since its
            books have every batch.
        batch: B, the number of examples.
        banks: what goes to each bank of the plan, in their order, those that get nothing included.
        bags: the batch's bags by table; the same for all nodes.
        bag_lengths: see `messages.Lookup`.
    """

    node: int
    rows: Int32Array
    batch: int
    banks: tuple[BankLookup, ...]
    bags: dict[int, TableBags]
    bag_lengths: Int32Array

    @property
    def counts(self) -> tuple[int, ...]:
        """How many of `rows` go to each bank; () where there is one bank only, which gets all."""
        return tuple(bank.share.rows for bank in self.banks) if len(self.banks) > 1 else ()

    @property
    def floats(self) -> int:
        """How many floats the answer has, and the gradients."""
        return sum(bank.share.floats for bank in self.banks)
