"""Checkpoints by their locations: a run, a checkpoint, or a storage's URL."""

from __future__ import annotations

import json
from collections.abc import Callable
from os import PathLike, fspath
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from ..config.storage_url import is_url
from ..errors import CheckpointError
from .best import read_note
from .best_note import BestNote
from .manifest import (
    CheckpointManifest,
    Which,
    best_folder,
    check_files,
    has_checkpoint,
    no_such_step,
    read_checkpoint,
    step_of,
)
from .storage import CheckpointStorage, split_address
from .stored_files import StoredFiles

Location: TypeAlias = str | PathLike[str]
Place: TypeAlias = Path | StoredFiles
"""Where the files of an opened checkpoint are."""

_MOST_READS: Final = 8
T = TypeVar("T")


def open_saved(
    location: Location, *, verify: bool = False, which: Which = "last"
) -> tuple[Place, CheckpointManifest]:
    """Open a checkpoint; return the place of its files and its manifest.

    As `manifest.open_checkpoint`, also for URLs, of a storage or of one checkpoint in it, and for the folder
    of a run with a storage. Files of a storage are verified when they are fetched. Raises CheckpointError,
    StorageError, and JobFileError for a URL that cannot be used.
    """

    def checked(place: Place, manifest: CheckpointManifest) -> tuple[Place, CheckpointManifest]:
        check_files(place, manifest.files, verify=verify)
        return place, manifest

    return read_saved(location, checked, which=which)


def read_saved(
    location: Location, read: Callable[[Place, CheckpointManifest], T], *, which: Which = "last"
) -> T:
    """Return what `read` makes of a checkpoint.

    If a running job replaces the checkpoint meanwhile, `read` is called again, for the new one. Raises as
    `open_saved`.
    """
    url = storage_of(location)
    if not url:
        return read_checkpoint(Path(location), read, which=which)
    root, fixed = split_address(url)
    storage = CheckpointStorage.open(root)
    for _ in range(_MOST_READS):
        number = _number(storage, which) if fixed is None else fixed
        try:
            return read(storage.files(number), storage.read(number))
        except CheckpointError:
            if fixed is not None or number in storage.numbers():
                raise
    raise CheckpointError(
        f"the checkpoint was replaced {_MOST_READS} times while it was being read",
        where=url,
        remedy="let the job write checkpoints less often, or wait until it has ended",
    )


def storage_of(location: Location) -> str:
    """Return the URL of a location; "" if its checkpoints are in a folder.

    That of a run's folder without checkpoints is its `run.storage`.
    """
    text = fspath(location)
    if is_url(text):
        return text
    job_file = Path(text) / "job.json"
    if not job_file.is_file() or has_checkpoint(Path(text)):
        return ""
    try:
        return str(json.loads(job_file.read_bytes())["run"].get("storage", ""))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""


def parts_place(directory: str) -> Place:
    """Return the place of an unfinished checkpoint that nodes write to `directory`."""
    if not is_url(directory):
        return Path(directory)
    return CheckpointStorage.open(directory.rpartition("/")[0]).unfinished()


def note_of(place: Place) -> BestNote | None:
    """Return why a checkpoint is the best, or None."""
    return place.note if isinstance(place, StoredFiles) else read_note(place)


def best_note_at(location: Location) -> BestNote | None:
    """Return why the best checkpoint of a run is that, or None."""
    if not (url := storage_of(location)):
        folder = best_folder(Path(location))
        return read_note(folder) if folder is not None else None
    best = CheckpointStorage.open(split_address(url)[0]).best()
    return None if best is None else best[1]


def own_checkpoint(storage_url: str, run_folder: str) -> Location | None:
    """Return the location of a running job's last own checkpoint, or None.

    What the job resumed is not its own. Raises as `open_saved`.
    """
    if not storage_url:
        folder = Path(run_folder)
        return folder if has_checkpoint(folder) else None
    storage = CheckpointStorage.open(storage_url)
    owner, numbers = storage.owner(), storage.numbers()
    return storage.url if owner is not None and numbers[-1:] >= [owner.first] else None


def _number(storage: CheckpointStorage, which: Which) -> int:
    if which not in ("auto", "last", "best"):
        steps = {storage.read(number).examples_trained: number for number in storage.numbers()}
        step = step_of(which)
        if step not in steps:
            raise no_such_step(which, steps, storage.url)
        return steps[step]
    if which != "last" and (best := storage.best()) is not None:
        return best[0]
    numbers = storage.numbers()
    if which == "best":
        raise CheckpointError(
            "no best checkpoint was kept",
            where=storage.url,
            remedy='only jobs with [validation] have one; take "last"',
        )
    if not numbers:
        raise CheckpointError(
            "there is no checkpoint",
            where=storage.url,
            remedy="give the storage of a job that has written a checkpoint",
        )
    return numbers[-1]
