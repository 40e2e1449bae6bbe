"""The checkpoints of a shard, written while it serves.

A part with all rows is copied and written a few MB at a time, between pushes. Rows that change meanwhile are
written again at the end, all at one moment. Later parts have only the rows that changed since the previous
part, and keep its files: by hard links in a folder, by their names in a storage. So lookups and pushes wait
only while changed rows are copied, and the memory never holds a second copy of the shard.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...pipeline.atomic_file import sync_directory, unwritable
from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.saved import Place, open_saved
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.embedding.storage.saved_tables import applied_name
from ...pipeline.embedding.storage.store import ChangedRows
from ...pipeline.errors import CheckpointError, ResourceError
from ...pipeline.performance.memory import available_memory_bytes
from ...pipeline.text.format import data_size
from .server import ShardService
from .shard_part import ShardPart, changed_bytes

COPIED_AT_ONCE_BYTES: Final = 32 << 20
"""A shard up to this size is copied in one pause of about 20 ms."""

LARGEST_CHANGES: Final = 0.5
"""If the changes exceed this fraction of all rows, all rows are written: reading the changes back would take
that much longer."""

MOST_CHANGES: Final = 8
"""Most parts of changes after one part with all rows; a further one has the changes of all of them."""

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenPart:
    """The files of a node in one checkpoint.

    Attributes:
        whole: files with all rows.
        changes: files with changes, in order.
        number: number of the last changes, 0 without any.
        whole_change_epoch: change epoch of `whole`; later changes are in `changes`.
        change_epoch: change epoch of the last file; later changes are in no file.
    """

    whole: tuple[FileEntry, ...]
    changes: tuple[tuple[FileEntry, ...], ...]
    number: int
    whole_change_epoch: int
    change_epoch: int

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files."""
        return (*self.whole, *(entry for part in self.changes for entry in part))


class ShardCheckpoints:
    """Write a shard's parts; on the loop of its node, one at a time."""

    def __init__(self, service: ShardService, memory_fraction: float) -> None:
        self._service = service
        self._memory_fraction = memory_fraction
        self._written: list[WrittenPart] = []
        self._links = True
        self._longest_seconds = 0.0
        self._yields = False

    async def write(self, directory: str, *, yields: bool = False) -> tuple[tuple[FileEntry, ...], float]:
        """Write a part while the shard serves.

        With `yields` the writing yields to training, but the copying, for which training waits, does not.
        Returns its files, and the longest pause in seconds. Raises ResourceError if there is no memory for a
        copy of the changed rows, or a file cannot be written, and JobFileError for non-finite rows.
        """
        self._longest_seconds = 0.0
        self._yields = yields
        last = await asyncio.to_thread(self._last_committed, directory.rpartition("/")[0])
        part = None if last is None else await self._write_changes(directory, *last)
        if part is None or last is None:
            part = await self._write_whole(directory)
            self._written = [part]
        else:
            self._written = [last[1], part]
        return part.files, self._longest_seconds

    def _last_committed(self, run: str) -> tuple[Place, WrittenPart] | None:
        """Return the run's checkpoint and the newest part that is wholly in it."""
        if not self._written or not self._links:
            return None
        try:
            folder, manifest = open_saved(run)
        except CheckpointError:
            return None
        files = set(manifest.files)
        return next(
            ((folder, part) for part in reversed(self._written) if files.issuperset(part.files)), None
        )

    async def _write_changes(self, directory: str, folder: Place, before: WrittenPart) -> WrittenPart | None:
        """Write the changes since `before`, which is in `folder`.

        Returns None if all rows must be written instead.
        """
        taken = await self._paused(lambda: self._take_changes(before))
        if taken is None:
            return None
        changes, kept, change_epoch = taken
        entries = replace(before, changes=kept).files
        # In a storage, the manifest names the earlier files where they are.
        if isinstance(folder, Path):
            linked = await asyncio.to_thread(self._link, folder, Path(directory), entries)
            if not linked:
                return None
        files = await asyncio.to_thread(changes.write, part_target(directory, yields=self._yields))
        parts = (*kept, tuple(files))
        return WrittenPart(before.whole, parts, changes.changes, before.whole_change_epoch, change_epoch)

    def _take_changes(
        self, before: WrittenPart
    ) -> tuple[ShardPart, tuple[tuple[FileEntry, ...], ...], int] | None:
        """Copy changed rows, and choose the earlier changes to keep.

        Runs on the service thread. Returns None if all rows must be written instead.
        """
        store = self._service.store
        most_bytes = LARGEST_CHANGES * sum(entry.bytes for entry in before.whole)
        kept = before.changes
        kept_bytes = sum(entry.bytes for part in kept for entry in part)
        changed = store.changed_since(before.change_epoch)
        if len(kept) == MOST_CHANGES or kept_bytes + changed_bytes(changed) > most_bytes:
            kept, changed = (), store.changed_since(before.whole_change_epoch)
            if changed_bytes(changed) > most_bytes:
                return None
        if not store.change_epochs_left:
            return None
        return self._copy(changed, before.number + 1), kept, store.end_change_epoch()

    def _link(self, folder: Path, directory: Path, entries: Iterable[FileEntry]) -> bool:
        """Link files of the checkpoint in `folder`; return False if that is impossible."""
        linked: list[Path] = []
        try:
            for entry in entries:
                os.link(folder / entry.name, directory / entry.name)
                linked.append(directory / entry.name)
            sync_directory(directory)
        except OSError as error:
            for path in linked:
                path.unlink(missing_ok=True)
            if error.errno in (errno.ENOENT, errno.ENOSPC, errno.EDQUOT):
                raise unwritable(directory, error) from error
            log.info("%s has no hard links (%s): every checkpoint has all rows", directory.parent, error)
            self._links = False
            return False
        return True

    async def _write_whole(self, directory: str) -> WrittenPart:
        # The change epochs of earlier parts may be forgotten from here on.
        self._written.clear()
        part, began = await self._paused(self._begin_whole)
        target = part_target(directory, yields=self._yields)
        files = tuple(await asyncio.to_thread(part.write, target))
        if applied_name(part.node) in part.tensors:
            return WrittenPart(files, (), 0, began, began)
        changes, change_epoch = await self._paused(lambda: self._take_changes_of_writing(began))
        changed = tuple(await asyncio.to_thread(changes.write, target))
        return WrittenPart(files, (changed,), 1, began, change_epoch)

    def _begin_whole(self) -> tuple[ShardPart, int]:
        """Return all rows, and the change epoch after which changes count.

        Runs on the service thread. The rows of a small shard are a copy, with the applied batches; those of a
        large one are copied as they are read.
        """
        store = self._service.store
        if store.change_epochs_left < 2:
            store.forget_change_epochs()
        change_epoch = store.end_change_epoch()
        part = ShardPart.of(store, self._service.applied)
        if part.copy_bytes <= COPIED_AT_ONCE_BYTES:
            self._require_memory(part.copy_bytes)
            return part.copied(), change_epoch
        served = {name: ServedRows(part.tensors[name], self._fetch) for name in part.first_rows}
        return replace(part, tensors=served), change_epoch

    def _take_changes_of_writing(self, since: int) -> tuple[ShardPart, int]:
        """Copy the rows that changed while all rows were written; on the service thread."""
        store = self._service.store
        return self._copy(store.changed_since(since), 1), store.end_change_epoch()

    def _copy(self, changed: Sequence[ChangedRows], number: int) -> ShardPart:
        self._require_memory(changed_bytes(changed))
        return ShardPart.of_changes(self._service.store, self._service.applied, changed, number)

    async def _paused(self, work: Callable[[], T]) -> T:
        """Run `work` on the service thread, while lookups and pushes wait."""
        return await self._service.run(lambda: self._timed(work))

    def _fetch(self, copy: Callable[[], T]) -> T:
        """Run `copy` on the service thread, for a thread that writes files."""
        return self._service.run_blocking(lambda: self._timed(copy))

    def _timed(self, work: Callable[[], T]) -> T:
        began = time.monotonic()
        try:
            return work()
        finally:
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - began)

    def _require_memory(self, copy_bytes: int) -> None:
        available, fraction = available_memory_bytes(), self._memory_fraction
        if copy_bytes > available * fraction:
            raise ResourceError(
                f"a copy of the rows for a checkpoint takes {data_size(copy_bytes)}, more than"
                f" {data_size(available * fraction)}: {fraction:g} of {data_size(available)} of free memory",
                where="embedding.memory_fraction",
                remedy="use more embedding nodes or more memory, or write no checkpoints during training",
            )


class ServedRows:
    """Rows of another thread, which copies them as they are read; see `TensorView`."""

    def __init__(self, values: Any, fetch: Callable[[Callable[[], NDArray[Any]]], NDArray[Any]]) -> None:
        self._values = values
        self._fetch = fetch
        self.dtype: np.dtype[Any] = values.dtype
        self.itemsize: int = values.itemsize
        self.ndim: int = values.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        shape: tuple[int, ...] = self._values.shape
        return shape

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return int(self._values.nbytes)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: slice) -> ServedRows:
        return ServedRows(self._values[rows], self._fetch)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("rows of another thread cannot be read without a copy")
        return self._fetch(lambda: np.array(self._values, dtype))
