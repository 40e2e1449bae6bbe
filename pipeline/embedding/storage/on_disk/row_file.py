"""The records of rows in a file on the node's disk."""

from __future__ import annotations

import errno
import math
import mmap
import os
import tempfile
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ....errors import ResourceError
from ....text.format import data_size
from ....types import Int32Array, Mask
from .file_system import unfit_for_rows
from .row_cache import ABSENT
from .row_slots import FixedSlots, RowSlots

READERS: Final = 16
"""Threads that read: a disk answers so many at once. More read no more rows a second of the disk that was
measured."""

_ROWS_A_READER: Final = 32
"""Rows for which another thread is worth its start."""


@dataclass
class FileCounts:
    """What went through a file since its start.

    Attributes:
        reads: rows read.
        writes: rows written.
        seconds: time that the node's thread waited for both.
    """

    reads: int = 0
    writes: int = 0
    seconds: float = 0.0


class RowFile:
    """A record for each of `rows` rows, in a file without a name.

    Nobody else can open it, and the system frees its space when the process ends, however it ends. All of its
    space is reserved at the start, so that the disk cannot fill up under it. Used by one thread.

    Args:
        folder: a folder on a local disk.
        rows: number of rows.
        record: the structured type of a record.
        slots: where records lie; by default each at the number of its row.

    Raises:
        ResourceError: the folder is absent or not writable, or the disk lacks the space.

    Attributes:
        rows: number of rows.
        unfit: why rows should not lie in the folder; "" if nothing is known.
        counts: what was read and written.
    """

    def __init__(self, folder: Path, rows: int, record: np.dtype[Any], slots: RowSlots | None = None) -> None:
        self._slots = FixedSlots(rows) if slots is None else slots
        size = len(self._slots) * record.itemsize
        self.unfit = unfit_for_rows(folder)
        self._descriptor = _reserve(folder, size)
        self._closed = weakref.finalize(self, os.close, self._descriptor)
        self._records: NDArray[Any] = np.frombuffer(_mapped(self._descriptor, size), record)
        # As single values of all their bytes, which NumPy copies fast.
        self._whole = self._records.view(np.dtype((np.void, record.itemsize)))
        self._threads = ThreadPoolExecutor(READERS, "rows-file")
        self.rows = rows
        self.counts = FileCounts()

    @property
    def count(self) -> int:
        """Return how many rows have a record."""
        return self._slots.count

    @property
    def record_bytes(self) -> int:
        return self._records.itemsize

    def has(self, rows: Int32Array) -> Mask:
        """Return which of rows int32 [N] have a record."""
        mask: Mask = self._slots.find(rows) != ABSENT
        return mask

    def read(self, rows: Int32Array) -> NDArray[Any]:
        """Return the records of rows int32 [N], which have one."""
        began = time.monotonic()
        records = self._records_at(self._slots.find(rows))
        self.counts.reads += len(rows)
        self.counts.seconds += time.monotonic() - began
        return records

    def write(self, rows: Int32Array, records: NDArray[Any]) -> None:
        """Write the records of rows int32 [N], which are distinct."""
        if not len(rows):
            return
        began = time.monotonic()
        slots, size = self._slots.move(rows), self.record_bytes
        order = np.argsort(slots)
        slots, values = slots[order], records[order].view(np.uint8).data
        begins = np.flatnonzero(np.r_[True, slots[1:] != slots[:-1] + 1])
        bounds = [*begins.tolist(), len(slots)]
        # A page that is written in part is read first: here many at once, below one after the other.
        self._records_at(np.concatenate([slots[begins], slots[np.subtract(bounds[1:], 1)]]))
        # A call takes half of the CPU time that mapped memory does, whose pages are faulted in.
        for (begin, end), slot in zip(pairwise(bounds), slots[begins].tolist(), strict=True):
            run = values[begin * size : end * size]
            if os.pwrite(self._descriptor, run, slot * size) != len(run):
                raise OSError(errno.EIO, "rows were written in part", "the file of rows on disk")
        self.counts.writes += len(rows)
        self.counts.seconds += time.monotonic() - began

    def write_field(self, name: str, rows: Int32Array, values: NDArray[Any]) -> None:
        """Write one field of the records of rows int32 [N], distinct; in a new file others are then zero."""
        self._records[name][self._slots.place(rows)] = values

    def forget(self, rows: Int32Array) -> None:
        """Have no record of rows int32 [N], distinct, any more."""
        self._slots.free(rows)

    def close(self) -> None:
        """End the threads; nothing is read or written after."""
        self._threads.shutdown()
        self._closed()

    def _records_at(self, slots: Int32Array) -> NDArray[Any]:
        """Return what is at slots int32 [N], read by several threads."""
        out = np.empty(len(slots), self._whole.dtype)

        def some(start: int, stop: int) -> None:
            np.take(self._whole, slots[start:stop], out=out[start:stop], mode="clip")

        parts = min(READERS, len(slots) // _ROWS_A_READER)
        if parts > 1:
            bounds = [len(slots) * part // parts for part in range(parts + 1)]
            for _ in self._threads.map(some, bounds[:-1], bounds[1:]):
                pass
        elif len(slots):
            some(0, len(slots))
        return out.view(self._records.dtype)


def mapped_floats(folder: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return float32 zeros in a file without a name, of which the kernel keeps in memory what it can.

    Any thread may use them. Raises ResourceError as `RowFile` does.
    """
    size = 4 * math.prod(shape)
    if not size:
        return np.zeros(shape, np.float32)
    descriptor = _reserve(folder, size)
    try:
        return np.frombuffer(_mapped(descriptor, size), np.float32).reshape(shape)
    finally:
        os.close(descriptor)


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    mapped = mmap.mmap(descriptor, size)
    # Neighbours of a row are no more likely to be needed than others.
    mapped.madvise(mmap.MADV_RANDOM)
    return mapped


def _reserve(folder: Path, size: int) -> int:
    """Return the descriptor of a new file of `size` bytes without a name."""
    try:
        try:
            descriptor = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        except OSError as error:
            # Not every file system can make a file without a name.
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
            descriptor, name = tempfile.mkstemp(prefix="shadowsync-rows-", dir=folder)
            os.unlink(name)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        remedy = "give a folder on a local disk that this node may write, with enough free space"
        raise ResourceError(
            f"{data_size(size)} for rows cannot be reserved in {folder}: {error.strerror}",
            where="embedding.folder",
            remedy=remedy,
        ) from error
    return descriptor
