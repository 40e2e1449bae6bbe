"""The checkpoints of a shard, written while it serves.

A first part has all rows, later ones those that changed since the previous part, whose files they keep: by
hard links in a folder, by their names in a storage. Rows are written in passes. A pass copies and writes them
a few MB at a time, between pushes; the next one has the rows that changed since it began. When few are left
they are copied at once, with the applied batches: that is the moment of the checkpoint, and earlier copies of
these rows are replaced as it is read. So lookups and pushes wait for a few MB, and the memory never holds a
second copy of the shard.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from ...pipeline.atomic_file import sync_directory, unwritable
from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.saved import Place, open_saved
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.checkpoint.store.contract import PartTarget
from ...pipeline.errors import CheckpointError, ResourceError
from ...pipeline.performance.memory import available_memory_bytes
from ...pipeline.text.format import data_size
from .server import ShardService
from .shard_part import ShardPart

COPIED_AT_ONCE_BYTES: Final = 32 << 20
"""Rows up to this size are copied in one pause of about 20 ms."""

MOST_PASSES: Final = 4
"""Most passes of a part; what is left in the last one is copied at once, however much it is."""

LARGEST_CHANGES: Final = 0.5
"""If the changes exceed this fraction of all rows, all rows are written: reading the changes back would take
that much longer."""

MOST_CHANGES: Final = 8
"""Most parts of changes after one part with all rows; a further one has the changes of all of them."""

T = TypeVar("T")
Files = tuple[FileEntry, ...]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenPart:
    """The files of a node in one checkpoint.

    Attributes:
        whole: files with all rows.
        changes: files with changes, of one checkpoint after the other.
        number: number of the last changes, 0 without any.
        whole_change_epoch: change epoch of `whole`; later changes are in `changes`.
        change_epoch: change epoch of the last file; later changes are in no file.
    """

    whole: Files
    changes: tuple[Files, ...]
    number: int
    whole_change_epoch: int
    change_epoch: int

    @property
    def files(self) -> Files:
        return (*self.whole, *chain.from_iterable(self.changes))


@dataclass(frozen=True)
class _Pass:
    """Rows that are written together.

    Attributes:
        part: the rows; None for changed rows that are yet to be found.
        since: the change epoch after which changes count.
        number: number of these changes, 0 for all rows.
        change_epoch: the change epoch that ended as the pass began; later changes are for the next one.
    """

    part: ShardPart | None
    since: int
    number: int
    change_epoch: int


class ShardCheckpoints:
    """Write a shard's parts; on the loop of its node, one at a time."""

    def __init__(self, service: ShardService, memory_fraction: float) -> None:
        self._service = service
        self._memory_fraction = memory_fraction
        self._written: list[WrittenPart] = []
        self._links = True
        self._longest_seconds = 0.0
        self._yields = False

    async def write(self, directory: str, *, yields: bool = False) -> tuple[Files, float]:
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
        begun = await self._paused(lambda: self._begin_changes(before))
        if begun is None:
            return None
        kept, first = begun
        entries = replace(before, changes=kept).files
        # In a storage, the manifest names the earlier files where they are.
        if isinstance(folder, Path):
            linked = await asyncio.to_thread(self._link, folder, Path(directory), entries)
            if not linked:
                return None
        files, last = await self._write_passes(directory, first)
        parts = (*kept, tuple(chain.from_iterable(files)))
        epochs = (before.whole_change_epoch, last.change_epoch)
        return WrittenPart(before.whole, parts, last.number, *epochs)

    def _begin_changes(self, before: WrittenPart) -> tuple[tuple[Files, ...], _Pass] | None:
        """Choose the earlier changes to keep, and begin with the rows that changed since.

        Runs on the service thread. Returns None if all rows must be written instead.
        """
        if self._service.store.change_epochs_left < MOST_PASSES:
            return None
        changed_bytes = self._service.store.changed_bytes
        most_bytes = LARGEST_CHANGES * sum(entry.bytes for entry in before.whole)
        kept, since = before.changes, before.change_epoch
        kept_bytes = sum(entry.bytes for entry in chain.from_iterable(kept))
        if len(kept) == MOST_CHANGES or kept_bytes + changed_bytes(since) > most_bytes:
            kept, since = (), before.whole_change_epoch
            if changed_bytes(since) > most_bytes:
                return None
        return kept, self._begin_changed(since, before.number + 1)

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
        first = await self._paused(self._begin_whole)
        (whole, *later), last = await self._write_passes(directory, first)
        changes = (tuple(chain.from_iterable(later)),) if later else ()
        return WrittenPart(whole, changes, last.number, first.change_epoch, last.change_epoch)

    def _begin_whole(self) -> _Pass:
        """Begin with all rows; on the service thread."""
        store = self._service.store
        # All rows are written, so nobody asks for what changed before.
        store.forget_change_epochs()
        part = ShardPart.of(store, self._service.applied)
        few = part.copy_bytes <= COPIED_AT_ONCE_BYTES
        return _Pass(self._copied(part) if few else part.served(self._fetch), 0, 0, store.end_change_epoch())

    def _begin_changed(self, since: int, number: int, *, last: bool = False) -> _Pass:
        """Begin with the rows that changed after the change epoch `since`.

        Runs on the service thread. Many rows are found and copied later, as they are written,
        unless it is the last pass.
        """
        service, part = self._service, None
        if last or service.store.changed_bytes(since) <= COPIED_AT_ONCE_BYTES:
            changed = service.store.changed_since(since)
            part = self._copied(ShardPart.of_changes(service.store, service.applied, changed, number))
        return _Pass(part, since, number, service.store.end_change_epoch())

    async def _write_passes(self, directory: str, first: _Pass) -> tuple[list[Files], _Pass]:
        """Write a pass, and further ones up to one of a single moment.

        Returns the files of each, and the last one.
        """
        target = part_target(directory, yields=self._yields)
        now, files = first, [await asyncio.to_thread(self._write_pass, first, target)]
        while now.part is None or now.part.applied is None:
            last = len(files) == MOST_PASSES - 1
            begin = partial(self._begin_changed, now.change_epoch, now.number + 1, last=last)
            now = await self._paused(begin)
            files.append(await asyncio.to_thread(self._write_pass, now, target))
        return files, now

    def _write_pass(self, next_pass: _Pass, target: PartTarget) -> Files:
        part, store = next_pass.part, self._service.store
        if part is None:
            changed = store.changed_since(next_pass.since, self._fetch)
            part = ShardPart.of_changes(store, None, changed, next_pass.number).served(self._fetch)
        return tuple(part.write(target))

    def _copied(self, part: ShardPart) -> ShardPart:
        self._require_memory(part.copy_bytes)
        return part.copied()

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
