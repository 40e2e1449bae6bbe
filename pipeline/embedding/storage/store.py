"""One node's share of all tables, in banks of rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...config.row_bytes import STORAGE_BYTES, state_floats
from ...config.tables import bytes_in_memory
from ...errors import ResourceError
from ...performance.memory import available_memory_bytes
from ...text.format import data_size
from ...types import BatchId, Float32Array, Int32Array, Uint64Array
from ..lookup.request import NO_BAG_LENGTHS, NO_KEYS, bank_shares, count_floats
from ..lookup.vectors import FloatBuffer, flat_floats
from ..placement.plan import Piece, TablePlan
from .bank import BankRequest, RequestArrays, RowBank
from .changed_rows import ChangedRows, Fetch
from .first_values import mixed_key
from .growing_bank import GrowingBank, GrowingPiece
from .on_disk.shares import DiskShare, disk_shares
from .row_storage import RowArray
from .saved_tables import SavedTables
from .shard_work import LookupWork, PushWork

FIRST_BATCH = BatchId(0, 0, 0, 0)
# Far above the factors of schedules, 0 to 1, and small enough that a rate times a gradient is a float32.
LARGEST_LR_SCALE = 1000.0
# The largest number that `RowBank.changes` can hold.
LAST_CHANGE_EPOCH = 255


class ShardStore:
    """The rows of one embedding node.

    Each row is read and written by one thread, so nothing is locked. Only the thread that owns the store may
    call its methods. The work that `lookup_work` and `push_work` return may be divided over several threads,
    all of which do it in the same order. These threads should run torch with one thread each, because the
    operations are bound by memory latency and too short to divide further.

    Attributes:
        plan: the split of all tables.
        node: the node's number.
        rows: number of rows in all banks.
        dims: floats in a row of each bank.
        bag_pieces: see `TablePlan.bag_pieces`.
    """

    def __init__(
        self,
        plan: TablePlan,
        node: int,
        *,
        seed: int,
        memory_fraction: float,
        clock: Callable[[], float] = time.monotonic,
        memory_bytes: int = 0,
    ) -> None:
        """Allocate and initialize the rows; allocate nothing if they do not fit.

        Args:
            plan: the split of all tables, with their optimizers and scales.
            node: the node's number.
            seed: the seed of the run; the first values depend only on seed, table and row.
            memory_fraction: fraction of the available memory that may be used.
            clock: the time in seconds, of any start, by which growing tables free rows.
            memory_bytes: the most bytes of memory for the rows, but for tables with a limit of their own;
                others lie in files. 0 for no limit.

        Raises:
            ResourceError: the rows and their state do not fit into memory.
            JobFileError: an unknown optimizer.
        """
        self.plan, self.node, self.rows = plan, node, plan.rows_of(node)
        self._seed, self._clock = seed, clock
        self.dims = tuple(bank.dim for bank in plan.banks)
        self.bag_pieces = plan.bag_pieces(node)
        check_memory(plan, node, memory_fraction, memory_bytes)
        self._change_epoch = 1
        shares = disk_shares(plan, node, memory_bytes)
        self._groups = [
            self._make_bank(list(numbers), share)
            for numbers, share in zip(plan.bank_groups, shares, strict=True)
        ]
        # The bank of each number, and the first of its rows there.
        self._places = {number: (bank, row) for bank, rows in self._groups for number, row in rows.items()}
        for piece in plan.pieces_of(node):
            bank, rows = self._rows_of(piece)
            bank.fill(piece, plan.tables[piece.table], rows, seed)

    def _pieces_of(self, numbers: Sequence[int]) -> list[Piece]:
        """Return this node's pieces in banks of these numbers."""
        return [piece for piece in self.plan.pieces_of(self.node) if piece.bank in numbers]

    def _make_bank(self, numbers: list[int], disk: DiskShare | None) -> tuple[RowBank, dict[int, int]]:
        """Return the bank of these numbers, and where the rows of each begin."""
        bank = self.plan.banks[numbers[0]]
        pieces = self._pieces_of(numbers)
        if not bank.growing:
            return RowBank(self.node, sum(map(len, pieces)), bank, disk), {numbers[0]: 0}
        begins, rows = {}, 0
        tables: list[GrowingPiece | None] = []
        for number in numbers:
            begins[number] = rows
            # A node may have nothing of a table.
            piece = next((piece for piece in pieces if piece.bank == number), None)
            tables.append(None if piece is None else GrowingPiece(piece, self.plan.tables[piece.table]))
            rows += 0 if piece is None else len(piece)
        return GrowingBank(self.node, bank, tables, self._seed, self._clock, disk), begins

    def _rows_of(self, piece: Piece) -> tuple[RowBank, slice]:
        """Return the bank of a piece, and the piece's rows in it."""
        bank, begin = self._places[piece.bank]
        start = begin + piece.offset
        return bank, slice(start, start + len(piece))

    def growth_counts(self) -> dict[str, int]:
        """Return counts of each growing table here, as `growing/COUNT/TABLE`; any thread may call."""
        return {
            f"growing/{what}/{table}": count
            for bank, _ in self._groups
            for table, counts in bank.counts().items()
            for what, count in counts.items()
        }

    def unfit_folders(self) -> list[str]:
        """Say of each folder with rows why they should not lie there, if so."""
        files = [bank.cached.file for bank, _ in self._groups if bank.cached is not None]
        return sorted({f"{file.unfit}; give a folder on a local disk" for file in files if file.unfit})

    def disk_counts(self) -> dict[str, int | float]:
        """Return counts of rows that lie in files, see `DiskRows`; any thread may call.

        Empty if all rows are in memory.
        """
        cached = [bank.cached for bank, _ in self._groups if bank.cached is not None]
        if not cached:
            return {}
        files = [rows.file for rows in cached]
        moved = sum((file.counts.reads + file.counts.writes) * file.record_bytes for file in files)
        return {
            "disk_memory_rows": sum(rows.rows_in_memory for rows in cached),
            "disk_file_rows": sum(file.count for file in files),
            "disk_requested": sum(rows.requested for rows in cached),
            "disk_missed": sum(rows.missed for rows in cached),
            "disk_reads": sum(file.counts.reads for file in files),
            "disk_writes": sum(file.counts.writes for file in files),
            "disk_bytes": moved,
            "disk_wait_seconds": sum(file.counts.seconds for file in files),
        }

    def close(self) -> None:
        """End the threads that read and write files; the rows are not used after."""
        for bank, _ in self._groups:
            if bank.cached is not None:
                bank.cached.file.close()

    def wait_before_replacing(self, wait_idle: Callable[[], None]) -> None:
        """Have `wait_idle` called before rows make way whose work may not have ended.

        It returns once all work has ended that was made by now. By default work ends before more is made.
        """
        for bank, _ in self._groups:
            if bank.cached is not None:
                bank.cached.wait_idle = wait_idle

    def floats_of(
        self, rows: int, counts: Sequence[int] = (), bag_lengths: Int32Array = NO_BAG_LENGTHS
    ) -> int:
        """Return how many floats the reply to a request has, see `count_floats`."""
        return count_floats(self.dims, rows, counts, self.bag_pieces, bag_lengths)

    def state_floats_of(
        self, rows: int, counts: Sequence[int] = (), bag_lengths: Int32Array = NO_BAG_LENGTHS
    ) -> int:
        """Return how many floats the optimizer state of a request's single rows has."""
        shares = bank_shares(self.dims, rows, counts, self.bag_pieces, bag_lengths)
        of_row = (state_floats(bank.optimizer, bank.dim) for bank in self.plan.banks)
        return sum(share.single * floats for share, floats in zip(shares, of_row, strict=True))

    def lookup(
        self,
        rows: Int32Array,
        out: Float32Array,
        counts: Sequence[int] = (),
        bag_lengths: Int32Array = NO_BAG_LENGTHS,
        keys: Uint64Array = NO_KEYS,
    ) -> None:
        """Do the work of `lookup_work` on this thread; same arguments and errors."""
        work = self.lookup_work(rows, out, counts, bag_lengths, keys)
        work.run(0, 1)
        work.finish()

    def lookup_work(
        self,
        rows: Int32Array,
        out: Float32Array,
        counts: Sequence[int] = (),
        bag_lengths: Int32Array = NO_BAG_LENGTHS,
        keys: Uint64Array = NO_KEYS,
        state: Float32Array | None = None,
    ) -> LookupWork:
        """Return work that copies rows into `out` and sums the rows of bags.

        Args:
            rows: int32 [N], numbered within their bank, bank after bank, repeats allowed; see
                `messages.Lookup`.
            out: float32, C-contiguous, with `floats_of` elements.
            counts: number of rows in each bank; () with one bank.
            bag_lengths: int32 [P, B], number of rows of each bag; [0, 0] if this node holds no bags.
            keys: uint64 [K], of growing tables, bank after bank. A key without a row gives its first values.
            state: where to copy the optimizer state of single rows, float32 [`state_floats_of`]; see
                `messages.Vectors`. None for nowhere.

        Raises:
            ValueError: a row that this node does not have, or a wrong shape or type; `out` is then unchanged.
        """
        parts = [request.lookup_part() for request in self._requests(rows, counts, bag_lengths, keys)]
        floats = sum(part.share.floats for part in parts)
        if out.size != floats or out.dtype != np.float32 or not out.flags.c_contiguous:
            raise ValueError(
                f"out must be {floats} of C-contiguous float32, not {out.dtype} {list(out.shape)}"
            )
        return LookupWork(parts, out, state)

    def apply(
        self,
        rows: Int32Array,
        gradients: FloatBuffer,
        counts: Sequence[int] = (),
        lr_scale: float = 1.0,
        bag_lengths: Int32Array = NO_BAG_LENGTHS,
        batch: BatchId = FIRST_BATCH,
        keys: Uint64Array = NO_KEYS,
    ) -> None:
        """Do the work of `push_work` on this thread; same arguments and errors."""
        self.push_work(rows, gradients, counts, lr_scale, bag_lengths, batch, keys).run(0, 1)

    def push_work(
        self,
        rows: Int32Array,
        gradients: FloatBuffer,
        counts: Sequence[int] = (),
        lr_scale: float = 1.0,
        bag_lengths: Int32Array = NO_BAG_LENGTHS,
        batch: BatchId = FIRST_BATCH,
        keys: Uint64Array = NO_KEYS,
    ) -> PushWork:
        """Return work that sums each distinct row's gradients in order, and steps the row.

        Args:
            rows: see `lookup_work`.
            gradients: float32, C-contiguous, with `floats_of` elements; not changed. The gradient of a bag
                is the gradient of each of its rows.
            counts: see `lookup_work`.
            lr_scale: factor on each optimizer's learning rate, from 0 to LARGEST_LR_SCALE.
            bag_lengths: see `lookup_work`.
            batch: the batch of the gradients. The rounding of bfloat16 rows depends on it, on the seed of the
                run, the node and the row.
            keys: see `lookup_work`. They may get rows now, and other keys lose theirs.

        Raises:
            ValueError: a row that this node does not have, a wrong shape or type, an lr_scale out of range,
                gradients whose squares have no finite sum; nothing then changes.
        """
        requests = self._requests(rows, counts, bag_lengths, keys)
        values = flat_floats(gradients, sum(request.share.floats for request in requests), "gradients")
        if not 0 <= lr_scale <= LARGEST_LR_SCALE:
            raise ValueError(f"lr_scale must be from 0 to {LARGEST_LR_SCALE:g}, not {lr_scale}")
        # Optimizers store squares, and the square of a finite gradient such as 1e20 may be infinite.
        if not math.isfinite(values.dot(values)):
            raise ValueError("gradients must be finite: one is NaN, infinite or enormous")
        words = (self._seed, self.node, batch.epoch, batch.span, batch.number, batch.seed)
        rounding_keys = [mixed_key(*words, number) for number in range(len(requests))]
        return PushWork([request.push_part() for request in requests], values, lr_scale, rounding_keys)

    def _requests(
        self, rows: Int32Array, counts: Sequence[int], bag_lengths: Int32Array, keys: Uint64Array
    ) -> list[BankRequest]:
        """Return the checked part of a request of each bank."""
        shares = bank_shares(self.dims, len(rows) + len(keys), counts, self.bag_pieces, bag_lengths)
        key_count = sum(s.rows for s, bank in zip(shares, self.plan.banks, strict=True) if bank.growing)
        if keys.dtype != np.uint64 or keys.shape != (key_count,):
            raise ValueError(f"keys must be uint64 [{key_count}], not {keys.dtype} {list(keys.shape)}")
        arrays = RequestArrays(rows, keys, bag_lengths)
        return [
            bank.take_request([shares[number] for number in numbers], arrays)
            for bank, numbers in self._groups
        ]

    def pieces(self) -> Iterator[tuple[Piece, dict[str, RowArray]]]:
        """Yield each piece with its rows and state, for checkpoints.

        Arrays are by name, [len(piece), ...]. They are the store's own memory, not copies: only the owning
        thread may use them, and only until it applies the next push.
        """
        for piece in self.plan.pieces_of(self.node):
            bank, rows = self._rows_of(piece)
            arrays = bank.arrays_of(self.plan.tables[piece.table])
            yield piece, {name: array[rows] for name, array in arrays.items()}

    @property
    def change_epochs_left(self) -> int:
        """How often `end_change_epoch` may still be called before `forget_change_epochs`."""
        return LAST_CHANGE_EPOCH - self._change_epoch

    def end_change_epoch(self) -> int:
        """End the change epoch and return its number.

        Later changes belong to the next epoch. Only the owning thread may call. Raises ValueError if no epoch
        is left.
        """
        ended = self._change_epoch
        if not self.change_epochs_left:
            raise ValueError(f"no change epoch is left after {ended}")
        self._begin_change_epoch(ended + 1)
        return ended

    def forget_change_epochs(self) -> None:
        """Restart at the first change epoch, with no changed rows.

        Only the owning thread may call.
        """
        for bank, _ in self._groups:
            bank.changes.forget()
        self._begin_change_epoch(1)

    def _begin_change_epoch(self, change_epoch: int) -> None:
        self._change_epoch = change_epoch
        for bank, _ in self._groups:
            bank.change_epoch = change_epoch

    def changed_bytes(self, change_epoch: int) -> int:
        """Return the bytes of rows that changed after `change_epoch` ended, or a few more.

        They are those in a file, in float32. Takes about a millisecond for ten million rows. Only the owning
        thread may call.
        """
        row_bytes: dict[RowBank, int] = {}
        for piece, arrays in self.pieces():
            bytes_of = [values.nbytes // max(1, len(values)) for values in arrays.values()]
            bank, _ = self._rows_of(piece)
            row_bytes[bank] = max(row_bytes.get(bank, 0), sum(bytes_of) + np.dtype(np.int64).itemsize)
        return sum(bank.changes.count(change_epoch) * size for bank, size in row_bytes.items())

    def changed_since(self, change_epoch: int, fetch: Fetch = lambda step: step()) -> list[ChangedRows]:
        """Return the rows that changed after `change_epoch` ended.

        Only the owning thread may call, or another one whose `fetch` runs each step, of about a millisecond,
        on the owning thread. Rows that change between the steps may be among them.
        """
        changed = {bank: bank.changes.rows(change_epoch, fetch) for bank, _ in self._groups}
        changes = []
        for piece, arrays in self.pieces():
            bank, span = self._rows_of(piece)
            first, last = np.searchsorted(changed[bank], [span.start, span.stop])
            if first < last:
                changes.append(ChangedRows(piece, changed[bank][first:last] - span.start, arrays))
        return changes

    def restore(self, saved: SavedTables) -> list[str]:
        """Load rows and optimizer state from a checkpoint, by tables' names.

        All tables are checked before any row changes.

        Returns:
            The tables with rows on this node that the checkpoint lacks; their rows keep their first values.

        Raises:
            CheckpointError: a table has another number of rows, dim or optimizer, or a file cannot be read;
                in the last case some rows may have changed.
        """
        pieces = self.plan.pieces_of(self.node)
        tables = [(piece, self.plan.tables[piece.table]) for piece in pieces]
        present = [(piece, table) for piece, table in tables if table.name in saved.names]
        for _, table in present:
            saved.require(table)
        for piece, table in present:
            bank, rows = self._rows_of(piece)
            bank.restore(saved, table, piece, rows)
        return [table.name for _, table in tables if table.name not in saved.names]


def check_memory(plan: TablePlan, node: int, fraction: float, memory_bytes: int = 0) -> None:
    """Raise ResourceError if a node's rows need more than `fraction` of the free memory.

    `memory_bytes` is that of `ShardStore`.
    """
    pieces = [(plan.tables[piece.table], len(piece)) for piece in plan.pieces_of(node)]
    rows = sum(count for _, count in pieces)
    needed = sum(count * table.row_bytes for table, count in pieces)
    limited = bytes_in_memory([(table, count * table.row_bytes) for table, count in pieces], memory_bytes)
    if limited < needed:
        _check_limited(limited, node, fraction)
        return
    weights_bytes = sum(count * table.dim * STORAGE_BYTES[table.storage] for table, count in pieces)
    available = available_memory_bytes()
    allowed = int(available * fraction)
    if needed > allowed:
        widths = _describe_range({table.dim for table, _ in pieces})
        sizes = _describe_range({STORAGE_BYTES[table.storage] for table, _ in pieces})
        growing = any(table.growth is not None for table, _ in pieces)
        wide = any(table.storage == "float32" for table, _ in pieces)
        other_memory = "optimizer state and search for ids" if growing else "optimizer state"
        narrower = 'set embedding.storage = "bfloat16", ' if wide else ""
        raise ResourceError(
            f"the tables need {data_size(needed)} ({rows:,} rows x {widths} x {sizes} bytes = "
            f"{data_size(weights_bytes)}, and {data_size(needed - weights_bytes)} of {other_memory}), but "
            f"only {data_size(allowed)} may be used: {fraction:g} (embedding.memory_fraction) of the "
            f"{data_size(available)} available",
            where=f"embedding node {node}",
            remedy=f"raise embedding.nodes on more hosts, {narrower}lower model.table_rows or "
            "model.embedding_dim, or let rows lie on disk: embedding.memory_bytes",
        )


def _check_limited(limited: int, node: int, fraction: float) -> None:
    available = available_memory_bytes()
    if limited > (allowed := int(available * fraction)):
        raise ResourceError(
            f"rows may take {data_size(limited)} of memory by memory_bytes, but only {data_size(allowed)} may"
            f" be used: {fraction:g} (embedding.memory_fraction) of the {data_size(available)} available",
            where=f"embedding node {node}",
            remedy="lower embedding.memory_bytes, or those of [tables]",
        )


def _describe_range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
