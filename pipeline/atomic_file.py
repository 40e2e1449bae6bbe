"""Files and folders that appear completely or not at all, and their digest."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from .errors import ResourceError

# Every temporary file has this in its name, and no finished file has. A killed writer leaves such files.
UNFINISHED = ".unfinished-"
_IN_ITS_WAY = "remove or move the file or folder that is in its way, or give another path"
_REMEDIES = {
    errno.ENOENT: "make the folder that it is to be in, or give another path",
    errno.EEXIST: _IN_ITS_WAY,
    errno.ENOTDIR: _IN_ITS_WAY,
    errno.EISDIR: _IN_ITS_WAY,
    errno.ENOTEMPTY: _IN_ITS_WAY,
    errno.ENAMETOOLONG: "give a shorter path",
}


def unfinished_path(path: Path) -> Path:
    """Return a new name beside `path` for what will be renamed to it.

    It has no process id: in containers that share a volume those are often the same.
    """
    return path.with_name(f"{path.name}{UNFINISHED}{uuid4().hex[:8]}")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end of the block.

    The block writes to a temporary file beside `path`, which is then fsynced and renamed to `path`. If the
    block raises, the temporary file is removed and the file at `path` stays as it was. An OSError (disk full,
    no permission) becomes a ResourceError that names `path`. Any thread may call.
    """
    temporary = unfinished_path(path)
    try:
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        # Who waited for the file may have read it by now, and removed it with its folder.
        with suppress(FileNotFoundError):
            sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def write_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 text as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(text.encode())


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` survive a power failure. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make what a file contains survive a power failure. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_all(folder: Path) -> None:
    for place, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync_file(Path(place, name))
        sync_directory(Path(place))


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unwritable(path: Path, error: OSError) -> ResourceError:
    """Build the error for a path that could not be written."""
    return ResourceError(
        f"cannot be written ({error.strerror or error})",
        where=str(path),
        remedy=_REMEDIES.get(
            error.errno or 0,
            "free space or permit writing there, or give another path (of a run: run.directory)",
        ),
    )


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder that becomes `path` at the block's end, with all its files on the disk.

    Until then the folder has a temporary name beside `path`. If the block raises, the folder is removed.
    Raises ResourceError if `path` exists and is not an empty folder, or if something cannot be written
    (including an OSError of the block).
    """
    try:
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise ResourceError("exists already", where=str(path), remedy="give another folder, or remove it")
        path = path.absolute()
        temporary = unfinished_path(path)
        temporary.mkdir(parents=True)
        try:
            yield temporary
            _sync_all(temporary)
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
