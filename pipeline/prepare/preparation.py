"""`shadowsync prepare`: a folder of parts from a job's files.

The next call continues an interrupted preparation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.job import Job
from ..data.files.paths import file_identity
from ..data.prepared.manifest import MANIFEST_NAME, PreparationSettings, PreparedManifest, read_prepared
from ..errors import DataError
from .folder import VALUES_SUFFIX, SavedProgress, clear_folder, clear_unfinished, lock_folder
from .run import PreparationRun, PreparationStatus, StatusCallback
from .source import ObservedInput, plan_pieces, preparation_settings

__all__ = ["PreparationStatus", "Prepared", "StatusCallback", "prepare_folder"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """The result of a preparation.

    Attributes:
        manifest: the manifest of the folder.
        reused: whether the folder was complete already.
        parts_before: number of parts that earlier calls wrote.
    """

    manifest: PreparedManifest
    reused: bool
    parts_before: int


def prepare_folder(
    job: Job, folder: Path, *, force: bool = False, on_progress: StatusCallback = lambda _: None
) -> Prepared:
    """Write the prepared folder of a job's files.

    Parts that an interrupted call completed are reused. The same job and files give the same parts, byte for
    byte, however often the preparation was interrupted. A complete folder is left as it is. The preparation
    takes some hundred MB of memory for files of any size, and one thread, which may be interrupted anywhere.

    Args:
        job: a job without `data.prepared`.
        folder: the folder to write.
        force: remove what a preparation of any job left in the folder, and start over. Nothing is removed if
            the job's files cannot be used.
        on_progress: called after each chunk of rows, on this thread.

    Raises:
        DataError: the files cannot be used, have too many bad rows or changed meanwhile, or the folder was
            prepared with other settings.
        JobFileError: the label's expression cannot be used.
        ResourceError: something cannot be written.
    """
    source = ObservedInput(job)
    with lock_folder(folder):
        pieces = plan_pieces(source.source, job)
        order = preparation_settings(job, pieces)
        _require_apart(order, folder)
        if force:
            # Only here, after the job's files have been checked.
            clear_folder(folder)
        if (folder / MANIFEST_NAME).exists():
            manifest = read_prepared(str(folder))
            _require_same(order.model_dump(), manifest.order.model_dump(), folder)
            SavedProgress.remove(folder)
            return Prepared(manifest, reused=True, parts_before=len(manifest.parts))
        progress = SavedProgress.load(folder, job.data.max_bad_rows) or SavedProgress(order)
        _require_same(order.model_dump(), progress.order.model_dump(), folder)
        before = len(progress.parts)
        clear_unfinished(folder, {part.name for part in progress.parts})
        _check_parts(folder, progress)
        run = PreparationRun(job, folder, source, progress, on_progress)
        run.pieces(pieces)
        _require_unchanged(order, preparation_settings(job, pieces))
        return Prepared(run.commit(), reused=False, parts_before=before)


def _require_apart(order: PreparationSettings, folder: Path) -> None:
    """Raise DataError if a source file is in the folder: it would be removed."""
    for file in order.files:
        if Path(file_identity(file.path)).parent == folder.resolve():
            raise DataError(
                f"contains the source file {Path(file.path).name}",
                where=str(folder),
                remedy="give another folder",
            )


def _require_same(mine: dict[str, object], theirs: dict[str, object], folder: Path) -> None:
    words = {
        "hash": "the hash",
        "data": "the settings of [data] that define a row",
        "tables": "the rows of the tables",
        "growing": "which tables grow",
        "paths": "the paths of [data]",
        "span_bytes": "data.span_bytes",
        "files": "the source files, their sizes or when they were modified",
    }
    different = [key for key in words if mine.get(key) != theirs.get(key)]
    if not different:
        return
    raise DataError(
        f"was prepared with other settings; what differs: {', '.join(words[key] for key in different)}",
        where=str(folder),
        remedy="give another folder, or --force to remove this one and start over",
    )


def _require_unchanged(before: PreparationSettings, now: PreparationSettings) -> None:
    changed = [file.path for file in now.files if file not in before.files]
    if changed:
        raise DataError(
            "changed while it was prepared",
            where=", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else ""),
            remedy="do not change the source meanwhile, and prepare it again with --force",
        )


def _check_parts(folder: Path, progress: SavedProgress) -> None:
    for part in progress.parts:
        path = folder / part.name
        if not path.exists() or path.stat().st_size != part.bytes:
            raise DataError(
                f"is missing, or does not have the {part.bytes} bytes that were written",
                where=str(path),
                remedy="start over with --force",
            )
        values = path.with_suffix(VALUES_SUFFIX)
        if part.role == "train" and part.rows and not values.exists():
            raise DataError("is missing", where=str(values), remedy="start over with --force")
