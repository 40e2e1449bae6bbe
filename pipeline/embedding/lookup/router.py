"""The trainer's side of lookups: a batch's requests, and its embeddings from the replies.

`ShardRouter` splits a batch's rows over the embedding nodes. A `NodeRequestBuilder` has one node's part of
the plan in a form that makes its requests fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...config.tables import EmbeddedColumn
from ...data.batch import no_keys
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..placement.plan import Piece, TablePlan
from .gather_indices import GatherIndices, Pad
from .request import (
    NO_BAG_LENGTHS,
    NO_KEYS,
    NO_ROWS,
    NO_WEIGHTS,
    BankLookup,
    BankShare,
    BatchIds,
    ColumnBags,
    DistinctRows,
    LookupPlan,
)
from .vectors import BatchEmbeddings, FloatBuffer, replies_of

NO_TABLE_KEYS: Uint64Array = no_keys()


class NodeRequestBuilder:
    """Build the requests to one node.

    Nothing of a batch is stored, so any thread may call it.

    Args:
        plan: the split.
        node: the node.
        single: the columns with one row an example, in the order of their rows in a batch.
        distinct: whether each distinct row of a batch is requested once.
    """

    def __init__(self, plan: TablePlan, node: int, single: tuple[int, ...], *, distinct: bool) -> None:
        self._node, self._distinct = node, distinct
        self._banks = [_BankLayout(plan, node, numbers, single) for numbers in _side_by_side(plan, node)]

    def request(
        self, rows: Int32Array, batch: int, bags: Mapping[int, ColumnBags], keys: Mapping[int, Uint64Array]
    ) -> LookupPlan:
        """Return the request for a batch.

        Args:
            rows: int32 [C1, B], of the columns with one row an example; the caller has checked them.
            batch: B.
            bags: bags of the batch by column; the caller has checked them.
            keys: uint64 [B] of each column with one row an example of a growing table.
        """
        banks, lengths = [], []
        local: list[Int32Array] = []
        local_keys: list[Uint64Array] = [NO_KEYS]
        for bank in self._banks:
            positions = bank.positions(rows, bags)
            requested: NDArray[Any]
            if not bank.is_growing:
                single = bank.single(rows, bags, positions)
                distinct = DistinctRows.of(single, bank.apart, batch) if self._distinct else None
                requested = single if distinct is None else distinct.rows
                local.append(requested)
            else:
                bank_keys = bank.keys(keys, bags, positions)
                distinct = DistinctRows.of_keys(bank_keys, max(1, bank.apart)) if self._distinct else None
                requested = bank_keys if distinct is None else distinct.rows
                local_keys.append(requested)
            bag_rows, bag_keys, bag_lengths = bank.of_bags(bags)
            share = BankShare(
                dim=bank.dim,
                single=len(requested),
                bag_rows=sum(map(len, bag_rows)) + sum(map(len, bag_keys)),
                pieces=len(bag_lengths),
                batch=batch if bag_lengths else 0,
            )
            counts = bank.counts(share.rows, distinct, batch)
            banks.append(
                BankLookup(share, distinct, bank.whole, bank.cut, positions, bank.bags, bank.listed, counts)
            )
            local += bag_rows
            local_keys += bag_keys
            lengths += bag_lengths
        of_bags = np.stack(lengths) if lengths else NO_BAG_LENGTHS
        bank_rows = np.concatenate([NO_ROWS, *local])
        all_keys = np.concatenate(local_keys)
        return LookupPlan(self._node, bank_rows, batch, tuple(banks), dict(bags), of_bags, all_keys)


class ShardRouter:
    """Split the rows of batches over nodes, by one plan.

    Nothing of a batch is stored, so many batches may be in flight, and any thread may call it.

    Args:
        plan: the split.
        distinct: whether each distinct row of a batch is requested once, and its gradients are summed by the
            trainer. This saves bytes and work of the nodes, and costs some work of the trainer. Results are
            equal to the bit if vectors and gradients are sent as float32; other codecs round the sum instead
            of its parts. Bags that nodes sum are not affected.
        jagged: whether the vectors of sequences are one behind the other, [N, dim], and not padded.
    """

    def __init__(self, plan: TablePlan, *, distinct: bool = False, jagged: bool = False) -> None:
        self._jagged = jagged
        self.plan, self._columns = plan, plan.columns
        self._bagged = tuple(number for number, column in enumerate(plan.columns) if column.pooling)
        single = tuple(number for number in range(len(plan.columns)) if number not in self._bagged)
        self._single = single
        self._growing = tuple(number for number in single if plan.columns[number].grows)
        self._row_limits = np.array([plan.columns[number].table.rows for number in single], np.uint32)
        self._nodes = [
            NodeRequestBuilder(plan, node, single, distinct=distinct) for node in range(plan.nodes)
        ]

    def requests_of(self, batch: BatchIds) -> list[LookupPlan]:
        """Return the requests for a batch; raises as `requests`."""
        return self.requests(
            batch.rows, batch.bag_rows, batch.bag_lengths, batch.item_weights, batch.keys, batch.bag_keys
        )

    def keys_of(self, batch: BatchIds) -> dict[str, Uint64Array]:
        """Return the keys of a batch by column of a growing table, uint64 [N]."""
        columns = self._columns
        keys_by_column = {
            columns[number].name: keys for number, keys in zip(self._growing, batch.keys, strict=True)
        }
        ends = np.cumsum(batch.bag_lengths.sum(axis=1, dtype=np.int64)).tolist()
        for number, start, stop in zip(self._bagged, [0, *ends], ends, strict=False):
            if columns[number].grows:
                keys_by_column[columns[number].name] = batch.bag_keys[start:stop]
        return keys_by_column

    def requests(
        self,
        rows: Int32Array,
        bag_rows: Int32Array = NO_ROWS,
        bag_lengths: Int32Array = NO_BAG_LENGTHS,
        item_weights: Float32Array = NO_WEIGHTS,
        keys: Uint64Array = NO_TABLE_KEYS,
        bag_keys: Uint64Array = NO_KEYS,
    ) -> list[LookupPlan]:
        """Return one request for each node, in the order of nodes.

        Args:
            rows: int32 [C1, B], C-contiguous: the row of each example in each column with one row an example.
            bag_rows: int32 [N]: rows of the bags of the first column with bags, example by example, then
                those of the next column.
            bag_lengths: int32 [M, B]: number of rows of each bag; [0, 0] if no column has bags.
            item_weights: float32 [N]: weights of `bag_rows`; [0] if no column has weights.
            keys: uint64 [G, B]: the hash of each example's id in each column with one row an example of a
                growing table, whose row in `rows` says what node has it; [0, 0] if there is no such column.
            bag_keys: uint64 [N]: the same of `bag_rows`; [0] if there is no such column with bags.

        Raises:
            ValueError: a wrong shape or type, or a row that its table does not have.
        """
        examples = self._checked_examples(rows, bag_lengths, keys)
        self._check_bags(bag_rows, bag_lengths, item_weights, bag_keys, examples)
        return self._requests(rows, bag_rows, bag_lengths, item_weights, keys, bag_keys, examples)

    def requests_of_checked(self, batch: BatchIds) -> list[LookupPlan]:
        """Return the requests for a batch that `check` has let pass."""
        rows, lengths = batch.rows, batch.bag_lengths
        examples: int = rows.shape[1] if self._single else lengths.shape[-1]
        return self._requests(
            rows, batch.bag_rows, lengths, batch.item_weights, batch.keys, batch.bag_keys, examples
        )

    def _requests(
        self,
        rows: Int32Array,
        bag_rows: Int32Array,
        bag_lengths: Int32Array,
        item_weights: Float32Array,
        keys: Uint64Array,
        bag_keys: Uint64Array,
        examples: int,
    ) -> list[LookupPlan]:
        bags = self._bags(bag_rows, bag_lengths, item_weights, bag_keys)
        of_columns = dict(zip(self._growing, keys, strict=True))
        return [node.request(rows, examples, bags, of_columns) for node in self._nodes]

    def check(self, batch: BatchIds, examples: int) -> None:
        """Raise ValueError for a batch of this many examples of which `requests` would raise."""
        rows, lengths = batch.rows, batch.bag_lengths
        counted = self._checked_examples(rows, lengths, batch.keys)
        if counted != examples:
            raise ValueError(f"rows of {counted} examples; the batch has {examples}")
        self._check_bags(batch.bag_rows, lengths, batch.item_weights, batch.bag_keys, examples)

    def _checked_examples(self, rows: Int32Array, bag_lengths: Int32Array, keys: Uint64Array) -> int:
        """Return for how many examples these are; raises as `requests`."""
        columns = len(self._single)
        if rows.ndim != 2 or len(rows) != columns or rows.dtype != np.int32 or not rows.flags.c_contiguous:
            raise ValueError(
                f"rows must be C-contiguous int32 [{columns}, B], not {rows.dtype} {list(rows.shape)}"
            )
        # As an unsigned number, a negative row number is too large.
        if rows.size and (over := rows.view(np.uint32).max(axis=1) >= self._row_limits).any():
            self._raise_bad_row(self._single[int(np.flatnonzero(over)[0])])
        batch: int = rows.shape[1] if columns else bag_lengths.shape[-1]
        if len(keys) != len(self._growing) or (len(keys) and keys.shape[1] != batch):
            raise ValueError(f"keys must be uint64 {[len(self._growing), batch]}, not {list(keys.shape)}")
        return batch

    def _check_bags(
        self,
        bag_rows: Int32Array,
        lengths: Int32Array,
        weights: Float32Array,
        keys: Uint64Array,
        batch: int,
    ) -> None:
        """Raise as `requests` for bags that cannot be."""
        if not self._bagged and not bag_rows.size and not lengths.size:
            return
        shape = (len(self._bagged), batch)
        if lengths.dtype != np.int32 or lengths.shape != shape or (lengths.size and lengths.min() < 0):
            raise ValueError(f"bag_lengths must be int32 {list(shape)}, none below 0")
        if bag_rows.dtype != np.int32 or bag_rows.shape != (int(lengths.sum(dtype=np.int64)),):
            raise ValueError(
                f"bag_rows must be int32 [{lengths.sum(dtype=np.int64)}], the sum of bag_lengths"
            )
        columns = [self._columns[number] for number in self._bagged]
        if len(weights) or any(column.of_table.weighted for column in columns):
            _check_of_each("item_weights", weights, np.dtype(np.float32), bag_rows)
        if len(keys) or any(column.grows for column in columns):
            _check_of_each("bag_keys", keys, np.dtype(np.uint64), bag_rows)
        for number, place, _ in self._split_bags(lengths):
            part = bag_rows[place]
            if part.size and part.view(np.uint32).max() >= self._columns[number].table.rows:
                self._raise_bad_row(number)

    def _bags(
        self, bag_rows: Int32Array, lengths: Int32Array, weights: Float32Array, keys: Uint64Array
    ) -> dict[int, ColumnBags]:
        bags: dict[int, ColumnBags] = {}
        for number, place, of_column in self._split_bags(lengths):
            column = self._columns[number]
            rows, pooling = bag_rows[place], column.pooling
            own_weights = weights[place] if column.of_table.weighted else NO_WEIGHTS
            if column.of_table.pooled_by_trainers:
                pooling, own_weights = f"weighted_{pooling}", np.ones(len(rows), np.float32)
            own_keys = keys[place] if column.grows else NO_KEYS
            bags[number] = ColumnBags(rows, of_column, pooling, own_weights, own_keys)
        return bags

    def _split_bags(self, lengths: Int32Array) -> Iterator[tuple[int, slice, Int32Array]]:
        """Yield each column with bags, the place of its items among all, and its bags' lengths."""
        ends = [0, *np.cumsum(lengths.sum(axis=1, dtype=np.int64)).tolist()]
        # Without columns with bags, `check` lets empty lengths of any shape pass.
        for number, (start, stop), of_column in zip(self._bagged, pairwise(ends), lengths, strict=False):
            yield number, slice(start, stop), of_column

    def _raise_bad_row(self, number: int) -> None:
        column = self._columns[number]
        raise ValueError(
            f"a row number is beyond the {column.table.rows} rows of table {column.number}"
            f" (column {column.name})"
        )

    def assemble(
        self,
        requests: Sequence[LookupPlan],
        replies: Sequence[FloatBuffer],
        device: torch.device | None = None,
    ) -> BatchEmbeddings:
        """Return the embeddings of a batch from the nodes' replies.

        Args:
            requests: result of `requests` for the batch.
            replies: one for each request, with its `floats` float32 values: an array, a tensor, or the buffer
                of a received frame. The result uses this memory, which must not change until the backward
                pass is over. A tensor may already be on the device.
            device: device of the embeddings; by default the CPU. Replies elsewhere are copied there, in the
                order of the device's current stream; only a copy from pinned memory does not block.

        Raises:
            ValueError: there is not one reply for each node, or a reply has a wrong size or type.
        """
        indices, data = self.gather(requests, replies)
        where = device or torch.device("cpu")
        return BatchEmbeddings(
            indices.layout,
            [tensor.to(where) for tensor in indices.tensors],
            [values.to(where, non_blocking=True) for values in data],
        )

    def gather(
        self, requests: Sequence[LookupPlan], replies: Sequence[FloatBuffer], pad: Pad | None = None
    ) -> tuple[GatherIndices, list[torch.Tensor]]:
        """Return what places a batch's vectors, and the replies as tensors; takes and raises as `assemble`.

        With `pad` see `GatherIndices.of`.
        """
        if len(requests) != self.plan.nodes or len(replies) != self.plan.nodes:
            raise ValueError(
                f"{len(requests)} requests and {len(replies)} replies do not fit {self.plan.nodes} nodes"
            )
        indices = GatherIndices.of(requests, len(self._columns), pad, jagged=self._jagged)
        return indices, replies_of(requests, replies)


def _check_of_each(name: str, values: NDArray[Any], dtype: np.dtype[Any], bag_rows: Int32Array) -> None:
    if values.dtype != dtype or values.shape != bag_rows.shape:
        raise ValueError(
            f"{name} must be {dtype} {list(bag_rows.shape)}, one for each of bag_rows, not"
            f" {values.dtype} {list(values.shape)}"
        )


def _side_by_side(plan: TablePlan, node: int) -> list[list[int]]:
    """Return the numbers of the banks, those that are one `BankLookup` together.

    The work of a batch for each of them is then done once. They are banks of growing tables of equal
    settings, of one column each with one row an example, of which the node holds all rows or none.
    """
    held = {piece.bank: piece for piece in plan.pieces_of(node) if plan.banks[piece.bank].growing}

    def is_alike(number: int) -> bool:
        piece = held.get(number)
        is_single = piece is None or (
            plan.is_whole(piece) and [column.pooling for column in plan.tables[piece.table].columns] == [""]
        )
        return plan.banks[number].growing != "" and is_single

    groups: list[list[int]] = []
    for number, bank in enumerate(plan.banks):
        before = groups[-1][-1] if groups else None
        if (
            before is not None
            and plan.banks[before].combination == bank.combination
            and is_alike(before)
            and is_alike(number)
        ):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


class _BankLayout:
    """Lay out the columns of the tables of a node's bank, or of banks side by side.

    Several banks, those of `numbers`, are of a growing table each, which the node holds whole or not at all.

    Attributes:
        apart: how many of `whole`, the first ones, share their tables with no other column.
    """

    def __init__(self, plan: TablePlan, node: int, numbers: list[int], single: tuple[int, ...]) -> None:
        pieces = {piece.table: piece for piece in plan.pieces_of(node) if piece.bank in numbers}
        columns = [number for number, column in enumerate(plan.columns) if column.number in pieces]
        alone = {number for number in columns if len(plan.columns[number].table.columns) == 1}

        def piece_of(number: int) -> Piece:
            return pieces[plan.columns[number].number]

        def columns_where(is_so: Callable[[EmbeddedColumn, Piece], bool]) -> tuple[int, ...]:
            return tuple(number for number in columns if is_so(plan.columns[number], piece_of(number)))

        whole = columns_where(lambda column, piece: not column.pooling and plan.is_whole(piece))
        # By banks, since a request has bank after bank; those that share a table are the last.
        self.whole = tuple(sorted(whole, key=lambda n: (n not in alone, piece_of(n).bank, n)))
        self.cut = columns_where(lambda column, piece: not column.pooling and not plan.is_whole(piece))
        self.bags = columns_where(lambda column, _: column.of_table.pooled_by_nodes)
        self.listed = columns_where(
            lambda column, _: bool(column.pooling) and not column.of_table.pooled_by_nodes
        )
        self.apart = sum(number in alone for number in self.whole)
        self.dim, self.is_growing = plan.banks[numbers[0]].dim, plan.banks[numbers[0]].growing != ""
        # Positions in the batch's rows, which lack the columns with bags.
        self._whole_index: NDArray[np.intp] = np.array([single.index(n) for n in self.whole], np.intp)
        offsets = [piece_of(number).offset for number in self.whole]
        self._offsets: Int32Array = np.array(offsets, np.int32)[:, None]
        self._cut_pieces = [(piece_of(number), single.index(number)) for number in self.cut]
        self._listed_pieces = [(piece_of(number), number) for number in self.listed]
        self._bag_pieces = [(piece_of(n), n, plan.is_whole(piece_of(n))) for n in self.bags]
        held = {piece.bank for piece in pieces.values()}
        self._held = tuple(number in held for number in numbers)

    def positions(self, rows: Int32Array, bags: Mapping[int, ColumnBags]) -> tuple[IndexArray, ...]:
        """Return the positions of `BankLookup`."""
        return tuple(_inside(piece, piece_rows) for piece, piece_rows in self._split_rows(rows, bags))

    def single(
        self, rows: Int32Array, bags: Mapping[int, ColumnBags], positions: tuple[IndexArray, ...]
    ) -> Int32Array:
        """Return the single rows, numbered within the bank, in the order that `BankLookup` states."""
        batch = rows.shape[1]
        filled = len(self.whole) * batch
        out = np.empty(filled + sum(map(len, positions)), np.int32)
        block = out[:filled].reshape(len(self.whole), batch)
        np.take(rows, self._whole_index, axis=0, out=block, mode="clip")
        block += self._offsets
        for (piece, piece_rows), examples in zip(self._split_rows(rows, bags), positions, strict=True):
            np.add(
                piece_rows[examples],
                np.int32(piece.offset - piece.start),
                out=out[filled : filled + len(examples)],
            )
            filled += len(examples)
        return out

    def _split_rows(self, rows: Int32Array, bags: Mapping[int, ColumnBags]) -> list[tuple[Piece, Int32Array]]:
        """Return the rows of `cut` and of `listed`, and the piece that the node holds of each."""
        of_cut = [(piece, rows[index]) for piece, index in self._cut_pieces]
        return of_cut + [(piece, bags[number].rows) for piece, number in self._listed_pieces]

    def keys(
        self,
        keys: Mapping[int, Uint64Array],
        bags: Mapping[int, ColumnBags],
        positions: tuple[IndexArray, ...],
    ) -> Uint64Array:
        """Return the keys that are asked for one by one, uint64 [N].

        They are in the order of the examples, column after column. `positions` are those of `positions`.
        """
        of_split = [keys[number] for number in self.cut] + [bags[number].keys for number in self.listed]
        parts = [of_column[held] for of_column, held in zip(of_split, positions, strict=True)]
        return np.concatenate([NO_KEYS, *(keys[number] for number in self.whole), *parts])

    def counts(self, requested: int, distinct: DistinctRows | None, batch: int) -> tuple[int, ...]:
        """Return how many of the `requested` rows or keys each bank has."""
        if len(self._held) == 1:
            return (requested,)
        of_tables = iter([batch] * len(self.whole))
        if distinct is not None and batch:
            of_tables = iter(np.bincount(distinct.begins // batch, minlength=len(self.whole)).tolist())
        return tuple(next(of_tables) if held else 0 for held in self._held)

    def of_bags(
        self, bags: Mapping[int, ColumnBags]
    ) -> tuple[list[Int32Array], list[Uint64Array], list[Int32Array]]:
        """Return each column's rows in this bank or its keys, and its bags' lengths.

        The columns are those of `self.bags`. The rows are numbered within the bank; the lengths are int32
        [B].
        """
        rows, keys, lengths = [], [], []
        for piece, number, whole in self._bag_pieces:
            bag = bags[number]
            here, of_each = (slice(None), bag.lengths) if whole else bag.inside(piece.start, piece.stop)
            if not self.is_growing:
                rows.append(bag.rows[here] + np.int32(piece.offset - piece.start))
            else:
                keys.append(bag.keys[here])
            lengths.append(of_each)
        return rows, keys, lengths


def _inside(piece: Piece, rows: Int32Array) -> IndexArray:
    """Return the positions of rows inside the piece: int64, ascending."""
    return np.flatnonzero((rows >= piece.start) & (rows < piece.stop))
