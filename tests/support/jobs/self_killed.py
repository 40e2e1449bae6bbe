"""A node that dies by SIGKILL in the middle of something: its role, POINT, NTH, and its other arguments.

It does half of what it does at that point for the NTH time, and is gone: no test could hit that from outside.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from shadowsync import cli
from shadowsync.nodes.embedding import shard_checkpoints
from shadowsync.nodes.embedding.role import EmbeddingRole
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint.store.contract import PartTarget, Stored
from shadowsync.pipeline.embedding.storage.on_disk.row_file import RowFile

Due = Callable[[], bool]


def reserve(due: Due) -> None:
    """As the space of a file of rows is reserved."""
    allocate = os.posix_fallocate

    def killed(descriptor: int, offset: int, length: int) -> None:
        now = due()
        allocate(descriptor, offset, length // 2 if now else length)
        _die_if(now)

    os.posix_fallocate = killed


def restore(due: Due) -> None:
    """As rows of a checkpoint are written to a file."""
    write = RowFile.write_field

    def killed(self: RowFile, name: str, rows: Any, values: Any) -> None:
        now = due()
        write(self, name, *((rows[::2], values[::2]) if now else (rows, values)))
        _die_if(now)

    RowFile.write_field = killed  # type: ignore[method-assign]


def read(due: Due) -> None:
    """As a lookup or a push waits for rows of a file."""
    whole = RowFile.read

    def killed(self: RowFile, rows: Any) -> Any:
        now = bool(len(rows)) and due()
        found = whole(self, rows[::2] if now else rows)
        _die_if(now)
        return found

    RowFile.read = killed  # type: ignore[method-assign]


def write(due: Due) -> None:
    """As a row that makes way is written: half of its bytes are."""
    whole = os.pwrite

    def killed(descriptor: int, record: Any, offset: int) -> int:
        now = due()
        written = whole(descriptor, record[: len(record) // 2] if now else record, offset)
        _die_if(now)
        return written

    os.pwrite = killed


def save_whole(due: Due) -> None:
    """As all rows are written for a checkpoint."""
    _save(lambda part: not part.changes and due())


def save_changes(due: Due) -> None:
    """As rows that have changed since are written for a checkpoint; so it is however many they are."""
    shard_checkpoints.LARGEST_CHANGES = math.inf  # type: ignore[misc]
    _save(lambda part: part.changes > 0 and due())


def save_last(due: Due) -> None:
    """As rows are written for the checkpoint at the end."""
    checkpoint, ending = EmbeddingRole._checkpoint, list[bool]()

    async def noted(self: EmbeddingRole, request: Any) -> Any:
        ending[:] = [True] * (not request.running)
        return await checkpoint(self, request)

    EmbeddingRole._checkpoint = noted  # type: ignore[method-assign]
    _save(lambda _: bool(ending) and due())


def score(due: Due) -> None:
    """As held-out examples are looked up, after the checkpoint at the end."""
    checkpoint, look_up, saved = EmbeddingRole._checkpoint, ShardService._look_up, list[bool]()

    async def noted(self: EmbeddingRole, request: Any) -> Any:
        reply = await checkpoint(self, request)
        saved[:] = [True] * (not request.running)
        return reply

    def killed(self: ShardService, identity: bytes, message: Any) -> None:
        _die_if(bool(saved) and due())
        look_up(self, identity, message)

    EmbeddingRole._checkpoint = noted  # type: ignore[method-assign]
    ShardService._look_up = killed  # type: ignore[method-assign]


def _save(due: Callable[[ShardPart], bool]) -> None:
    """Die within the first file of a part."""
    part_write, put = ShardPart.write, PartTarget.put

    def killed(self: ShardPart, directory: Any) -> Any:
        if due(self):
            PartTarget.put = put_half  # type: ignore[method-assign]
        return part_write(self, directory)

    def put_half(self: PartTarget, name: str, pieces: Iterable[bytes]) -> Stored:
        return put(self, name, _half(pieces))

    ShardPart.write = killed  # type: ignore[method-assign]


def _half(pieces: Iterable[bytes]) -> Iterable[bytes]:
    every = list(pieces)
    yield from every[: len(every) // 2]
    _die_if(True)


def _die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


POINTS: Final[dict[str, Callable[[Due], None]]] = {
    point.__name__: point
    for point in (reserve, restore, read, write, save_whole, save_changes, save_last, score)
}


if __name__ == "__main__":
    count, nth = itertools.count(1), int(sys.argv[3])
    POINTS[sys.argv[2]](lambda: next(count) == nth)
    del sys.argv[2:4]
    cli.main()
