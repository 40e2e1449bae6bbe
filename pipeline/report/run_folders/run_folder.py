"""The folder of a run, the link `latest`, and how to resume.

Imports no torch, because the coordinator needs `resume_hint` too.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from ...atomic_file import unfinished_path, unwritable, write_text
from ...checkpoint.run_checkpoints import StoredCheckpoints
from ...checkpoint.saved import open_saved, storage_of
from ...checkpoint.storage import CheckpointStorage
from ...checkpoint.store.contract import StorageError
from ...errors import JobFileError, ShadowSyncError
from ...text.format import is_unicode

log = logging.getLogger(__name__)

LATEST: Final = "latest"
ADDRESS_FILE: Final = "coordinator.json"
_STORAGE_SECONDS: Final = 3.0


def create_run_folder(directory: Path, name: str) -> Path:
    """Create and return directory/NAME, or NAME-2, NAME-3, ... if that exists.

    Several programs may do so at once. Raises JobFileError for the name "latest" and for a path that messages
    cannot have, ResourceError if the folder cannot be made.
    """
    if not is_unicode(str(directory.absolute())):
        raise JobFileError(
            f"{str(directory.absolute())!r} is not UTF-8",
            where="run.directory",
            remedy="give a folder with another path; in an ASCII locale set LC_ALL=C.UTF-8",
        )
    if name == LATEST:
        raise JobFileError(
            '"latest" given', where="run.name", remedy="give another name; runs/latest is a link"
        )
    number = 1
    while True:
        folder = _numbered(directory, name, number)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
        except FileExistsError as error:
            # If the parent is a file, every name would fail like this, and the loop would never end.
            if not directory.is_dir():
                raise unwritable(directory, error) from error
            number += 1
        except OSError as error:
            raise unwritable(folder, error) from error
        else:
            return folder


def newest_run_folder(directory: Path, name: str) -> Path | None:
    """Return the folder that `create_run_folder` made last for `name`; None if there is none."""
    number = 1
    while _numbered(directory, name, number).is_dir():
        number += 1
    return _numbered(directory, name, number - 1) if number > 1 else None


def _numbered(directory: Path, name: str, number: int) -> Path:
    return directory / (name if number == 1 else f"{name}-{number}")


def point_latest(directory: Path, folder: Path) -> None:
    """Make directory/latest a relative link to `folder`, atomically.

    A program that follows the link meanwhile gets the old folder or the new one. Raises ResourceError, also
    if `latest` exists and is not a link.
    """
    link = directory / LATEST
    temporary = unfinished_path(directory / f".{LATEST}")
    try:
        temporary.symlink_to(os.path.relpath(folder, directory), target_is_directory=True)
        try:
            temporary.replace(link)
        except OSError:
            temporary.unlink()
            raise
    except OSError as error:
        raise unwritable(link, error) from error


def write_address(path: Path, endpoint: str, folder: Path) -> None:
    """Write at which address a run can be joined, and its folder."""
    note = json.dumps({"endpoint": endpoint, "folder": str(folder)})
    write_text(path, note)


def shown(path: Path) -> str:
    """Format a path for the user, relative if it is below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        # It is not below it, or that was removed.
        return str(path)


def keep_report(run_folder: Path) -> None:
    """Copy the report to the run's storage, if any; failures are logged."""
    if not (storage := storage_of(run_folder)):
        return
    try:
        stored = StoredCheckpoints(CheckpointStorage.open(storage, _STORAGE_SECONDS))
    except ShadowSyncError as error:
        log.warning("the report is not in the storage: %s", error)
        return
    stored.keep_report(run_folder)


def resume_hint(run_folder: Path, storage: str = "", *, supervised: bool = True) -> str:
    """Say how a stopped run goes on; "" if it has no checkpoint.

    The text begins with "; ", to be appended to a sentence. A checkpoint of the whole input is to be scored:
    nothing is left to train. Of a storage that does not answer nobody knows what is in it.

    Args:
        run_folder: its folder.
        storage: the storage of its checkpoints; "" for that of its job.
        supervised: whether `shadowsync run` started the nodes, and not somebody on several machines.
    """
    storage = storage or storage_of(run_folder)
    # Nodes of several machines are started from other folders.
    place = storage or (shown(run_folder) if supervised else str(run_folder.absolute()))
    way = _way_on(place, supervised=supervised)
    try:
        if storage:
            # The end of a job waits for this.
            CheckpointStorage.open(storage, _STORAGE_SECONDS).numbers()
        _, manifest = open_saved(storage or run_folder)
    except StorageError:
        return hint_of_silent(storage, supervised=supervised) if storage else ""
    except ShadowSyncError:
        return ""
    if manifest.complete:
        return f"; all of the input is trained: score the checkpoint with `shadowsync eval {place}`"
    return f"; continue from its last checkpoint with {way}"


def hint_of_silent(storage: str, *, supervised: bool) -> str:
    """Return the `resume_hint` of a run whose storage does not answer."""
    way = _way_on(storage, supervised=supervised)
    return f"; once the storage answers, continue from its last checkpoint, if it has one, with {way}"


def _way_on(place: str, *, supervised: bool) -> str:
    if supervised:
        return f"`shadowsync resume {place}`"
    return f"the same nodes and `--set start.checkpoint={place} --set start.resume=true`"
