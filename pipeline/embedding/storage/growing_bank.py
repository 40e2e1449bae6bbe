"""The bank of growing tables: rows that ids get when they are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..growing.id_index import ABSENT
from ..growing.row_directory import IDS, USED_AT, RowDirectory
from ..lookup.request import BankShare
from ..placement.plan import Bank, Piece
from .bank import RowBank
from .first_values import keyed_values, mixed_key
from .grown_rows import as_stored
from .row_storage import RowArray
from .saved_tables import SavedTables
from .shard_work import BankPart, FirstValues

_RESTORED_ROWS = 65_536


class GrowingPiece(NamedTuple):
    """A node's part of a growing table.

    It has as many rows as `piece`, for the ids whose row would be in it if the table were a hashed one.
    """

    piece: Piece
    table: TableSettings


class GrowingBank(RowBank):
    """The rows of growing tables of equal settings.

    An id without a row has its first values, which depend only on (seed, table, id); so has a new row. The
    thread that owns the store decides which id has which row; the rows themselves are used as in `RowBank`.

    Args:
        node: the node's number.
        bank: dim, optimizer, rate and storage.
        tables: the tables, in the order of their banks in the plan; None where the node has no part.
        seed: the seed of the run.

    Attributes:
        directory: which id has which row.
    """

    def __init__(self, node: int, bank: Bank, tables: Sequence[GrowingPiece | None], seed: int) -> None:
        self._own = [one for one in tables if one is not None]
        super().__init__(node, sum(len(one.piece) for one in self._own), bank)
        self._numbers = [number for number, one in enumerate(tables) if one is not None]
        self.directory = RowDirectory(
            [(len(one.piece), one.table.growth) for one in self._own if one.table.growth is not None]
        )
        self._begins = np.cumsum([0, *(len(one.piece) for one in self._own)])
        self._value_keys = np.array([mixed_key(seed, one.piece.table) for one in self._own], np.uint64)
        self._scales = np.array([one.table.init_scale for one in self._own], np.float64)

    def arrays(self) -> dict[str, RowArray]:
        """Return the arrays of `RowBank.arrays`, and those of `DIRECTORY_ARRAYS`."""
        return super().arrays() | {IDS: self.directory.ids, USED_AT: self.directory.used_at}

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of `RowDirectory.counts` by table; any thread may call."""
        return {one.table.name: self.directory.counts(at) for at, one in enumerate(self._own)}

    def joined(self, shares: Sequence[BankShare]) -> BankShare:
        """Return the shares of all tables as one.

        Tables whose bags are summed come last, so single keys come first, as in any bank. Raises ValueError
        for keys of a table that this node lacks, and for keys outside of the bags of a summed table.
        """
        single = bag_rows = pieces = batch = 0
        for number, share in enumerate(shares):
            if share.rows and number not in self._numbers:
                raise ValueError(f"keys of growing table {number} of a bank; node {self.node} has none of it")
            if share.single and share.pieces:
                raise ValueError(
                    f"{share.rows} keys of growing table {number} of a bank, whose bags have {share.bag_rows}"
                )
            single += share.single
            bag_rows += share.bag_rows
            pieces += share.pieces
            batch = max(batch, share.batch)
        return BankShare(self.dim, single, bag_rows, pieces, batch)

    def lookup_part(
        self, share: BankShare, keys: Uint64Array, counts: Sequence[int], lengths: Int32Array
    ) -> BankPart:
        """Return the part of a lookup; it changes nothing.

        `counts` has the number of keys of each table, `lengths` those of its bags as in `BankPart`.
        """
        rows = self.directory.find(keys)
        absent = np.flatnonzero(rows == ABSENT)
        if not len(absent):
            return BankPart(self, share, rows, lengths)
        # Any row, since its values are replaced.
        rows[absent] = 0
        owners = np.searchsorted(np.cumsum(self._of_own(counts)), absent, side="right")
        first = FirstValues(absent, self._first_values(keys[absent], owners))
        return BankPart(self, share, rows, lengths, first=first)

    def push_part(
        self, share: BankShare, keys: Uint64Array, counts: Sequence[int], lengths: Int32Array
    ) -> BankPart:
        """Return the part of a push; ids may get and lose rows.

        Gradients of ids that have none then are left out. The arguments are those of `lookup_part`.
        """
        use = self.directory.use(keys, self._of_own(counts))
        self.changed_at[use.evicted] = self.change_epoch
        if use.renumbered:
            self.changed_at[self.directory.used_at > 0] = self.change_epoch
        first = None
        if len(use.new):
            new: IndexArray = use.new.astype(np.int64)
            owners = np.searchsorted(self._begins, new, side="right") - 1
            first = FirstValues(new, self._first_values(self.directory.ids[new].view(np.uint64), owners))
        known = np.flatnonzero(use.rows != ABSENT)
        if len(known) == len(use.rows):
            return BankPart(self, share, use.rows, lengths, first=first)
        return BankPart(self, share, use.rows[known], lengths, known, first)

    def restore(self, saved: SavedTables, name: str) -> None:
        """Load a table's rows that belong to this node, whatever nodes saved them.

        If there are more than its piece has rows, those used last are kept. Raises CheckpointError for a file
        that cannot be read.
        """
        number = next(at for at, one in enumerate(self._own) if one.table.name == name)
        piece, table = self._own[number]
        directory = saved.read_directory(name)
        own = np.flatnonzero(directory.owned(piece.start, piece.stop))
        wanted: Int32Array = np.where(
            (own >= piece.start) & (own < piece.stop), own - piece.start, ABSENT
        ).astype(np.int32)
        rows = self.directory.restore(number, directory.keys[own], directory.used_at[own], wanted)
        own, rows = own[rows != ABSENT], rows[rows != ABSENT] + np.int32(self._begins[number])
        arrays = super().arrays()
        for start in range(0, table.rows, _RESTORED_ROWS):
            stop = min(start + _RESTORED_ROWS, table.rows)
            first, last = np.searchsorted(own, [start, stop])
            if first == last:
                continue
            source, target = own[first:last] - start, rows[first:last].astype(np.int64)
            self._storage.put(target, np.ascontiguousarray(saved.read(name, start, stop)[source]))
            for state, values in saved.read_state(name, start, stop).items():
                arrays[state][target] = values[source]

    def _of_own(self, counts: Sequence[int]) -> list[int]:
        """Return the counts of the tables that this node has a part of."""
        return [counts[number] for number in self._numbers]

    def _first_values(self, keys: Uint64Array, owners: IndexArray) -> Float32Array:
        """Return the vectors of ids without a row, float32 [N, dim].

        `owners` has the table of each.
        """
        values = keyed_values(self._value_keys[owners], self._scales[owners], keys, self.dim)
        return as_stored(values, self._own[0].table.storage)
