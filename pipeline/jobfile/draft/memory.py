"""Tables of a drafted job that exceed the machine's memory: rows on disk."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...config.job import Job
from ...config.tables import DEFAULT_FOLDER, bytes_in_memory
from ...embedding.placement.plan import TablePlan
from ...embedding.storage.on_disk.shares import disk_shares
from ...errors import ResourceError
from ...performance.plan_basis import rows_bytes
from ...text.format import data_size

SHARE: Final = 0.6
"""Of the machine's memory for rows where others lie on disk; all nodes of a draft are on one machine."""

# Rows of so many batches have places in memory: they are looked up, pushed and looked up ahead.
_BATCHES: Final = 16
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


@dataclass(frozen=True)
class RowsOnDisk:
    """Why rows of a drafted job lie on disk, and how much memory the others have.

    Attributes:
        needed_bytes: memory of all rows in full tables, with optimizer state and the search for ids.
        machine_bytes: memory of the machine.
        allowed_bytes: what rows may take of it.
        memory_bytes: the draft's `embedding.memory_bytes`.
        narrow_bytes: as `needed_bytes`, with `embedding.storage = "bfloat16"`; 0 if they do not fit either.
    """

    needed_bytes: int
    machine_bytes: int
    allowed_bytes: int
    memory_bytes: int
    narrow_bytes: int

    def lines(self) -> list[str]:
        """Return the section of the job file."""
        need, most, have = map(data_size, (self.needed_bytes, self.allowed_bytes, self.machine_bytes))
        lines = [
            "[embedding]",
            f"# Full tables need {need} of memory with optimizer state: more than the {most}",
            f"# that rows may take of this machine's {have} (memory_fraction).",
            f'memory_bytes = "{_size(self.memory_bytes)}"'
            "  # of memory for rows; others lie in a file on disk, and come into memory when they are used",
            f'# folder = "/mnt/nvme"  # where that file is, on a local disk; {DEFAULT_FOLDER} by default',
        ]
        if self.narrow_bytes:
            lines.append(
                '# storage = "bfloat16"  # in place of memory_bytes: full tables then need'
                f" {data_size(self.narrow_bytes)}, and fit"
            )
        return lines


def rows_on_disk(job: Job, machine_bytes: int) -> RowsOnDisk | None:
    """Return how rows of a drafted job lie on disk; None if all fit into the machine's memory.

    Raises ResourceError if the memory is too small even so.
    """
    needed, allowed = rows_bytes(job), int(machine_bytes * job.embedding.memory_fraction)
    if needed <= allowed:
        return None
    memory_bytes = _round_down(int(machine_bytes * SHARE))
    _require_places(job, memory_bytes)
    narrow = [replace(table, storage="bfloat16") for table in job.tables]
    narrow_bytes = bytes_in_memory([(table, table.rows * table.row_bytes) for table in narrow], 0)
    narrow_bytes = narrow_bytes if narrow_bytes <= allowed else 0
    return RowsOnDisk(needed, machine_bytes, allowed, memory_bytes, narrow_bytes)


def _require_places(job: Job, memory_bytes: int) -> None:
    shares = disk_shares(TablePlan.make(job.tables, job.embedding.nodes), 0, memory_bytes)
    places = [share.places for share in shares if share is not None]
    rows = job.trainer.batch * sum(len(table.columns) for table in job.tables)
    if not memory_bytes or min(places, default=0) < _BATCHES * rows:
        raise ResourceError(
            f"{data_size(memory_bytes)} of memory have too few places for rows",
            where="embedding.memory_bytes",
        )


def _round_down(size_bytes: int) -> int:
    unit = _GIB if size_bytes >= 8 * _GIB else _MIB
    return size_bytes // unit * unit


def _size(size_bytes: int) -> str:
    return f"{size_bytes // _MIB}MiB" if size_bytes % _GIB else f"{size_bytes // _GIB}GiB"
