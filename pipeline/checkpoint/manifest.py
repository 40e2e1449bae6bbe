"""The manifest of a checkpoint, and the two renames that make a checkpoint whole or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import CheckpointError
from .files import FileEntry
from .whole_file import UNFINISHED, sync_directory, unwritable, whole_file

FORMAT_VERSION: Final = 1
MANIFEST_NAME: Final = "manifest.json"
_MANIFEST_LIMIT_BYTES: Final = 256 << 20
_REMEDY = "use another checkpoint, or train again"


class CheckpointManifest(BaseModel):
    """What a checkpoint holds; written last, so a folder with a manifest is whole.

    `created_at` is ISO 8601; `job` the resolved job file; `model` says which model the dense tensors are
    (a center, a replica, a mean); `plan` how the tables are split over embedding nodes; `ledger` the
    coordinator's books at that moment. The manifest on disk has its own SHA-256 beside these.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    format_version: Annotated[int, Field(ge=1, le=FORMAT_VERSION)] = FORMAT_VERSION
    created_at: str
    run: str
    job: dict[str, Any]
    job_digest: str
    model: str
    examples_trained: Annotated[int, Field(ge=0)]
    files: list[FileEntry]
    plan: dict[str, Any]
    ledger: dict[str, Any]


def begin(run_directory: Path) -> Path:
    """Makes RUN/checkpoint.partial, empty, for the nodes to write into; RUN/checkpoint stays as it is.

    One process of a run may call this and `commit`, one thread at a time. Raises ResourceError.
    """
    partial, _, _ = _places(run_directory)
    try:
        (partial / MANIFEST_NAME).unlink(missing_ok=True)
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as error:
        raise unwritable(partial, error) from error
    return partial


def commit(run_directory: Path, manifest: CheckpointManifest) -> Path:
    """Writes the manifest into RUN/checkpoint.partial and renames that to RUN/checkpoint, which it returns.

    The old checkpoint goes when the new one is in its place; killed between the two, `open_checkpoint`
    still finds the old one. Raises CheckpointError if a file that the manifest names is not there in its
    size (the old checkpoint stays), ResourceError if something cannot be written.
    """
    partial, current, old = _places(run_directory)
    _check_files(partial, manifest, verify=False)
    body = manifest.model_dump(mode="json")
    text = json.dumps({"sha256": _digest(body), **body}, indent=1, allow_nan=False)
    with whole_file(partial / MANIFEST_NAME) as file:
        file.write(text.encode())
    try:
        for leftover in partial.glob(f"*{UNFINISHED}*"):
            leftover.unlink()
        if current.exists():
            if old.exists():
                shutil.rmtree(old)
            current.rename(old)
        partial.rename(current)
        sync_directory(run_directory)
        if old.exists():
            shutil.rmtree(old)
    except OSError as error:
        raise unwritable(current, error) from error
    return current


def open_checkpoint(path: Path, *, verify: bool = False) -> tuple[Path, CheckpointManifest]:
    """The folder and the manifest of a checkpoint; `path` is a run's folder or the checkpoint's own.

    Sizes are always checked; with `verify` the SHA-256 of every file too, which reads them all. Raises
    CheckpointError for a checkpoint that is absent, truncated, altered, or of a newer format.
    """
    folder = _locate(path)
    manifest = _parse(folder / MANIFEST_NAME)
    _check_files(folder, manifest, verify=verify)
    return folder, manifest


def _places(run_directory: Path) -> tuple[Path, Path, Path]:
    """Of a run: the folder being written, the checkpoint, and the one before it."""
    return (
        run_directory / "checkpoint.partial",
        run_directory / "checkpoint",
        run_directory / "checkpoint.old",
    )


def _locate(path: Path) -> Path:
    # Whoever names the checkpoint itself also gets the old one while the new one is being put in its place.
    candidates = [path, *_places(path)[1:]]
    if path.name == "checkpoint":
        candidates.append(path.with_name("checkpoint.old"))
    for folder in candidates:
        if (folder / MANIFEST_NAME).is_file():
            return folder
    what = "there is no checkpoint" if path.is_dir() else "there is no such folder"
    raise CheckpointError(
        what, where=str(path), remedy="give the folder of a run that has written a checkpoint"
    )


def _parse(path: Path) -> CheckpointManifest:
    try:
        if path.stat().st_size > _MANIFEST_LIMIT_BYTES:
            raise CheckpointError("the manifest is too large to be one", where=str(path), remedy=_REMEDY)
        body = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the manifest cannot be read ({error})", where=str(path), remedy=_REMEDY
        ) from error
    if not isinstance(body, dict):
        raise CheckpointError("the manifest is not a JSON object", where=str(path), remedy=_REMEDY)
    version = body.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"the checkpoint has format {version}, this program knows formats up to {FORMAT_VERSION}",
            where=str(path),
            remedy="use a newer shadowsync",
        )
    if body.pop("sha256", None) != _digest(body):
        raise CheckpointError("the manifest was altered", where=str(path), remedy=_REMEDY)
    try:
        return CheckpointManifest.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"manifest: {where}: {first['msg']}", where=str(path), remedy=_REMEDY
        ) from error


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _check_files(folder: Path, manifest: CheckpointManifest, *, verify: bool) -> None:
    for entry in manifest.files:
        path = folder / entry.name
        try:
            size = path.stat().st_size
        except OSError as error:
            what = f"the file is missing ({error.strerror})"
            raise CheckpointError(what, where=str(path), remedy=_REMEDY) from error
        if size != entry.bytes:
            what = f"the file has {size} bytes, its manifest says {entry.bytes}"
            raise CheckpointError(what, where=str(path), remedy=_REMEDY)
        if verify and _sha256(path) != entry.sha256:
            raise CheckpointError(
                "the file was altered: its SHA-256 differs", where=str(path), remedy=_REMEDY
            )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(
            f"the file cannot be read ({error.strerror})", where=str(path), remedy=_REMEDY
        ) from error
