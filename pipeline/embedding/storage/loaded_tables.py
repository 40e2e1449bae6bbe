"""The tables of a checkpoint in memory, for use without a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...config.tables import DEFAULT_FOLDER, TableColumn, TableSettings
from ...performance.memory import available_memory_bytes
from ...text.format import data_size
from ...types import Float32Array, Int32Array, Uint64Array
from ..lookup.request import BatchIds, bank_shares
from ..lookup.router import ShardRouter
from ..lookup.vectors import BatchEmbeddings
from ..placement.plan import TablePlan
from .grown_rows import GrownRows, RowsOf
from .on_disk.row_file import mapped_floats
from .saved_changes import RowChanges, SavedChanges
from .saved_tables import SavedTables
from .shard_work import sum_bags

READ_BYTES = 16 << 20

log = logging.getLogger(__name__)


class LoadedTables:
    """All rows of a checkpoint, without optimizer state.

    Any thread may use them, but none during `apply`.

    Embeddings come from the router that trainers use, with a plan of one node. So they equal those of a
    cluster with the same rows, to the bit. Only the bags of a table that the cluster had split are added up
    in another order.

    Args:
        saved: the tables of the checkpoint.
        tables: the tables of its job.
        seed: the seed of its run, for ids of growing tables that had no row.
        jagged: see `ShardRouter`.
        memory_bytes: the most memory for the rows; None for what is available. If they do not fit, all of
            them lie in a file on this machine's disk, of which the kernel keeps in memory what it can.

    Raises:
        ResourceError: the tables do not fit into memory, and not on the disk.
        CheckpointError: a table is absent, or has a different number of rows or dim.

    Attributes:
        grown: the rows of growing tables, by name.
    """

    def __init__(
        self,
        saved: SavedTables,
        tables: Sequence[TableSettings],
        seed: int = 0,
        *,
        jagged: bool = False,
        memory_bytes: int | None = None,
    ) -> None:
        for table in tables:
            saved.require(table, state=False)
        # Here all rows are at hand.
        tables = [replace(table, columns=tuple(map(_pooled_here, table.columns))) for table in tables]
        rows_of = _rows_of(tables, memory_bytes)
        self._plan = TablePlan.make(tables, 1)
        self._router = ShardRouter(self._plan, jagged=jagged)
        self._banks = [
            rows_of((0 if bank.growing else self._plan.bank_rows(0, number), bank.dim))
            for number, bank in enumerate(self._plan.banks)
        ]
        self._bag_pieces = self._plan.bag_pieces(0)
        self.grown: dict[str, GrownRows] = {}
        self._tables: dict[str, Float32Array] = {}
        self._writable: dict[str, Float32Array] = {}
        for piece in self._plan.pieces_of(0):
            name = tables[piece.table].name
            if tables[piece.table].growth is not None:
                grown = GrownRows(saved, tables[piece.table], piece.table, seed, READ_BYTES, rows_of)
                self.grown[name] = grown
                continue
            weights = self._banks[piece.bank][piece.offset : piece.offset + len(piece)]
            step = max(1, READ_BYTES // (4 * weights.shape[1]))
            for start in range(0, len(weights), step):
                stop = min(start + step, len(weights))
                weights[start:stop] = saved.read(name, start, stop)
            self._writable[name] = weights
            self._tables[name] = weights.view()
            self._tables[name].flags.writeable = False

    def read(self, changes: Sequence[SavedChanges]) -> list[RowChanges]:
        """Read what `apply` takes, in order; any thread may call.

        Raises CheckpointError for changes that cannot be read.
        """
        settings = {table.name: table for table in self._plan.tables}
        return [RowChanges.read(change, settings[name]) for change in changes for name in change.tables]

    def apply(self, changes: Sequence[RowChanges]) -> None:
        """Replace these rows in place, in order; takes as long as to copy them."""
        of_grown: dict[str, list[RowChanges]] = {}
        for change in changes:
            if change.table in self.grown:
                of_grown.setdefault(change.table, []).append(change)
            else:
                self._writable[change.table][change.rows] = change.vectors
        for name, of_table in of_grown.items():
            self.grown[name].apply(of_table)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the tables' names, in their order."""
        return tuple(table.name for table in self._plan.tables)

    def table(self, name: str) -> Float32Array:
        """Return all rows of a table, float32 [rows, dim], read-only.

        Of a growing table these are the rows with an id, in the order of their keys, as a copy.

        Raises KeyError for an unknown name.
        """
        return self.grown[name].vectors if name in self.grown else self._tables[name]

    def lookup(self, name: str, rows: Int32Array) -> Float32Array:
        """Return rows of a table, float32 [..., dim] for integers [...].

        Raises KeyError for an unknown name, IndexError for a row that the table does not have.
        """
        table = self.table(name)
        if rows.size and not 0 <= int(rows.min()) <= int(rows.max()) < len(table):
            raise IndexError(f"table {name} has rows 0 to {len(table) - 1}")
        return table[rows]

    def without_row(self, batch: BatchIds) -> dict[str, tuple[int, int]]:
        """Count a batch's ids by column with a growing table: all, and those without a row.

        An id counts as often as the batch has it. Hashed tables are absent: their ids share rows.
        """
        keys = self._router.keys_of(batch)
        table_of = {column.name: column.table.name for column in self._plan.columns}
        return {
            name: (len(of_column), self.grown[table_of[name]].absent(of_column))
            for name, of_column in keys.items()
        }

    def embeddings(self, batch: BatchIds) -> BatchEmbeddings:
        """Return a batch's embeddings, without autograd; raises as `ShardRouter.requests`."""
        requests = self._router.requests_of(batch)
        request = requests[0]
        reply, rows_used, floats_written, piece = np.empty(request.floats, np.float32), 0, 0, 0
        keys_used = 0
        dims = tuple(bank.dim for bank in self._plan.banks)
        requested = len(request.rows) + len(request.keys)
        shares = bank_shares(dims, requested, request.counts, self._bag_pieces, request.bag_lengths)
        for bank, settings, share in zip(self._banks, self._plan.banks, shares, strict=True):
            out = reply[floats_written : floats_written + share.floats].reshape(-1, share.dim)
            lengths = request.bag_lengths[piece : piece + share.pieces]
            floats_written, piece = floats_written + share.floats, piece + share.pieces
            if settings.growing:
                keys = request.keys[keys_used : keys_used + share.rows]
                keys_used += share.rows
                _look_up_grown(self.grown[settings.growing], keys, share.single, lengths, out)
                continue
            bank_rows = request.rows[rows_used : rows_used + share.rows]
            rows_used += share.rows
            np.take(bank, bank_rows[: share.single], axis=0, out=out[: share.single], mode="clip")
            if share.pieces:
                sum_bags(torch.from_numpy(bank), bank_rows[share.single :], lengths, out[share.single :])
        with torch.no_grad():
            return self._router.assemble(requests, [reply])


def _pooled_here(column: TableColumn) -> TableColumn:
    return replace(column, pooled_by_trainers=False)


def _look_up_grown(
    grown: GrownRows, keys: Uint64Array, single: int, lengths: Int32Array, out: Float32Array
) -> None:
    """Write a growing table's vectors of `single` keys, and the sums of the bags of the others, to `out`."""
    grown.lookup(keys[:single], out[:single])
    if len(lengths):
        every: Int32Array = np.arange(len(keys) - single, dtype=np.int32)
        sum_bags(torch.from_numpy(grown.lookup(keys[single:])), every, lengths, out[single:])


def _rows_of(tables: Sequence[TableSettings], memory_bytes: int | None) -> RowsOf:
    """Return what makes the arrays of rows: in memory, or in a file if they do not fit."""
    needed = sum(table.rows * table.dim * 4 for table in tables)
    available = available_memory_bytes() if memory_bytes is None else memory_bytes
    if needed <= available:
        return lambda shape: np.empty(shape, np.float32)
    # The folder is of the machines that trained; another may have none of that name.
    folders = (table.folder for table in tables if table.folder and os.path.isdir(table.folder))
    folder = next(folders, DEFAULT_FOLDER)
    log.warning(
        "the tables need %s of memory, and %s may be used: they are read from a file in %s",
        data_size(needed),
        data_size(available),
        folder,
    )
    return lambda shape: mapped_floats(Path(folder), shape)
