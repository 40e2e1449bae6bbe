"""The folder that a preparation writes, and its saved progress.

One process at a time writes the folder, which has no other files. The progress is one file, which is replaced
as a whole.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from ..atomic_file import UNFINISHED, unwritable, write_text
from ..data.bad_rows import BadRow, BadRows
from ..data.prepared.manifest import MANIFEST_NAME, DataRole, PreparationSettings, PreparedPart, RoleSummary
from ..errors import DataError

PROGRESS_NAME: Final = "progress.json"
VALUES_SUFFIX: Final = ".values"
"""Of the file beside a part that has its rows' values for the statistics, until the folder is complete."""

STATISTICS_JSON: Final = "statistics.json"
STATISTICS_MARKDOWN: Final = "statistics.md"
_PART_NAME: Final = re.compile(r"(train|validation|test)-\d+\.parquet")
_OWNED_NAME: Final = re.compile(
    rf"({_PART_NAME.pattern}|train-\d+{re.escape(VALUES_SUFFIX)}|statistics\.(json|md)|{re.escape(MANIFEST_NAME)}"
    rf"|{re.escape(PROGRESS_NAME)})({re.escape(UNFINISHED)}[0-9a-f]+)?"
)


@dataclass
class SavedProgress:
    """The progress of a preparation.

    Attributes:
        order: the settings and source files of the preparation.
        pieces: number of finished pieces of the source.
        parts: all complete parts, also those of an unfinished piece.
        positives: number of labels of 1 in the parts, by role.
        bad_rows: bad rows of the finished pieces, by role.
    """

    order: PreparationSettings
    pieces: int = 0
    parts: list[PreparedPart] = field(default_factory=list)
    positives: dict[DataRole, int] = field(default_factory=dict)
    bad_rows: dict[DataRole, BadRows] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Return the number of rows of all parts."""
        return sum(part.rows for part in self.parts)

    def save(self, folder: Path) -> None:
        """Replace the progress file in `folder`; raises ResourceError."""
        done = _SavedState(
            order=self.order,
            pieces=self.pieces,
            parts=self.parts,
            positives=self.positives,
            bad_counts={role: bad.count for role, bad in self.bad_rows.items()},
            bad_first={
                role: [(row.path, row.line, row.why, row.text) for row in bad.first]
                for role, bad in self.bad_rows.items()
            },
        )
        write_text(folder / PROGRESS_NAME, done.model_dump_json())

    @classmethod
    def load(cls, folder: Path, max_bad_rows: int) -> SavedProgress | None:
        """Return the saved progress; None if there is none.

        Raises DataError for a file that cannot be read.
        """
        path = folder / PROGRESS_NAME
        if not path.exists():
            return None
        try:
            done = _SavedState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise DataError(
                f"cannot be read ({error})", where=str(path), remedy="start over with --force"
            ) from None
        bad = {role: BadRows(max_bad_rows) for role in done.bad_counts}
        for role, rows in bad.items():
            rows.count = done.bad_counts[role]
            rows.first = [BadRow(*row) for row in done.bad_first[role]]
        return cls(done.order, done.pieces, done.parts, done.positives, bad)

    @staticmethod
    def remove(folder: Path) -> None:
        """Remove the progress file and the values for the statistics; raises OSError."""
        for path in folder.glob(f"*{VALUES_SUFFIX}"):
            path.unlink()
        (folder / PROGRESS_NAME).unlink(missing_ok=True)

    def summary(self, role: DataRole) -> RoleSummary:
        """Return the manifest's summary of a role."""
        bad = self.bad_rows.get(role)
        return RoleSummary(
            role=role,
            rows=sum(part.rows for part in self.parts if part.role == role),
            positives=self.positives.get(role, 0),
            bad_rows=bad.count if bad else 0,
            bad_samples=tuple(str(row) for row in bad.first) if bad else (),
        )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Make the folder and lock it against other preparations.

    Raises DataError if another process holds the lock, or the folder has files that a preparation did not
    write; ResourceError if the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _check_owned(folder)
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            _lock(descriptor, folder)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise unwritable(folder, error) from error


def clear_folder(folder: Path) -> None:
    """Remove all that a preparation wrote, the manifest first.

    The last file says whose the others are, if this is interrupted. Raises OSError.
    """
    if (folder / MANIFEST_NAME).exists():
        (folder / MANIFEST_NAME).replace(folder / PROGRESS_NAME)
    for path in folder.iterdir():
        if path.name != PROGRESS_NAME:
            path.unlink()
    SavedProgress.remove(folder)


def clear_unfinished(folder: Path, parts: set[str]) -> None:
    """Remove what a killed preparation left beside its complete `parts`.

    Raises OSError.
    """
    for path in folder.iterdir():
        part = path.with_suffix(".parquet").name
        if UNFINISHED in path.name or (path.suffix in (".parquet", VALUES_SUFFIX) and part not in parts):
            path.unlink()


class _SavedState(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order: PreparationSettings
    pieces: int
    parts: list[PreparedPart]
    positives: dict[DataRole, int]
    bad_counts: dict[DataRole, int]
    bad_first: dict[DataRole, list[tuple[str, int, str, str]]]


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(
            "is being prepared by another process",
            where=str(folder),
            remedy="wait for it, or give another folder",
        ) from None


def _check_owned(folder: Path) -> None:
    # Others call their files like parts, too. A preparation saves its progress before its first part.
    begun = any((folder / name).exists() for name in (MANIFEST_NAME, PROGRESS_NAME))
    for path in sorted(folder.iterdir()):
        is_foreign = not begun and _PART_NAME.fullmatch(path.name)
        if is_foreign or not _OWNED_NAME.fullmatch(path.name) or path.is_dir():
            raise DataError(
                f"contains {path.name}, which shadowsync prepare did not write",
                where=str(folder),
                remedy=f"give another folder, or remove {path.name}",
            )
