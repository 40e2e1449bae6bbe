"""The bank of growing tables: rows that ids get when they are trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..growing.id_index import ABSENT
from ..growing.row_directory import IDS, USED_AT, USED_SECONDS, RowDirectory
from ..lookup.request import BankShare
from ..placement.plan import Bank, Piece
from ..placement.ranges import WEIGHTS
from .bank import FILL_ROWS, BankPart, BankRequest, FirstValues, RequestArrays, RowBank
from .bf16_rows import RowNumbers
from .first_values import keyed_values, mixed_key
from .grown_rows import as_stored
from .on_disk.shares import DiskShare
from .row_storage import RowArray
from .saved_tables import SavedTables


class GrowingPiece(NamedTuple):
    """A node's part of a growing table.

    It has as many rows as `piece`, for the ids whose row would be in it if the table were a hashed one.
    """

    piece: Piece
    table: TableSettings


@dataclass(frozen=True, slots=True, eq=False)
class _KeysRequest(BankRequest):
    """Keys of a bank's growing tables, `counts` of each, with the lengths of their bags."""

    bank: GrowingBank
    share: BankShare
    keys: Uint64Array
    counts: Sequence[int]
    lengths: Int32Array

    def lookup_part(self) -> BankPart:
        return self.bank.lookup_part(self.share, self.keys, self.counts, self.lengths)

    def push_part(self) -> BankPart:
        return self.bank.push_part(self.share, self.keys, self.counts, self.lengths)


class GrowingBank(RowBank):
    """The rows of growing tables of equal settings.

    An id without a row has its first values, which depend only on (seed, table, id); so has a new row. The
    thread that owns the store decides which id has which row; the rows themselves are used as in `RowBank`.

    Args:
        node: the node's number.
        bank: dim, optimizer, rate and storage.
        tables: the tables, in the order of their banks in the plan; None where the node has no part.
        seed: the seed of the run.
        clock: that of `RowDirectory`.
        disk: that of `RowBank`; which id has which row is in memory all the same.

    Attributes:
        directory: which id has which row.
    """

    def __init__(
        self,
        node: int,
        bank: Bank,
        tables: Sequence[GrowingPiece | None],
        seed: int,
        clock: Callable[[], float] = time.monotonic,
        disk: DiskShare | None = None,
    ) -> None:
        self._parts = [part for part in tables if part is not None]
        lengths = [len(part.piece) for part in self._parts]
        super().__init__(node, sum(lengths), bank, disk)
        self._is_mixed = bank.mixed
        self._numbers = [number for number, part in enumerate(tables) if part is not None]
        self.directory = RowDirectory(
            [(len(part.piece), part.table.growth) for part in self._parts if part.table.growth is not None],
            clock,
            None if self.cached is not None else self._storage.memory.values,
        )
        self._begins = np.cumsum([0, *lengths])
        self._value_keys = np.array([mixed_key(seed, part.piece.table) for part in self._parts], np.uint64)
        self._scales = np.array([part.table.init_scale for part in self._parts], np.float64)

    def arrays(self) -> dict[str, RowArray]:
        """Return the arrays of `RowBank.arrays`, and those of `DIRECTORY_ARRAYS`."""
        directory = self.directory
        times = {} if directory.used_seconds is None else {USED_SECONDS: directory.used_seconds}
        return super().arrays() | {IDS: directory.ids, USED_AT: directory.used_at} | times

    def arrays_of(self, table: TableSettings) -> dict[str, RowArray]:
        arrays = self.arrays()
        if table.growth is None or not table.growth.evict_after_seconds:
            # The directory has times of all tables here if one of them needs them; other nodes may lack that.
            arrays.pop(USED_SECONDS, None)
        return arrays

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the counts of `RowDirectory.counts` by table; any thread may call."""
        return {part.table.name: self.directory.counts(number) for number, part in enumerate(self._parts)}

    def numbers_of(self, rows: IndexArray) -> RowNumbers:
        """Return the keys of rows: a trainer does not know which row a key has."""
        keys: Uint64Array = self.directory.ids[self.rows_at(rows)].view(np.uint64)
        return keys

    def take_request(self, shares: Sequence[BankShare], arrays: RequestArrays) -> BankRequest:
        """Take this bank's part of a request; raises ValueError for keys of tables that the node lacks."""
        share = self._join(shares)
        lengths, keys = arrays.take_lengths(share.pieces), arrays.take_keys(share.rows)
        return _KeysRequest(self, share, keys, [table.rows for table in shares], lengths)

    def fill(self, piece: Piece, table: TableSettings, rows: slice, seed: int) -> None:
        """Do nothing: an id gets its row, with first values, when it is trained."""

    def _join(self, shares: Sequence[BankShare]) -> BankShare:
        """Return the shares of all tables as one.

        Tables whose bags are summed come last, and a mixed one is alone, so single keys come first, as in any
        bank. Raises ValueError for keys of a table that this node lacks, and for keys outside of the bags of
        a table of which all are summed.
        """
        single = bag_rows = pieces = batch = 0
        for number, share in enumerate(shares):
            if share.rows and number not in self._numbers:
                raise ValueError(f"keys of growing table {number} of a bank; node {self.node} has none of it")
            if share.single and share.pieces and not self._is_mixed:
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
            places, request = self.places_of(rows)
            return BankPart(self, share, places, lengths, request=request)
        request = 0
        if self.cached is not None:
            known = np.flatnonzero(rows != ABSENT)
            rows[known], request = self.places_of(rows[known])
        # Any place, since its values are replaced.
        rows[absent] = 0
        owners = np.searchsorted(np.cumsum(self._of_parts(counts)), absent, side="right")
        first = FirstValues(absent, self._values_of_keys(keys[absent], owners))
        return BankPart(self, share, rows, lengths, first=first, request=request)

    def push_part(
        self, share: BankShare, keys: Uint64Array, counts: Sequence[int], lengths: Int32Array
    ) -> BankPart:
        """Return the part of a push; ids may get and lose rows.

        Gradients of ids that have none then are left out. The arguments are those of `lookup_part`.
        """
        use = self.directory.use(keys, self._of_parts(counts))
        self.changes.mark(use.evicted, self.change_epoch)
        if use.renumbered:
            self.changes.mark(np.flatnonzero(self.directory.used_at > 0), self.change_epoch)
        if self.cached is not None:
            self.cached.forget(use.evicted)
        known = np.flatnonzero(use.rows != ABSENT)
        every = len(known) == len(use.rows)
        places, request = self.places_of(use.rows if every else use.rows[known])
        first = self._first_of(use.new) if len(use.new) else None
        return BankPart(self, share, places, lengths, None if every else known, first, request)

    def _first_of(self, new: Int32Array) -> FirstValues:
        """Return the first values of new rows, which have places in memory."""
        owners = np.searchsorted(self._begins, new, side="right") - 1
        values = self._values_of_keys(self.directory.ids[new].view(np.uint64), owners)
        places = new if self.cached is None else self.cached.find(new)
        return FirstValues(places.astype(np.int64), values)

    def restore(self, saved: SavedTables, table: TableSettings, piece: Piece, rows: slice) -> None:
        """Load a table's rows that belong to this node, whatever nodes saved them.

        If there are more than its piece has rows, those used last are kept. Raises CheckpointError for a file
        that cannot be read.
        """
        number = next(number for number, part in enumerate(self._parts) if part.table.name == table.name)
        directory = saved.read_directory(table.name)
        sources = np.flatnonzero(directory.owned(piece.start, piece.stop))
        in_piece = (sources >= piece.start) & (sources < piece.stop)
        preferred: Int32Array = np.where(in_piece, sources - piece.start, ABSENT).astype(np.int32)
        ages = None if directory.ages is None else directory.ages[sources]
        targets = self.directory.restore(
            number, directory.keys[sources], directory.used_at[sources], preferred, ages
        )
        kept = targets != ABSENT
        sources, targets = sources[kept], targets[kept] + np.int32(rows.start)
        arrays = super().arrays()
        for start in range(0, table.rows, FILL_ROWS):
            stop = min(start + FILL_ROWS, table.rows)
            first, last = np.searchsorted(sources, [start, stop])
            if first == last:
                continue
            source, target = sources[first:last] - start, targets[first:last].astype(np.int64)
            arrays[WEIGHTS][target] = saved.read(table.name, start, stop)[source]
            for state, values in saved.read_state(table.name, start, stop).items():
                arrays[state][target] = values[source]

    def _of_parts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts of the tables that this node has a part of."""
        return [counts[number] for number in self._numbers]

    def _values_of_keys(self, keys: Uint64Array, owners: IndexArray) -> Float32Array:
        """Return the vectors of ids without a row, float32 [N, dim].

        `owners` has the table of each.
        """
        values = keyed_values(self._value_keys[owners], self._scales[owners], keys, self.dim)
        return as_stored(values, self._parts[0].table.storage)
