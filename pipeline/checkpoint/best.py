"""The best checkpoint by validation.

Its files are hard links, which stay when the next checkpoint replaces the last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ..atomic_file import sync_directory, sync_file, unwritable, write_text
from .best_note import BestNote
from .manifest import MANIFEST_NAME, best_folder, put_in_place

CANDIDATE: Final = "best.candidate"
BEST: Final = "best"
NOTE_NAME: Final = "validation.json"


def read_note(folder: Path) -> BestNote | None:
    """Return why a checkpoint is the best; None without a readable note."""
    try:
        return BestNote(**json.loads((folder / NOTE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def pin(checkpoint: Path, number: int = 0) -> Path:
    """Link RUN/checkpoint as RUN/best.candidate-NUMBER, the manifest last.

    The files are hard links, or copies if the file system has no links. Files of a checkpoint are never
    written again, so a link is as good as a copy. Only one thread of one process may call at a time. Raises
    ResourceError.
    """
    candidate = checkpoint.with_name(f"{CANDIDATE}-{number}")
    copy_checkpoint(checkpoint, candidate)
    return candidate


def promote(candidate: Path, note: BestNote) -> Path:
    """Make a pinned checkpoint RUN/best, with a note of why.

    RUN/best is replaced if it exists. Returns the folder. Raises ResourceError.
    """
    best = candidate.with_name(BEST)
    write_text(candidate / NOTE_NAME, json.dumps(asdict(note)))
    put_in_place(candidate, best)
    return best


def adopt_best(old_run: Path, run: Path, fits: Callable[[BestNote], bool]) -> BestNote | None:
    """Take over the best checkpoint of `old_run` for `run`, if its note `fits`.

    `run` must have no best checkpoint yet. Returns why it is the best, or None if it was not taken over.
    Raises ResourceError.
    """
    best = best_folder(old_run)
    note = read_note(best) if best is not None else None
    if best is None or note is None or not fits(note):
        return None
    candidate = run / CANDIDATE
    copy_checkpoint(best, candidate)
    put_in_place(candidate, run / BEST)
    return note


def drop(candidate: Path) -> None:
    """Remove a pinned checkpoint if it exists.

    Other links to its files stay. If something cannot be removed, the next `pin` raises ResourceError.
    """
    shutil.rmtree(candidate, ignore_errors=True)


def drop_all(run: Path) -> None:
    """Remove all pinned checkpoints of a run."""
    for candidate in run.glob(f"{CANDIDATE}*"):
        drop(candidate)


def copy_checkpoint(source: Path, target: Path) -> None:
    """Link a checkpoint as another folder of the same file system, the manifest last.

    What was there is removed. Raises ResourceError.
    """
    try:
        drop(target)
        target.mkdir()
        manifest = source / MANIFEST_NAME
        for path in (*(p for p in sorted(source.iterdir()) if p != manifest), manifest):
            _link(path, target / path.name)
        sync_directory(target)
    except OSError as error:
        # On a full volume a partial copy would only take space.
        drop(target)
        raise unwritable(target, error) from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Some file systems, of networks or containers, have no hard links.
        shutil.copyfile(source, target)
        # The copy must be on the disk before the old best is removed; a link's content is there already.
        sync_file(target)
