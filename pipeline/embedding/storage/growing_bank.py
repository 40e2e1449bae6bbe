"""The bank of a growing table: rows that ids get when they are trained."""

from __future__ import annotations

import numpy as np

from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Uint64Array
from ..growing.id_index import ABSENT, KeyRange
from ..growing.row_directory import IDS, USED_AT, RowDirectory
from ..lookup.request import BankShare
from ..placement.plan import Bank, Piece
from .bank import RowBank
from .grown_rows import values_of_keys
from .row_storage import RowArray
from .saved_tables import SavedTables
from .shard_work import BankPart, FirstValues

_NO_LENGTHS = np.zeros((0, 0), np.int32)
_RESTORED_ROWS = 65_536


class GrowingBank(RowBank):
    """The rows of a piece of one growing table.

    An id without a row has its first values, which depend only on (seed, table, id); so has a new row. The
    thread that owns the store decides which id has which row; the rows themselves are used as in `RowBank`.

    Args:
        node: the node's number.
        bank: dim, optimizer, rate and storage.
        piece: the part of the table that the node has: at most so many rows, for the ids whose row would be
            in it if the table were a hashed one.
        table: settings of the table.
        seed: the seed of the run.

    Attributes:
        directory: which id has which row.
    """

    def __init__(self, node: int, bank: Bank, piece: Piece, table: TableSettings, seed: int) -> None:
        super().__init__(node, len(piece), bank)
        assert table.growth is not None
        key_range = KeyRange(piece.start, piece.stop, table.rows)
        self.directory = RowDirectory(len(piece), table.growth, key_range)
        self._piece, self._table, self._seed = piece, table, seed

    @property
    def name(self) -> str:
        """Return the name of the table."""
        return self._table.name

    def arrays(self) -> dict[str, RowArray]:
        """Return the arrays of `RowBank.arrays`, and those of `DIRECTORY_ARRAYS`."""
        return super().arrays() | {IDS: self.directory.ids, USED_AT: self.directory.used_at}

    def first_values(self, keys: Uint64Array) -> Float32Array:
        """Return the vectors of ids without a row, float32 [N, dim]."""
        return values_of_keys(self._table, self._piece.table, self._seed, keys)

    def lookup_part(self, share: BankShare, keys: Uint64Array) -> BankPart:
        """Return the part of a lookup; it changes nothing."""
        rows = self.directory.find(keys)
        known = np.flatnonzero(rows != ABSENT)
        if len(known) == len(rows):
            return BankPart(self, share, rows, _NO_LENGTHS)
        absent = np.flatnonzero(rows == ABSENT)
        first = FirstValues(absent, self.first_values(keys[absent]))
        return BankPart(self, share, rows[known], _NO_LENGTHS, known, first)

    def push_part(self, share: BankShare, keys: Uint64Array) -> BankPart:
        """Return the part of a push; ids may get and lose rows.

        Gradients of ids that have none then are left out.
        """
        use = self.directory.use(keys)
        self.changed_at[use.evicted] = self.change_epoch
        first = None
        if len(use.new):
            new: IndexArray = use.new.astype(np.int64)
            first = FirstValues(new, self.first_values(self.directory.ids[new].view(np.uint64)))
        known = np.flatnonzero(use.rows != ABSENT)
        if len(known) == len(use.rows):
            return BankPart(self, share, use.rows, _NO_LENGTHS, first=first)
        return BankPart(self, share, use.rows[known], _NO_LENGTHS, known, first)

    def restore(self, saved: SavedTables) -> None:
        """Load the table's rows that belong to this piece, whatever nodes saved them.

        If there are more than the piece has rows, those used last are kept. Raises CheckpointError for a file
        that cannot be read.
        """
        name, piece = self._table.name, self._piece
        table = saved.read_directory(name)
        own = np.flatnonzero(table.owned(piece.start, piece.stop))
        wanted = np.where((own >= piece.start) & (own < piece.stop), own - piece.start, ABSENT)
        rows = self.directory.restore(table.keys[own], table.used_at[own], wanted.astype(np.int32))
        own, rows = own[rows != ABSENT], rows[rows != ABSENT]
        arrays = super().arrays()
        for start in range(0, self._table.rows, _RESTORED_ROWS):
            stop = min(start + _RESTORED_ROWS, self._table.rows)
            first, last = np.searchsorted(own, [start, stop])
            if first == last:
                continue
            source, target = own[first:last] - start, rows[first:last].astype(np.int64)
            self._storage.put(target, np.ascontiguousarray(saved.read(name, start, stop)[source]))
            for state, values in saved.read_state(name, start, stop).items():
                arrays[state][target] = values[source]
