"""A second name for a checkpoint, so that it stays when the next one takes its place."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from .atomic_file import sync_directory, unwritable, whole_file
from .manifest import MANIFEST_NAME, put_in_place

CANDIDATE: Final = "best.candidate"
BEST: Final = "best"
NOTE_NAME: Final = "validation.json"


@dataclass(frozen=True)
class BestNote:
    """Why a checkpoint is the best: the value of its metric, after so many trained examples; `input_digest`
    is of the data that it was validated on, see `input_digest` of nodes.checkpoint_manifest."""

    metric: str
    value: float
    examples: int
    input_digest: str


def pin(checkpoint: Path) -> Path:
    """Makes RUN/best.candidate out of RUN/checkpoint: hard links to its files, copies where the file system
    has none, the manifest last. Files of a checkpoint are never written again, so a link is as good as a
    copy. Raises ResourceError. One thread of one process at a time."""
    candidate = checkpoint.with_name(CANDIDATE)
    _copy(checkpoint, candidate)
    return candidate


def promote(candidate: Path, note: BestNote) -> Path:
    """Makes a pinned checkpoint RUN/best, in place of the one before, with a note of why; gives its folder.
    Raises ResourceError."""
    best = candidate.with_name(BEST)
    with whole_file(candidate / NOTE_NAME) as file:
        file.write(json.dumps(asdict(note)).encode())
    put_in_place(candidate, best)
    return best


def adopt_best(old_run: Path, run: Path, metric: str, input_digest: str) -> BestNote | None:
    """Makes the best checkpoint of `old_run` that of `run`, which has none yet, if it was chosen by the same
    metric on the same data: other values cannot be compared. Gives why it is the best. Raises
    ResourceError."""
    try:
        note = BestNote(**json.loads((old_run / BEST / NOTE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if (note.metric, note.input_digest) != (metric, input_digest):
        return None
    candidate = run / CANDIDATE
    _copy(old_run / BEST, candidate)
    put_in_place(candidate, run / BEST)
    return note


def drop(candidate: Path) -> None:
    """Removes a pinned checkpoint, if it is there; what else has links to its files keeps them. What cannot
    be removed is in the way of the next `pin`, which says so."""
    shutil.rmtree(candidate, ignore_errors=True)


def _copy(source: Path, target: Path) -> None:
    try:
        drop(target)
        target.mkdir()
        manifest = source / MANIFEST_NAME
        for path in (*(p for p in sorted(source.iterdir()) if p != manifest), manifest):
            _link(path, target / path.name)
        sync_directory(target)
    except OSError as error:
        # Where the volume is full, a part of it would be in the way of everything else.
        drop(target)
        raise unwritable(target, error) from error


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Some network file systems, and those of some containers, have no hard links.
        shutil.copyfile(source, target)
        # A link's content was synced when it was written. This must be as safe before the old best goes.
        with target.open("rb") as file:
            os.fsync(file.fileno())
