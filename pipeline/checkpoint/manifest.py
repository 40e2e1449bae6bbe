"""The manifest of a checkpoint, and the atomic replacement of the last checkpoint."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..atomic_file import UNFINISHED, atomic_file, sha256_of, sync_directory, unwritable
from ..errors import CheckpointError
from ..types import first_fault
from .files import FileEntry
from .stored_files import StoredFiles

FORMAT_VERSION: Final = 3
MANIFEST_NAME: Final = "manifest.json"
DENSE: Final = "dense"
"""Role of the files of the model that a resumed run goes on with."""
AVERAGE: Final = "ema"
"""Role of the files of its moving average, if the job has one; what `ComposeModel` calls it."""
# The key of a manifest's `ledger`.
COMPLETE: Final = "complete"
Which: TypeAlias = str
"""Which checkpoint of a run: "last", "best" by validation, "auto" for the best if there is one, or "step-N":
that after N examples, see `run.keep_checkpoints`."""
_FOLDERS: Final[dict[str, str]] = {"last": "checkpoint", "best": "best"}
_STEP: Final = re.compile(r"step-(0|[1-9][0-9]*)")
_PARTIAL: Final = "checkpoint.partial-"
_GONE: Final = ".gone"
_OLD: Final = ".old"
MANIFEST_LIMIT_BYTES: Final = 256 << 20
_MOST_READS: Final = 8
_REMEDY = "use another checkpoint, or train again"
T = TypeVar("T")


class CheckpointManifest(BaseModel):
    """The contents of a checkpoint.

    The manifest is written last, so a folder with a manifest is complete. On disk it also has its own
    SHA-256.

    Attributes:
        created_at: ISO 8601 time.
        job: the resolved job file.
        model: the model that the dense tensors are: a center, a replica or a mean.
        plan: how the tables are split over embedding nodes.
        ledger: the coordinator's totals at that moment.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format_version: Annotated[int, Field(ge=FORMAT_VERSION, le=FORMAT_VERSION)] = FORMAT_VERSION
    created_at: str
    run: str
    job: dict[str, Any]
    job_digest: str
    model: str
    examples_trained: Annotated[int, Field(ge=0)]
    files: list[FileEntry]
    plan: dict[str, Any]
    ledger: dict[str, Any]

    @property
    def complete(self) -> bool:
        """Whether its job's whole input was trained; False if not known."""
        return self.ledger.get(COMPLETE) is True

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the whole manifest, which identifies the checkpoint."""
        return _digest(self.model_dump(mode="json"))


def scored_files(manifest: CheckpointManifest) -> list[FileEntry]:
    """Return the files of the model that is scored: its moving average, if there is one."""
    average = [entry for entry in manifest.files if entry.role == AVERAGE]
    return average or [entry for entry in manifest.files if entry.role == DENSE]


def begin(run_directory: Path) -> Path:
    """Make an empty folder RUN/checkpoint.partial-* for the nodes to write to.

    RUN/checkpoint stays as it is; leftovers of earlier calls are removed. The name is new each time, so that
    a late node cannot write its part of an abandoned checkpoint into the next one. Only one process of a run
    may call `begin` and `commit`, one thread at a time. Raises ResourceError.
    """
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        sweep(run_directory)
        partial = run_directory / f"{_PARTIAL}{uuid4().hex[:8]}"
        partial.mkdir()
    except OSError as error:
        raise unwritable(run_directory / _PARTIAL.rstrip("-"), error) from error
    return partial


def sweep(run_directory: Path) -> None:
    """Abandon all folders of `begin` that were not committed.

    One thread at a time may call, as for `begin`.
    """
    for leftover in run_directory.glob(f"{_PARTIAL}*"):
        abandon(leftover)


def abandon(partial: Path) -> None:
    """Remove a folder of `begin` that will not be committed.

    A node that is still writing gets an error at its next file. Anything that cannot be removed now is
    removed by the next `begin`.
    """
    gone = partial.with_name(f"{partial.name}{_GONE}")
    # Renamed first, because a late node could otherwise add files while the folder is being emptied.
    with contextlib.suppress(OSError):
        partial.rename(gone)
        partial = gone
    with contextlib.suppress(OSError):
        (partial / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(partial, ignore_errors=True)


def commit(partial: Path, manifest: CheckpointManifest) -> Path:
    """Write the manifest, and rename `partial` to RUN/checkpoint.

    `partial` is a folder of `begin`. Returns RUN/checkpoint. The old checkpoint is removed once the new one
    is in place; if the process is killed in between, `open_checkpoint` finds the old one. Raises
    CheckpointError if a file of the manifest is missing or has another size, or if the manifest is too large
    (the old checkpoint stays), ResourceError if something cannot be written.
    """
    current = partial.parent / "checkpoint"
    check_files(partial, manifest.files)
    content = manifest_content(manifest)
    with atomic_file(partial / MANIFEST_NAME) as file:
        file.write(content)
    try:
        for leftover in partial.glob(f"*{UNFINISHED}*"):
            leftover.unlink()
    except OSError as error:
        raise unwritable(current, error) from error
    put_in_place(partial, current)
    return current


def manifest_content(manifest: CheckpointManifest) -> bytes:
    """Return what is written of a manifest: JSON, with its own SHA-256.

    Raises CheckpointError for one that nobody could read again.
    """
    body = manifest.model_dump(mode="json")
    content = json.dumps({"sha256": _digest(body), **body}, indent=1, allow_nan=False).encode()
    if len(content) > MANIFEST_LIMIT_BYTES:
        raise CheckpointError(
            f"its manifest would have {len(content):,} bytes, and {MANIFEST_LIMIT_BYTES:,} can be read; a"
            " job that follows its input lists all spans so far",
            remedy="end the input, and start a new run from the last checkpoint, with start.checkpoint and a"
            " longer data.follow_seconds",
        )
    return content


def put_in_place(folder: Path, current: Path) -> None:
    """Rename `folder`, a complete checkpoint, to `current` beside it.

    An older checkpoint at `current` is removed afterwards. If the process is killed in between,
    `open_checkpoint` finds the older one. Raises ResourceError.
    """
    old = current.with_name(f"{current.name}{_OLD}")
    try:
        if current.exists():
            if old.exists():
                shutil.rmtree(old)
            current.rename(old)
        folder.rename(current)
        sync_directory(current.parent)
        if old.exists():
            shutil.rmtree(old)
    except OSError as error:
        raise unwritable(current, error) from error


def open_checkpoint(
    path: Path, *, verify: bool = False, which: Which = "last"
) -> tuple[Path, CheckpointManifest]:
    """Open a checkpoint; return its folder and its manifest.

    `path` is the folder of a checkpoint or of a run, of which `which` chooses one. Sizes are always checked.
    `verify` also checks the SHA-256 of every file, which reads them all. Raises CheckpointError for a
    checkpoint that is absent, truncated, altered, or of another format.
    """

    def checked(folder: Path, manifest: CheckpointManifest) -> tuple[Path, CheckpointManifest]:
        check_files(folder, manifest.files, verify=verify)
        return folder, manifest

    return read_checkpoint(path, checked, which=which)


def read_checkpoint(path: Path, read: Callable[[Path, CheckpointManifest], T], *, which: Which = "last") -> T:
    """Return what `read` makes of a checkpoint's folder and manifest.

    If a running job replaces the checkpoint meanwhile, `read` is called again, for the new one, so that its
    result is never of two checkpoints. `read` checks the files (`check_files`). Raises as `open_checkpoint`,
    and if the checkpoint is replaced faster than it can be read.
    """
    for _ in range(_MOST_READS):
        folder = _locate(path, which)
        opened = _identity(folder)
        try:
            result = read(folder, _parse(folder / MANIFEST_NAME))
        except CheckpointError:
            # Only a fault of a folder that is still there counts.
            if _identity(folder) == opened and _locate(path, which) == folder:
                raise
            continue
        if _identity(folder) == opened:
            return result
    raise CheckpointError(
        f"the checkpoint was replaced {_MOST_READS} times while it was being read",
        where=str(path),
        remedy="let the job write checkpoints less often, or wait until it has ended",
    )


def has_checkpoint(path: Path) -> bool:
    """Return whether a run has a last checkpoint; it may be damaged."""
    try:
        _locate(path, "last")
    except CheckpointError:
        return False
    return True


def _identity(folder: Path) -> tuple[int, int] | None:
    """What reveals a replaced folder: its manifest's inode and time; None without one."""
    try:
        status = (folder / MANIFEST_NAME).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def kept_name(examples: int) -> str:
    """Return the name of a checkpoint that is kept, which is also its `Which`."""
    return f"step-{examples}"


def step_of(name: str) -> int | None:
    """Return the N of "step-N"; None for another name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def no_such_step(which: Which, steps: Iterable[int], where: str) -> CheckpointError:
    """Return the error for a `Which` of no checkpoint, which names those that are kept."""
    known = ", ".join(kept_name(step) for step in sorted(steps))
    return CheckpointError(
        f"there is no checkpoint {which!r}",
        where=where,
        remedy=f"take one of last, best, {known}"
        if known
        else 'take "last" or "best"; a job keeps more by run.keep_checkpoints',
    )


def _locate(path: Path, which: Which) -> Path:
    if which not in ("auto", *_FOLDERS):
        return _locate_step(path, which)
    if (path / MANIFEST_NAME).is_file():
        return path
    for name in ("best", "last") if which == "auto" else (which,):
        if (folder := _complete(path / _FOLDERS[name])) is not None:
            return folder
    if path.name in _FOLDERS.values() and (folder := _complete(path)) is not None:
        return folder
    what = "there is no checkpoint" if path.is_dir() else "there is no such folder"
    remedy = _instead_of(path)
    if which == "best" and path.is_dir():
        what, remedy = "no best checkpoint was kept", 'only runs with [validation] have one; take "last"'
    raise CheckpointError(what, where=str(path), remedy=remedy)


def best_folder(run: Path) -> Path | None:
    """Return the folder of a run's best checkpoint, which may be damaged; None without one."""
    return _complete(run / _FOLDERS["best"])


def _complete(folder: Path) -> Path | None:
    """Return `folder`, or where its checkpoint is while another one is put in its place; None without one."""
    # Again at the end: the older one may have gone since.
    candidates = folder, folder.with_name(f"{folder.name}{_OLD}"), folder
    return next((place for place in candidates if (place / MANIFEST_NAME).is_file()), None)


def _locate_step(path: Path, which: Which) -> Path:
    folder = path if path.name == which else path / which
    if step_of(which) is not None and (folder / MANIFEST_NAME).is_file():
        return folder
    names = (part.name for part in path.iterdir()) if path.is_dir() else ()
    raise no_such_step(which, (step for name in names if (step := step_of(name)) is not None), str(path))


def _instead_of(path: Path) -> str:
    """Say what to give in place of a folder without a checkpoint."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        start = json.loads((path / "job.json").read_bytes())["start"]
        if start["resume"] and start["checkpoint"]:
            return f"it was stopped before its first one, and had resumed {start['checkpoint']}: give that"
    return "give the folder of a run that has written a checkpoint"


def _parse(path: Path) -> CheckpointManifest:
    try:
        if path.stat().st_size > MANIFEST_LIMIT_BYTES:
            raise CheckpointError("the manifest is too large to be one", where=str(path), remedy=_REMEDY)
        return parse_manifest(path.read_bytes(), str(path))
    except OSError as error:
        raise _unreadable(error, str(path)) from error


def _unreadable(error: Exception, where: str) -> CheckpointError:
    return CheckpointError(f"the manifest cannot be read ({error})", where=where, remedy=_REMEDY)


def parse_manifest(content: bytes, where: str) -> CheckpointManifest:
    """Parse what `manifest_content` returned.

    `where` is its place, for errors. Raises CheckpointError for one that was altered or has another format.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error, where) from error
    if not isinstance(body, dict):
        raise CheckpointError("the manifest is not a JSON object", where=where, remedy=_REMEDY)
    version = body.get("format_version")
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint has format {version}, this program reads format {FORMAT_VERSION}",
            where=where,
            remedy="use the shadowsync that wrote it, or train again",
        )
    if body.pop("sha256", None) != _digest(body):
        raise CheckpointError("the manifest was altered", where=where, remedy=_REMEDY)
    try:
        return CheckpointManifest.model_validate(body)
    except ValidationError as error:
        raise CheckpointError(f"manifest: {first_fault(error)}", where=where, remedy=_REMEDY) from error


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_files(folder: Path | StoredFiles, files: Iterable[FileEntry], *, verify: bool = False) -> None:
    """Raise CheckpointError for a file that is missing or has another size.

    With `verify`, also for one with another SHA-256; one in a store is checked when it is fetched.
    """
    if isinstance(folder, StoredFiles):
        folder.check(files)
        return
    for entry in files:
        path = folder / entry.name
        try:
            size = path.stat().st_size
        except OSError as error:
            what = f"the file is missing ({error.strerror})"
            raise CheckpointError(what, where=str(path), remedy=_REMEDY) from error
        if size != entry.bytes:
            what = f"the file has {size} bytes; its manifest states {entry.bytes}"
            raise CheckpointError(what, where=str(path), remedy=_REMEDY)
        if verify and _sha256(path) != entry.sha256:
            raise CheckpointError(
                "the file was altered: its SHA-256 differs", where=str(path), remedy=_REMEDY
            )


def _sha256(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise CheckpointError(
            f"the file cannot be read ({error.strerror})", where=str(path), remedy=_REMEDY
        ) from error
