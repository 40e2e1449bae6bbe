"""Code that jobs name, and what this user has named here.

A job can name a Python file or module, in KEYS. Where its user starts it, the name is the user's own choice,
and is noted in a file of the user's state folder, outside of all run folders. A saved job (a run folder, a
checkpoint) may be somebody else's, so opening it executes only what is noted, unless the user trusts it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from ...class_loader import is_file
from ..config.job import Job
from ..errors import JobFileError

KEYS: Final = ("model.name", "sync.algorithm")
"""Keys whose value, "package.module:Class" or "/folder/file.py:Class", is imported."""

TRUST: Final = "give --trust (in Python trust=True)"

_OTHERS_WRITE: Final = 0o022

log = logging.getLogger(__name__)


def code_of(job: Job, *keys: str) -> dict[str, str]:
    """Return what a job imports from outside of this package, by key.

    `keys`: of these keys only; by default of all KEYS.
    """
    names = {"model.name": job.model.name, "sync.algorithm": job.sync.algorithm}
    return {key: names[key] for key in keys or KEYS if ":" in names[key]}


def note_named_code(names: Iterable[str]) -> None:
    """Note that this user has named this code on this machine.

    Any process may call. If the note cannot be written, that is logged, and saved jobs with this code need to
    be trusted.
    """
    places = {_place(name) for name in names}
    if not places or not (new := places - _noted()):
        return
    try:
        path = _notes()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "wb") as file:
            # In one write each, since others may append, too.
            file.write("".join(f"{json.dumps(place)}\n" for place in sorted(new)).encode())
    except (OSError, RuntimeError) as error:
        log.warning("opening this run's model will need --trust: its code cannot be noted (%s)", error)


def require_trusted(
    names: Mapping[str, str], where: str, *, trust: bool, named: str = "", remedy: str = TRUST
) -> None:
    """Raise JobFileError, which says what would be executed, unless all may be.

    Args:
        names: as of `code_of`, of a saved job.
        where: the saved job's folder or file.
        trust: whether the user said that this one may execute what it names.
        named: what the user names now.
        remedy: what the user can do.
    """
    if trust or not names:
        return
    noted = _noted() | {_place(named)}
    for key, name in names.items():
        if (place := _place(name)) not in noted:
            what = f"the file {place}" if is_file(place) else f"the Python module {place}"
            raise JobFileError(
                f"its {key} executes {what} ({name.rpartition(':')[2]}), and no job that you started on this "
                "machine did so",
                where=where,
                remedy=f"read that code, and if you trust it {remedy}",
            )


def is_in_run_folder(job_file: Path) -> bool:
    """Return whether a job's file lies in the folder of a run."""
    made = ("ledger.sqlite", "report.json", "checkpoint", "logs")
    return any((job_file.parent / name).exists() for name in made)


def _place(name: str) -> str:
    """Return the file or module of a class's name."""
    where = name.rpartition(":")[0]
    return str(Path(where).resolve()) if is_file(where) else where


def _notes() -> Path:
    """Return the file of the notes; raises RuntimeError for a user without a home."""
    state_home = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state_home) if os.path.isabs(state_home) else Path.home() / ".local" / "state"
    return root / "shadowsync" / "named-code"


def _noted() -> set[str]:
    """Return the places in the notes; none if others could have written them."""
    try:
        with _notes().open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_WRITE:
                return set()
            lines = file.read().splitlines()
    except (OSError, RuntimeError):
        return set()
    notes = set()
    for line in lines:
        try:
            notes.add(str(json.loads(line)))
        except ValueError:
            # A line that a full disk cut; what it named needs to be trusted.
            continue
    return notes
