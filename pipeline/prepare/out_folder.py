"""The folder that a preparation writes: one process at a time, and nothing in it that is not its own."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..checkpoint.atomic_file import UNFINISHED, unwritable
from ..data.prepared.manifest import MANIFEST_NAME
from ..errors import DataError
from .folder import PROGRESS_NAME

STATISTICS_JSON: Final = "statistics.json"
STATISTICS_MARKDOWN: Final = "statistics.md"
# Preparations of version 0.1 wrote profile.json, profile.md and pictures.
_OWN: Final = re.compile(
    rf"((train|validation|test)-\d+\.parquet|statistics\.(json|md)|profile[a-z_-]*\.(json|md|png)|{re.escape(MANIFEST_NAME)}"
    rf"|{re.escape(PROGRESS_NAME)})({re.escape(UNFINISHED)}\d+)?"
)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes the folder where there is none, and holds it against other preparations.

    Raises DataError if another process holds it, or it has files of others; ResourceError if it cannot be
    made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_own(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _lock(descriptor, folder)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(folder, error) from error


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            "is being prepared by another process",
            where=str(folder),
            remedy="wait for it, or give another folder",
        ) from None


def _require_own(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if not _OWN.fullmatch(path.name) or path.is_dir():
            raise DataError(
                f"holds {path.name}, which shadowsync prepare did not write",
                where=str(folder),
                remedy="give a folder of its own, or remove that",
            )


def clear(folder: Path) -> None:
    """Removes all that a preparation wrote, what makes it complete first; raises OSError."""
    for name in (MANIFEST_NAME, PROGRESS_NAME):
        (folder / name).unlink(missing_ok=True)
    for path in folder.iterdir():
        path.unlink()


def clear_unfinished(folder: Path, parts: set[str]) -> None:
    """Removes what a preparation that was killed left beside its complete `parts`; raises OSError."""
    for path in folder.iterdir():
        if UNFINISHED in path.name or (path.suffix == ".parquet" and path.name not in parts):
            path.unlink()
