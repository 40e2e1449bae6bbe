"""Files and folders that appear completely or not at all, and their digest."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from .errors import ResourceError

# Every temporary file has this in its name, and no finished file has. A killed writer leaves such files.
UNFINISHED = ".unfinished-"


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` at the end of the block.

    The block writes to a temporary file beside `path`, which is then fsynced and renamed to `path`. If the
    block raises, the temporary file is removed and the file at `path` stays as it was. An OSError (disk full,
    no permission) becomes a ResourceError that names `path`. Any thread may call.
    """
    temporary = path.with_name(f"{path.name}{UNFINISHED}{os.getpid()}")
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


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` survive a power failure. Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the hex SHA-256 of a file; raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unwritable(path: Path, error: OSError) -> ResourceError:
    """Build the error for a path that could not be written."""
    return ResourceError(
        f"cannot be written ({error.strerror or error})",
        where=str(path),
        remedy="free space or permit writing there, or set run.directory to another place",
    )


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder that becomes `path` at the block's end.

    Until then the folder has a temporary name beside `path`. If the block raises, the folder is removed.
    Raises ResourceError if `path` exists and is not an empty folder, or if something cannot be written
    (including an OSError of the block).
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ResourceError("exists already", where=str(path), remedy="give another folder, or remove it")
    path = path.absolute()
    temporary = path.with_name(f"{path.name}{UNFINISHED}{os.getpid()}")
    try:
        try:
            temporary.mkdir(parents=True)
            yield temporary
            temporary.rename(path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error
