"""The lookup request of one batch to one node, and its layout in banks.

With `DistinctRows` each distinct row of a batch is requested once, however many examples have it. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...types import Float32Array, IndexArray, Int32Array, Mask, Uint64Array

NO_BAG_LENGTHS: Int32Array = np.zeros((0, 0), np.int32)
NO_WEIGHTS: Float32Array = np.zeros(0, np.float32)
NO_KEYS: Uint64Array = np.zeros(0, np.uint64)
NO_ROWS: Int32Array = np.zeros(0, np.int32)
_NO_POSITIONS: IndexArray = np.zeros(0, np.int64)


class BatchIds(Protocol):
    """The rows and keys of a batch, as `data.batch.Batch` has them."""

    @property
    def rows(self) -> Int32Array:
        """Return the rows of columns with one row an example, int32 [C1, B]."""

    @property
    def bag_rows(self) -> Int32Array:
        """Return the rows of bags, int32 [N]."""

    @property
    def bag_lengths(self) -> Int32Array:
        """Return the rows of each bag, int32 [M, B]."""

    @property
    def item_weights(self) -> Float32Array:
        """Return the weights of `bag_rows`, float32 [N], or [0]."""

    @property
    def keys(self) -> Uint64Array:
        """Return the keys of growing tables, uint64 [G, B], or [0, 0]."""

    @property
    def bag_keys(self) -> Uint64Array:
        """Return the keys of `bag_rows`, uint64 [N], or [0]."""


@dataclass(frozen=True, slots=True, eq=False)
class DistinctRows:
    """Map S requested rows or keys to D distinct ones, and back.

    Many rows of a batch repeat, because a few ids are frequent; a repeated row need not be sent again.

    Attributes:
        rows: int32 [D]: each distinct row; or uint64 [D]: each distinct key of a growing table.
        which: int32 [S]: for each requested row its index in `rows`.
        order: int64 [S]: positions of `rows[0]` among the requested rows, ascending, then those of
            `rows[1]`, ...
        begins: int64 [D]: where in `order` the positions of each distinct row begin.
    """

    rows: NDArray[Any]
    which: Int32Array
    order: IndexArray
    begins: IndexArray

    @classmethod
    def of(cls, rows: Int32Array, tables: int = 0, batch: int = 0) -> DistinctRows:
        """Return the distinct rows of `rows`, int32 [S], none negative.

        `rows` begins with `batch` rows of each of `tables` tables. These tables share no row with each other
        or with the rest, so each is sorted by itself. Rows of one table that several columns have are in the
        rest, where each is once.
        """
        apart = tables * batch
        parts = [(0, rows[:apart].reshape(tables, batch)), (apart, rows[apart:].reshape(1, -1))]
        sorted_parts = [_sorted(part, start) for start, part in parts if part.size]
        if len(sorted_parts) == 1:
            ((ascending, order),) = sorted_parts
        else:
            ascending = np.concatenate([NO_ROWS, *(some for some, _ in sorted_parts)])
            order = np.concatenate([_NO_POSITIONS, *(some for _, some in sorted_parts)])
        begins, which = _groups(ascending, order)
        return cls(np.take(ascending, begins, mode="clip"), which, order, begins)

    @classmethod
    def of_keys(cls, keys: Uint64Array, tables: int = 1) -> DistinctRows:
        """Return the distinct keys of `keys`, uint64 [S].

        They are table after table, ascending; each of `tables` tables has equally many of `keys`.
        """
        by_table = keys.reshape(tables, -1)
        order: IndexArray = np.argsort(by_table, axis=1, kind="stable")
        sorted_keys = np.take_along_axis(by_table, order, axis=1).ravel()
        order += np.arange(tables)[:, None] * by_table.shape[1]
        begins, which = _groups(sorted_keys, order.ravel(), tables)
        return cls(sorted_keys[begins], which, order.ravel(), begins)


def _sorted(rows: Int32Array, start: int) -> tuple[Int32Array, IndexArray]:
    """Sort each line of rows, int32 [T, B].

    Returns the rows, int32 [T * B], and their positions in order, the first one being `start`.
    """
    tables, batch = rows.shape
    least = rows.min(axis=1, keepdims=True)
    bits = max(1, (batch - 1).bit_length())
    # Row and position in one number, because NumPy sorts plain numbers with vector instructions. Those of 32
    # bits take half the time.
    kind = np.int32 if int((rows.max(axis=1, keepdims=True) - least).max()) < 1 << (31 - bits) else np.int64
    keys = (rows - least).astype(kind, copy=False)
    keys <<= bits
    keys |= np.arange(batch, dtype=kind)
    keys.sort(axis=1)
    order = (keys & kind((1 << bits) - 1)).astype(np.int64)
    order += np.arange(start, start + tables * batch, batch)[:, None]
    keys >>= bits
    ascending = keys.astype(np.int32, copy=False)
    ascending += least
    return ascending.ravel(), order.ravel()


def _groups(
    sorted_keys: Int32Array | Uint64Array, order: IndexArray, tables: int = 1
) -> tuple[IndexArray, Int32Array]:
    """Return where groups of equal keys begin, and each position's group.

    A group is of one table; all tables have equally many keys.
    """
    first = np.ones(len(order), np.bool_)
    np.not_equal(sorted_keys[1:], sorted_keys[:-1], out=first[1:])
    if tables > 1:
        first[:: len(order) // tables] = True
    groups = np.cumsum(first, dtype=np.int32)
    groups -= 1
    which = np.empty(len(order), np.int32)
    which[order] = groups
    return np.flatnonzero(first), which


class BankShare(NamedTuple):
    """One bank's part of a request: its rows, and its reply's floats.

    Attributes:
        dim: floats in a row.
        single: rows whose vectors are returned one by one; they come first.
        bag_rows: rows of bags, which come after the single rows.
        pieces: number of bags of an example that the node sums in this bank, see `TablePlan.bag_pieces`.
        batch: B; the reply has B sums of bags for each piece, after the single rows. 0 without bags.
    """

    dim: int
    single: int
    bag_rows: int
    pieces: int
    batch: int

    @property
    def rows(self) -> int:
        """Return the number of rows: single rows and rows of bags."""
        return self.single + self.bag_rows

    @property
    def floats(self) -> int:
        """Return the number of floats in the reply, and in the gradients."""
        return (self.single + self.pieces * self.batch) * self.dim


def bank_shares(
    dims: Sequence[int],
    rows: int,
    counts: Sequence[int] = (),
    bag_pieces: Sequence[int] = (),
    bag_lengths: Int32Array = NO_BAG_LENGTHS,
) -> tuple[BankShare, ...]:
    """Return each bank's part of a request; any thread may call this.

    Args:
        dims: floats in a row of each bank of the node.
        rows: number of requested rows and keys in all banks.
        counts: number of requested rows or keys in each bank; () with one bank.
        bag_pieces: see `TablePlan.bag_pieces`, of the node; () for none.
        bag_lengths: int32 [P, B], P the sum of `bag_pieces`: see `messages.Lookup`; [0, 0] if P is 0.

    Raises:
        ValueError: counts or lengths that do not add up to `rows`, or do not fit this node.
    """
    counts = tuple(counts) or ((rows,) if len(dims) == 1 else ())
    pieces = tuple(bag_pieces) or (0,) * len(dims)
    if len(counts) != len(dims) or min(counts, default=0) < 0 or sum(counts) != rows:
        raise ValueError(
            f"{len(counts)} counts with the sum {sum(counts)} do not fit {rows} rows in {len(dims)} banks"
        )
    if bag_lengths.ndim != 2 or len(bag_lengths) != sum(pieces):
        raise ValueError(
            f"bag_lengths of shape {list(bag_lengths.shape)} do not fit {sum(pieces)} pieces with bags"
        )
    if bag_lengths.size and int(bag_lengths.min()) < 0:
        raise ValueError(f"a bag has {int(bag_lengths.min())} rows; lengths are at least 0")
    totals = bag_lengths.sum(axis=1, dtype=np.int64).tolist() if sum(pieces) else []
    return _shares(tuple(dims), counts, pieces, tuple(totals), bag_lengths.shape[1])


# Most batches have the counts of the one before.
@lru_cache(maxsize=64)
def _shares(
    dims: tuple[int, ...],
    counts: tuple[int, ...],
    pieces: tuple[int, ...],
    totals: tuple[int, ...],
    batch: int,
) -> tuple[BankShare, ...]:
    shares, first = [], 0
    for dim, count, piece_count in zip(dims, counts, pieces, strict=True):
        bagged = sum(totals[first : first + piece_count])
        first += piece_count
        if bagged > count:
            raise ValueError(f"bags have {bagged} rows, but their bank has {count}")
        shares.append(BankShare(dim, count - bagged, bagged, piece_count, batch if piece_count else 0))
    return tuple(shares)


def count_floats(
    dims: Sequence[int],
    rows: int,
    counts: Sequence[int] = (),
    bag_pieces: Sequence[int] = (),
    bag_lengths: Int32Array = NO_BAG_LENGTHS,
) -> int:
    """Return how many floats the reply to a request has.

    Takes the arguments of `bank_shares`, and raises the same errors.
    """
    return sum(share.floats for share in bank_shares(dims, rows, counts, bag_pieces, bag_lengths))


@dataclass(frozen=True, slots=True, eq=False)
class BankLookup:
    """The part of a request of one bank, and where its reply belongs.

    Banks side by side of one growing table each are one here, where the node holds these tables whole.
    Columns are numbers, in the order of the model's embeddings.

    First come the single rows: for each column of `whole` the rows of all B examples, then for each of `cut`
    the rows in the piece of its table, then for each of `listed` those rows of its bags that the node holds.
    With `distinct` each distinct single row is requested once, also if several columns have it. Then come,
    for each column of `bags`, those rows of its bags that the node holds. The reply has one vector for each
    requested single row, and B vectors for each column of `bags`.

    Attributes:
        share: numbers of requested rows and of floats.
        distinct: the distinct single rows; None where all single rows are requested.
        whole: the columns with one row an example whose tables the node holds whole: first those that share
            them with no other column.
        cut: the columns with one row an example of whose tables the node holds a piece, ascending.
        positions: for each column of `cut` the examples whose row is in the piece: int64, ascending; then for
            each column of `listed` the places in its bags' rows that the node holds.
        bags: the columns whose bags the node sums, of the rows that it holds, ascending.
        listed: the columns with bags whose rows it returns one by one, ascending.
        counts: number of requested rows or keys in each bank of the plan that this stands for, in order.
    """

    share: BankShare
    distinct: DistinctRows | None
    whole: tuple[int, ...]
    cut: tuple[int, ...]
    positions: tuple[IndexArray, ...]
    bags: tuple[int, ...]
    listed: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ColumnBags:
    """The bags of one column in one batch.

    Attributes:
        rows: int32 [E]: the rows of the first example's bag, then those of the next.
        lengths: int32 [B]: how many rows the bag of each example has.
        pooling: see `TableColumn`; the sum or mean of an empty bag is zeros.
        weights: float32 [E], of the rows; [0] for a column without weights.
        keys: uint64 [E], of the rows; [0] for a column whose table does not grow.
    """

    rows: Int32Array
    lengths: Int32Array
    pooling: str
    weights: Float32Array
    keys: Uint64Array

    @property
    def owners(self) -> IndexArray:
        """Return the example of each row, int64 [E]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def inside(self, start: int, stop: int) -> tuple[Mask, Int32Array]:
        """Return which rows are in [start, stop), and each bag's count of them.

        They are bool [E] and int32 [B].
        """
        inside_mask: Mask = (self.rows >= start) & (self.rows < stop)
        so_far = np.zeros(len(inside_mask) + 1, np.int32)
        np.cumsum(inside_mask, out=so_far[1:])
        ends = np.cumsum(self.lengths, dtype=np.int64)
        return inside_mask, so_far[ends] - so_far[ends - self.lengths]


@dataclass(frozen=True, slots=True, eq=False)
class LookupPlan:
    """One lookup request, and where its reply belongs.

    Attributes:
        node: the node that receives the request.
        rows: int32 [N], bank after bank, each numbered within its bank of the node. N may be 0; the reply
            then has only the zeros of empty bags. The node still receives the request and the push, because
            it records every batch.
        batch: B, the number of examples.
        banks: lookup of the banks of the plan, in order, also of banks without requested rows.
        bags: the batch's bags by column; the same for all nodes.
        bag_lengths: see `messages.Lookup`.
        keys: uint64 [K], of growing tables, bank after bank; see `messages.Lookup`.
    """

    node: int
    rows: Int32Array
    batch: int
    banks: tuple[BankLookup, ...]
    bags: dict[int, ColumnBags]
    bag_lengths: Int32Array
    keys: Uint64Array

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the rows or keys of each bank of the plan.

        Returns () with one bank.
        """
        counts = tuple(count for bank in self.banks for count in bank.counts or (bank.share.rows,))
        return counts if len(counts) > 1 else ()

    @property
    def floats(self) -> int:
        """Return how many floats the reply has; the gradients have as many."""
        return sum(bank.share.floats for bank in self.banks)
