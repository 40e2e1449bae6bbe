"""`shadowsync prepare`: from a job's files to a folder of parts.

An interrupted preparation is continued by the next call.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config.job import Job
from ..data.prepared.manifest import MANIFEST_NAME, PreparationSettings, PreparedManifest, read_prepared
from ..errors import DataError
from .folder import SavedProgress, clear_folder, clear_unfinished, lock_folder
from .run import PreparationRun, PreparationStatus, StatusCallback
from .source import TappedInput, plan_pieces, preparation_settings

__all__ = ["PreparationStatus", "Prepared", "StatusCallback", "prepare"]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Hold what a preparation gave.

    Its manifest, whether it existed already, and how many parts earlier calls wrote.
    """

    manifest: PreparedManifest
    reused: bool
    parts_before: int


def prepare(
    job: Job, folder: Path, *, force: bool = False, tell: StatusCallback = lambda _: None
) -> Prepared:
    """Write the prepared folder of a job's files.

    What an interrupted call has completed is reused.

    The same job and files give the same parts, byte for byte, however often it was interrupted. A folder
    that is complete is left as it is. Memory: some hundred MB whatever the files. One thread, which may be
    interrupted at any place.

    Args:
        job: without `data.prepared`.
        force: removes what is in the folder, of whatever job, and begins anew; nothing is removed for a job
            whose files cannot be used.
        tell: is called after each chunk of rows.

    Raises:
        DataError: the files cannot be used, have too many bad rows or changed meanwhile, or the folder is of
            another order.
        JobFileError: a schema whose expression cannot be used.
        ResourceError: something cannot be written.
    """
    source = TappedInput(job)
    with lock_folder(folder):
        pieces = plan_pieces(source.source, job)
        order = preparation_settings(job, pieces)
        if force:
            # Not before it is known that the job can be prepared.
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
        run = PreparationRun(job, folder, source, progress, tell)
        run.pieces(pieces)
        _require_unchanged(order, preparation_settings(job, pieces))
        return Prepared(run.commit(), reused=False, parts_before=before)


def _require_same(mine: dict[str, object], theirs: dict[str, object], folder: Path) -> None:
    different = [key for key in mine if mine[key] != theirs.get(key)]
    if not different:
        return
    words = {
        "hash": "the hash",
        "data": "what [data] says of a row",
        "tables": "the rows of the tables",
        "paths": "the paths of [data]",
        "span_bytes": "data.span_bytes",
        "files": "the source files, their sizes or when they were modified",
    }
    raise DataError(
        f"is of another order: {', '.join(words[key] for key in different)} differ",
        where=str(folder),
        remedy="give another folder, or --force to remove this one and begin anew",
    )


def _require_unchanged(before: PreparationSettings, now: PreparationSettings) -> None:
    changed = [file.path for file in now.files if file not in before.files]
    if changed:
        raise DataError(
            "changed while it was prepared",
            where=", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else ""),
            remedy="leave the source alone, and prepare it again with --force",
        )


def _check_parts(folder: Path, progress: SavedProgress) -> None:
    for part in progress.parts:
        path = folder / part.name
        if not path.exists() or path.stat().st_size != part.bytes:
            raise DataError(
                f"is absent or has not the {part.bytes} bytes that were written",
                where=str(path),
                remedy="begin anew, with --force",
            )
