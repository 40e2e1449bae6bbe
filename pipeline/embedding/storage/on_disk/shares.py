"""How the memory that a node's rows may take is divided over its banks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ....errors import ResourceError
from ....text.format import data_size
from .row_cache import PLACE_BYTES, WAYS
from .row_slots import MOVING_SLOT_BYTES

PLACE_OVERHEAD_BYTES: Final = PLACE_BYTES + 1
"""Bytes of a place beside its row: those of the cache, and whether the file has the same values."""

ROW_OVERHEAD_BYTES: Final = 1 + 1 / 8
"""Bytes of memory for each row, wherever it is: the epoch of its last change, and whether the file has it. In
growing tables it also has a slot."""

FEWEST_PLACES: Final = 64 * WAYS
"""Places below which even small batches would not fit."""

DEFAULT_FOLDER: Final = "/var/tmp"
"""The usual folder of large temporary files, which is on a disk."""


@dataclass(frozen=True, slots=True)
class DiskShare:
    """Where the rows of a bank lie, and how many of them have places in memory."""

    folder: Path
    places: int


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
    left, parts = memory_bytes, len(banks)
    for number in sorted(range(len(banks)), key=lambda number: banks[number].whole_bytes):
        bank, part = banks[number], left // parts
        if bank.whole_bytes > part:
            places = (part - bank.fixed_bytes) // bank.place_bytes // WAYS * WAYS
            if places < FEWEST_PLACES:
                least = sum(bank.least_bytes for bank in banks)
                raise ResourceError(
                    f"{data_size(memory_bytes)} of memory are too few: of the {bank.rows:,} rows of a table"
                    f" {max(0, places):,} would be in memory",
                    where=f"{where}.memory_bytes",
                    remedy=f"give at least {data_size(2 * least)}, or raise embedding.nodes",
                )
            shares[number] = DiskShare(Path(bank.folder or DEFAULT_FOLDER), places)
            part = bank.fixed_bytes + places * bank.place_bytes
        else:
            part = bank.whole_bytes
        left, parts = left - part, parts - 1
    return shares
