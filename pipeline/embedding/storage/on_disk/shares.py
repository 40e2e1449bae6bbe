"""How the memory that a node's rows may take is divided over its banks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ....config.row_bytes import row_bytes
from ....config.tables import DEFAULT_FOLDER
from ....errors import ResourceError
from ....text.format import data_size
from ...placement.plan import Piece, TablePlan
from .row_cache import PLACE_BYTES, WAYS
from .row_slots import MOVING_SLOT_BYTES

PLACE_OVERHEAD_BYTES: Final = PLACE_BYTES + 1
"""Bytes of a place beside its row: those of the cache, and the epoch of the row's last change."""

ROW_OVERHEAD_BYTES: Final = 7 / 16
"""Bytes of memory for each row, wherever it is: a bit for whether the file has it, and at most two and a half
for whether it changed before it made way. In growing tables it also has a slot."""

FEWEST_PLACES: Final = 64 * WAYS
"""Places below which even small batches would not fit."""


@dataclass(frozen=True, slots=True)
class DiskShare:
    """Where the rows of a bank lie, and how many of them have places in memory.

    `setting` is the key of the job file that says how much memory, with its node, for errors.
    """

    folder: Path
    places: int
    setting: str


@dataclass(frozen=True, slots=True)
class BankSize:
    """What a bank takes.

    Attributes:
        rows: number of rows.
        row_bytes: bytes of a row with its optimizer state.
        search_bytes: bytes of memory for each row in which it is searched for by its id; 0 unless it grows.
        folder: of the file with its rows; "" for `DEFAULT_FOLDER`.
    """

    rows: int
    row_bytes: int
    search_bytes: int = 0
    folder: str = ""

    @property
    def whole_bytes(self) -> int:
        """Return the bytes of all rows in memory."""
        return self.rows * (self.row_bytes + self.search_bytes)

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes of memory that a bank takes beside places, if its rows lie in a file."""
        slot_bytes = MOVING_SLOT_BYTES if self.search_bytes else 0
        return int(self.rows * (ROW_OVERHEAD_BYTES + slot_bytes + self.search_bytes))

    @property
    def least_bytes(self) -> int:
        """Return the least memory with which the bank works."""
        return min(self.whole_bytes, self.fixed_bytes + FEWEST_PLACES * self.place_bytes)

    @property
    def place_bytes(self) -> int:
        """Return the bytes of a place in memory."""
        return self.row_bytes + PLACE_OVERHEAD_BYTES


def divide_memory(banks: Sequence[BankSize], memory_bytes: int, where: str) -> list[DiskShare | None]:
    """Return the share of each bank; None for one whose rows are all in memory.

    Small banks are wholly in memory, and the others have equal parts of what they leave.

    Args:
        banks: what they take.
        memory_bytes: the most bytes of memory for all of them; 0 for no limit.
        where: the node and the section of the setting, for errors.

    Raises:
        ResourceError: the memory is too small for any batch.
    """
    shares: list[DiskShare | None] = [None] * len(banks)
    if not memory_bytes:
        return shares
    left, parts, setting = memory_bytes, len(banks), f"{where}.memory_bytes"
    for number in sorted(range(len(banks)), key=lambda number: banks[number].whole_bytes):
        bank, part = banks[number], left // parts
        if bank.whole_bytes > part:
            places = (part - bank.fixed_bytes) // bank.place_bytes // WAYS * WAYS
            if places < FEWEST_PLACES:
                least = sum(bank.least_bytes for bank in banks)
                raise ResourceError(
                    f"{data_size(memory_bytes)} of memory are too few: {bank.rows:,} rows take"
                    f" {data_size(bank.fixed_bytes)} beside their values, so {max(0, places):,} of them would"
                    " have room",
                    where=setting,
                    remedy=f"give at least {data_size(2 * least)}, or raise embedding.nodes",
                )
            shares[number] = DiskShare(Path(bank.folder or DEFAULT_FOLDER), places, setting)
            part = bank.fixed_bytes + places * bank.place_bytes
        else:
            part = bank.whole_bytes
        left, parts = left - part, parts - 1
    return shares


def disk_shares(plan: TablePlan, node: int, memory_bytes: int) -> list[DiskShare | None]:
    """Return where the rows of each of the plan's groups of banks lie on a node; None: all in memory.

    `memory_bytes` is `embedding.memory_bytes`, which tables with a limit of their own do not share. Raises
    ResourceError as `divide_memory` does.
    """
    groups = plan.bank_groups
    shares: list[DiskShare | None] = [None] * len(groups)
    together = []
    for group, numbers in enumerate(groups):
        own_bytes = plan.banks[numbers[0]].memory_bytes
        if own_bytes is None:
            together.append(group)
        else:
            # Tables of equal settings are stored together, and have the sum of what each may take.
            names = sorted({plan.tables[piece.table].name for piece in _pieces_of(plan, node, numbers)})
            where = f"embedding node {node}: tables.{', '.join(names)}"
            size = _bank_size(plan, node, numbers)
            (shares[group],) = divide_memory([size], own_bytes * len(names), where)
    sizes = [_bank_size(plan, node, groups[group]) for group in together]
    divided = divide_memory(sizes, memory_bytes, f"embedding node {node}: embedding")
    for group, share in zip(together, divided, strict=True):
        shares[group] = share
    return shares


def _bank_size(plan: TablePlan, node: int, numbers: Sequence[int]) -> BankSize:
    pieces = _pieces_of(plan, node, numbers)
    bank = plan.banks[numbers[0]]
    floats_bytes = row_bytes(bank.optimizer, bank.dim, bank.storage)
    tables = [plan.tables[piece.table] for piece in pieces]
    search_bytes = max((table.row_bytes - floats_bytes for table in tables), default=0)
    return BankSize(sum(map(len, pieces)), floats_bytes, search_bytes, bank.folder)


def _pieces_of(plan: TablePlan, node: int, numbers: Sequence[int]) -> list[Piece]:
    return [piece for piece in plan.pieces_of(node) if piece.bank in numbers]
