"""One bank: rows of one width, optimizer, rate and storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...config.row_bytes import state_floats
from ...config.tables import TableSettings
from ...types import Float32Array, IndexArray, Int32Array, Uint64Array
from ..lookup.request import BankShare
from ..placement.plan import Bank, Piece
from ..placement.ranges import WEIGHTS
from .bf16_rows import RowNumbers
from .changed_rows import ChangeEpochs, EpochsInMemory
from .first_values import FirstRowValues, row_values
from .on_disk.cached_rows import CachedRows, record_type
from .on_disk.row_file import RowFile
from .on_disk.row_slots import FixedSlots, MovingSlots
from .on_disk.shares import DiskShare
from .optimizers import RowDecay, RowOptimizer
from .row_storage import RowArray, make_row_storage
from .saved_tables import SavedTables

# Rows that are filled or read at once.
FILL_ROWS = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class FirstValues:
    """Vectors of a growing table's ids that have no row, or get one.

    Attributes:
        positions: int64 [M]: their positions in a lookup; in a push the rows that begin with these values.
        values: float32 [M, dim].
    """

    positions: IndexArray
    values: Float32Array


@dataclass(frozen=True, slots=True)
class BankPart:
    """A bank with its checked part of a request.

    Attributes:
        rows: int32 [N]: the single rows, then those of bags; in a lookup any row for a key without one.
        lengths: int32 [P, B]: number of rows of each bag.
        known: int64 [K], ascending: in a push to a growing table, which of the keys have a row; `rows` are
            then those rows, int32 [K]. None if all have one.
        first: of a growing table, the first values of other keys (lookup) or of new rows (push).
        request: the number of `CachedRows.take` that gave `rows` their places; 0 where all are in memory.

    Where rows lie in a file, those here are places in memory.
    """

    bank: RowBank
    share: BankShare
    rows: Int32Array
    lengths: Int32Array
    known: IndexArray | None = None
    first: FirstValues | None = None
    request: int = 0

    def positions(self) -> IndexArray | None:
        """Return the index of each row's gradient, int64 [N].

        Returns None without bags: each row then has its own gradient, in order.
        """
        if not self.share.pieces:
            return self.known
        bags = np.repeat(np.arange(self.lengths.size, dtype=np.int64), self.lengths.reshape(-1))
        every = np.concatenate([np.arange(self.share.single, dtype=np.int64), self.share.single + bags])
        return every if self.known is None else every[self.known]


class RequestArrays:
    """A request's arrays, from which each bank takes what is its own, bank after bank.

    Args:
        rows: int32 [N], see `messages.Lookup`.
        keys: uint64 [K], of growing tables.
        bag_lengths: int32 [P, B].
    """

    def __init__(self, rows: Int32Array, keys: Uint64Array, bag_lengths: Int32Array) -> None:
        self._rows, self._keys, self._lengths = rows, keys, bag_lengths

    def take_rows(self, count: int) -> Int32Array:
        rows, self._rows = self._rows[:count], self._rows[count:]
        return rows

    def take_keys(self, count: int) -> Uint64Array:
        keys, self._keys = self._keys[:count], self._keys[count:]
        return keys

    def take_lengths(self, pieces: int) -> Int32Array:
        lengths, self._lengths = self._lengths[:pieces], self._lengths[pieces:]
        return lengths


class BankRequest(ABC):
    """A bank's checked part of a request.

    Attributes:
        share: its numbers of rows and floats.
    """

    share: BankShare

    @abstractmethod
    def lookup_part(self) -> BankPart:
        """Return the part as a lookup; it changes nothing."""

    @abstractmethod
    def push_part(self) -> BankPart:
        """Return the part as a push; ids of growing tables may get and lose rows."""


@dataclass(frozen=True, slots=True, eq=False)
class _RowsRequest(BankRequest):
    """Rows of a bank, which are the same in a lookup and in a push."""

    bank: RowBank
    share: BankShare
    rows: Int32Array
    lengths: Int32Array

    def lookup_part(self) -> BankPart:
        places, request = self.bank.places_of(self.rows)
        return BankPart(self.bank, self.share, places, self.lengths, request=request)

    push_part = lookup_part


class RowBank:
    """The rows of one bank of a node, with their state.

    All values are zero at first. Each row is used by one thread at a time; several threads may use different
    rows (rule "One writer a row").

    Args:
        node: the node's number, for error messages.
        rows: number of rows; may be 0.
        bank: dim, optimizer, rate, decay and storage.
        disk: where rows lie that do not fit; None if all are in memory. What is said of rows below then
            holds for their places in memory, see `places_of`, but for `rows`, `changes` and `arrays`.

    Raises:
        JobFileError: an unknown optimizer.
        ResourceError: see `RowFile`.

    Attributes:
        change_epoch: the current change epoch, at least 1, which `apply` notes for the rows that it changes.
        changes: the change epoch of each row's last change.
        state_floats: floats of a row's optimizer state.
        cached: the rows if they lie in a file; None if all are in memory.
    """

    def __init__(self, node: int, rows: int, bank: Bank, disk: DiskShare | None = None) -> None:
        self.node, self.rows, self.dim = node, rows, bank.dim
        self.change_epoch = 1
        self.state_floats = state_floats(bank.optimizer, bank.dim)
        self._is_rounded = bank.storage == "bfloat16"
        places = rows if disk is None else disk.places
        self._storage = make_row_storage(bank.storage, places, bank.dim)
        self._optimizer = RowOptimizer(bank.optimizer, places, bank.dim, bank.lr)
        self._decay = RowDecay(bank.lr, bank.weight_decay)
        self._first_values = FirstRowValues(bank.dim)
        self.cached: CachedRows | None = None
        self.changes: ChangeEpochs
        if disk is None:
            self.changes = EpochsInMemory(rows)
        else:
            memories = {WEIGHTS: self._storage.memory, **self._optimizer.memories}
            slots = MovingSlots(rows) if bank.growing else FixedSlots(rows)
            file = RowFile(disk.folder, rows, record_type(memories), slots)
            self.cached = CachedRows(memories, file, self._first_values, disk.setting)
            self.changes = self.cached.changes

    def arrays(self) -> dict[str, RowArray]:
        """Return "weights" [rows, dim] and the optimizer's state [rows, ...], by name.

        The arrays are the bank's own memory, not copies; or they read from its file, as they are read.
        """
        if self.cached is not None:
            return {name: self.cached.array(name) for name in (WEIGHTS, *self._optimizer.memories)}
        return {WEIGHTS: self._storage.values, **self._optimizer.state}

    def places_of(self, rows: Int32Array) -> tuple[Int32Array, int]:
        """Return the places of rows in memory, and the request that gave them; those not there are read.

        Where all rows are in memory, the rows themselves and 0. Raises ResourceError if they are too many.
        """
        if self.cached is None:
            return rows, 0
        places = self.cached.take(rows)
        return places, self.cached.request

    def rows_at(self, places: IndexArray) -> IndexArray | Int32Array:
        """Return the rows at places in memory, int64 or int32 [M]."""
        return places if self.cached is None else self.cached.rows_at(places)

    def finish(self, part: BankPart) -> None:
        """Note that the work of a part has ended."""
        if self.cached is not None:
            self.cached.finish(part.request)

    def _mark_changed(self, places: IndexArray) -> None:
        if self.cached is None:
            self.changes.mark(places, self.change_epoch)
        else:
            self.cached.mark_changed(places, self.change_epoch)

    def arrays_of(self, table: TableSettings) -> dict[str, RowArray]:  # noqa: ARG002
        """Return those of `arrays` that a checkpoint has of a table.

        They follow from the table's settings alone, so all nodes have the same ones of it.
        """
        return self.arrays()

    def counts(self) -> dict[str, dict[str, int]]:
        """Return counts of each growing table by its name; any thread may call."""
        return {}

    def take_request(self, shares: Sequence[BankShare], arrays: RequestArrays) -> BankRequest:
        """Take this bank's part of a request; raises ValueError for what the node does not have."""
        (share,) = shares
        lengths, rows = arrays.take_lengths(share.pieces), arrays.take_rows(share.rows)
        self.check_rows(rows)
        return _RowsRequest(self, share, rows, lengths)

    def fill(self, piece: Piece, table: TableSettings, rows: slice, seed: int) -> None:
        """Give the rows of a piece of a table, `rows` of this bank, their first values."""
        if self.cached is not None:
            # A row gets them when it is needed first.
            self._first_values.add(rows.start, piece, table, seed)
            return
        weights = self._storage.values[rows]
        for start in range(0, len(piece), FILL_ROWS):
            stop = min(start + FILL_ROWS, len(piece))
            numbers = np.arange(piece.start + start, piece.start + stop)
            weights[start:stop] = row_values(seed, piece.table, numbers, table.dim, table.init_scale)

    def restore(self, saved: SavedTables, table: TableSettings, piece: Piece, rows: slice) -> None:
        """Load the rows of a piece of a table, `rows` of this bank, and their state.

        Raises CheckpointError for a file that cannot be read.
        """
        arrays = {name: array[rows] for name, array in self.arrays().items()}
        for start in range(0, len(piece), FILL_ROWS):
            stop = min(start + FILL_ROWS, len(piece))
            first, last = piece.start + start, piece.start + stop
            arrays[WEIGHTS][start:stop] = saved.read(table.name, first, last)
            for state, values in saved.read_state(table.name, first, last).items():
                arrays[state][start:stop] = values

    def restart(self, rows: IndexArray, values: Float32Array) -> None:
        """Give rows first values, and the optimizer's first state.

        `rows` is int64 [M], distinct; `values` is float32 [M, dim].
        """
        self._storage.put(rows, values)
        for state in self._optimizer.state.values():
            state[rows] = 0.0
        self._mark_changed(rows)

    def lookup(self, rows: Int32Array, out: Float32Array, positions: IndexArray | None = None) -> None:
        """Copy rows into `out`.

        Args:
            rows: int32 [N], checked by `check_rows`.
            out: float32 [N, dim], C-contiguous.
            positions: int64 [M], distinct: indices of the rows to copy, here and in `out`; all by default.
        """
        if positions is None:
            self._storage.take(rows, out)
            return
        part = np.empty((len(positions), self.dim), np.float32)
        self._storage.take(rows[positions], part)
        # As one value of all its bytes, a row is copied at once.
        whole = np.dtype((np.void, part.itemsize * self.dim))
        out.view(whole)[positions] = part.view(whole)

    def read_state(self, rows: Int32Array, out: Float32Array, positions: IndexArray | None = None) -> None:
        """Copy the optimizer state of rows into `out`, float32 [N, floats of a row's state].

        `rows` and `positions` are those of `lookup`.
        """
        picked = rows if positions is None else rows[positions]
        target: slice | IndexArray = slice(None) if positions is None else positions
        start = 0
        for values in self._optimizer.state_of(picked):
            # Without rows a reshape could not tell how many floats a row has.
            columns = values if values.ndim > 1 else values[:, None]
            out[target, start : start + columns.shape[1]] = columns
            start += columns.shape[1]

    def apply(
        self, rows: Int32Array, gradients: torch.Tensor, positions: IndexArray | None, scale: float, key: int
    ) -> None:
        """Sum the gradients of each distinct row in order, and step the row once.

        Args:
            rows: int32 [N], checked by `check_rows`.
            gradients: float32 [G, dim], contiguous; not changed.
            positions: int64 [N], index of each row's gradient; by default G is N, and each row has its own.
            scale: see `RowOptimizer.step`.
            key: see `RowStorage.add`.
        """
        if not len(rows):
            return
        with torch.inference_mode():
            distinct, sums = _sum_by_row(rows, gradients, positions)
            steps = self._optimizer.step(distinct, sums, scale)
            if self._decay:
                before = np.empty(steps.shape, np.float32)
                self._storage.take(distinct.numpy(), before)
                self._decay.add(steps, torch.from_numpy(before), scale)
            numbers = self.numbers_of(distinct.numpy()) if self._is_rounded else None
            self._storage.add(distinct, steps, key, numbers)
            self._mark_changed(distinct.numpy())

    def numbers_of(self, rows: IndexArray) -> RowNumbers:
        """Return what tells rows int64 [M] apart, also for trainers, who ask for them so."""
        return self.rows_at(rows).astype(np.int64, copy=False)

    def check_rows(self, rows: Int32Array) -> None:
        """Raise ValueError unless `rows` is int32 [N] of this bank's rows."""
        if rows.ndim != 1 or rows.dtype != np.int32:
            raise ValueError(f"rows must be int32 [N], not {rows.dtype} {list(rows.shape)}")
        # As an unsigned number, a negative row number is too large.
        if len(rows) and int(rows.view(np.uint32).max()) >= self.rows:
            wrong = rows[(rows < 0) | (rows >= self.rows)]
            raise ValueError(
                f"row {int(wrong[0])} ({len(wrong)} in all) is outside of the {self.rows} rows of node "
                f"{self.node}"
            )


def _sum_by_row(
    rows: Int32Array, gradients: torch.Tensor, positions: IndexArray | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return distinct rows, int64 [M], ascending, and their gradients' sums.

    The sums are float32 [M, dim].
    """
    # Row and position in one number, because NumPy sorts plain numbers with vector instructions.
    keys = np.left_shift(rows, 32, dtype=np.int64)
    keys |= np.arange(len(rows), dtype=np.int64) if positions is None else positions
    keys.sort()
    order = keys & 0xFFFFFFFF
    keys >>= 32
    first = np.empty(len(rows), np.bool_)
    first[0] = True
    np.not_equal(keys[1:], keys[:-1], out=first[1:])
    begins = np.flatnonzero(first)
    sums = torch.nn.functional.embedding_bag(
        torch.from_numpy(order), gradients, torch.from_numpy(begins), mode="sum"
    )
    return torch.from_numpy(keys[begins]), sums
