"""What a plan says of one node, laid out for the making of requests. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ...types import Int32Array
from ..placement.plan import Piece, TablePlan
from .lookup import NO_BAG_LENGTHS, Bags, BankLookup, BankShare, LookupPlan, Places
from .request import Distinct


class NodeTables:
    """Makes the requests to one node. It keeps nothing of a batch; any thread may call it.

    Args:
        plan: the split.
        node: which node this is of.
        single: the tables with one row an example, in the order of their rows in a batch.
        distinct: whether each distinct row of a batch is asked for once.
    """

    def __init__(self, plan: TablePlan, node: int, single: tuple[int, ...], *, distinct: bool) -> None:
        self._node, self._distinct = node, distinct
        pieces = plan.pieces_of(node)
        self._banks = [
            _BankTables(plan, [piece for piece in pieces if piece.bank == number], bank.dim, single)
            for number, bank in enumerate(plan.banks)
        ]

    def request(self, rows: Int32Array, batch: int, bags: Mapping[int, Bags]) -> LookupPlan:
        """The request for a batch.

        Args:
            rows: int32 [T1, B], of the tables with one row an example; checked.
            batch: B.
            bags: by table, those of the batch; checked.
        """
        banks, local, lengths = [], [], []
        for bank in self._banks:
            positions, single = bank.single(rows)
            distinct = Distinct.of(single, len(bank.whole), batch) if self._distinct else None
            asked = single if distinct is None else distinct.rows
            bag_rows, bag_lengths = bank.of_bags(bags)
            share = BankShare(
                dim=bank.dim,
                single=len(asked),
                bag_rows=sum(map(len, bag_rows)),
                pieces=len(bag_rows),
                batch=batch if bag_rows else 0,
            )
            banks.append(BankLookup(share, distinct, bank.whole, bank.cut, positions, bank.bags))
            local += [asked, *bag_rows]
            lengths += bag_lengths
        of_bags = np.stack(lengths) if lengths else NO_BAG_LENGTHS
        return LookupPlan(self._node, np.concatenate(local), batch, tuple(banks), dict(bags), of_bags)


class _BankTables:
    """One bank of the node."""

    def __init__(self, plan: TablePlan, pieces: list[Piece], dim: int, single: tuple[int, ...]) -> None:
        one_row = [piece for piece in pieces if not plan.tables[piece.table].pooling]
        whole = [piece for piece in one_row if plan.is_whole(piece)]
        self.dim = dim
        self.whole = tuple(piece.table for piece in whole)
        # Which of the batch's rows: tables with bags have none there.
        self._whole_index: NDArray[np.intp] = np.array(
            [single.index(piece.table) for piece in whole], np.intp
        )
        self._offsets: Int32Array = np.array([piece.offset for piece in whole], np.int32)[:, None]
        self._pieces = [piece for piece in one_row if not plan.is_whole(piece)]
        self._piece_index = [single.index(piece.table) for piece in self._pieces]
        self.cut = tuple(piece.table for piece in self._pieces)
        self._bag_pieces = sorted(
            (piece for piece in pieces if plan.tables[piece.table].pooling), key=lambda piece: piece.table
        )
        self.bags = tuple(piece.table for piece in self._bag_pieces)
        self._all = [plan.is_whole(piece) for piece in self._bag_pieces]

    def single(self, rows: Int32Array) -> tuple[tuple[Places, ...], Int32Array]:
        """For each piece of a split table which examples have their row in it, and the single rows, local to
        the bank, in the order that `BankLookup` states."""
        own = [rows[index] for index in self._piece_index]
        positions = tuple(_inside(piece, of) for piece, of in zip(self._pieces, own, strict=True))
        batch = rows.shape[1]
        at = len(self.whole) * batch
        out = np.empty(at + sum(map(len, positions)), np.int32)
        block = out[:at].reshape(len(self.whole), batch)
        np.take(rows, self._whole_index, axis=0, out=block, mode="clip")
        block += self._offsets
        for piece, of, examples in zip(self._pieces, own, positions, strict=True):
            np.add(of[examples], np.int32(piece.offset - piece.start), out=out[at : at + len(examples)])
            at += len(examples)
        return positions, out

    def of_bags(self, bags: Mapping[int, Bags]) -> tuple[list[Int32Array], list[Int32Array]]:
        """For each of `bags` the rows that are here, local to the bank, and int32 [B], how many each bag
        has of them."""
        rows, lengths = [], []
        for piece, whole in zip(self._bag_pieces, self._all, strict=True):
            bag = bags[piece.table]
            here, of_each = (bag.rows, bag.lengths) if whole else bag.inside(piece.start, piece.stop)
            rows.append(here + np.int32(piece.offset - piece.start))
            lengths.append(of_each)
        return rows, lengths


def _inside(piece: Piece, rows: Int32Array) -> Places:
    """Which of a table's rows are in the piece: int64, ascending."""
    return np.flatnonzero((rows >= piece.start) & (rows < piece.stop))
