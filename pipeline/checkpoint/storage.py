"""The checkpoints of a job in a store.

Below the job's URL are:

- `parts-000042-7f3a9c11/`: files of the nodes; 7f3a9c11 is new with each try. They never change.
- `checkpoint-000042/manifest.json`: written last, and only if absent. A checkpoint with one is whole. Its
  files may be in the parts of earlier checkpoints.
- `best.json`: which checkpoint is the best by validation, and why.
- `owner.json`: the run that writes here.
- `run/`: the report of the run that ended last.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from ..errors import CheckpointError, ResourceError
from .best_note import BestNote
from .files import PARTS
from .manifest import (
    MANIFEST_LIMIT_BYTES,
    MANIFEST_NAME,
    CheckpointManifest,
    manifest_content,
    parse_manifest,
)
from .store.addresses import open_store, root_of
from .store.contract import ObjectMissing, StorageError, Store
from .store.objects import REQUEST_SECONDS
from .stored_files import StoredFiles

log = logging.getLogger(__name__)

BEST_NAME: Final = "best.json"
OWNER_NAME: Final = "owner.json"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{6,12})")
_REMEDY: Final = "give the storage of a job that has written a checkpoint"


@dataclass(frozen=True)
class Owner:
    """The run that writes to a storage.

    Attributes:
        run: name of the run.
        job_digest: digest of its job.
        first: number of its first checkpoint; those before are of the run that it resumed.
    """

    run: str
    job_digest: str
    first: int


class CheckpointStorage:
    """Checkpoints in a store, by number. Any thread may call; one process writes.

    All methods raise StorageError if the store does not answer or refuses.

    Attributes:
        url: the address, of all checkpoints.
    """

    def __init__(self, store: Store, url: str) -> None:
        self._store = store
        self.url = root_of(url)

    @classmethod
    def open(cls, url: str, request_seconds: float = REQUEST_SECONDS) -> CheckpointStorage:
        """Open the storage at a URL; same arguments and errors as `open_store`."""
        return cls(open_store(url, request_seconds), url)

    def address(self, number: int) -> str:
        """Return the URL of one checkpoint."""
        return f"{self.url}/{_name(number)}"

    def numbers(self) -> list[int]:
        """Return the numbers of the whole checkpoints, ascending."""
        return _numbers(self._store.list())

    def read(self, number: int) -> CheckpointManifest:
        """Read the manifest of a checkpoint; raises CheckpointError."""
        name = f"{_name(number)}/{MANIFEST_NAME}"
        try:
            content = self._store.get_range(name, 0, MANIFEST_LIMIT_BYTES)
        except ObjectMissing as error:
            where = self.address(number)
            raise CheckpointError("there is no checkpoint", where=where, remedy=_REMEDY) from error
        return parse_manifest(content, f"{self.url}/{name}")

    def files(self, number: int) -> StoredFiles:
        best = self.best()
        note = best[1] if best is not None and best[0] == number else None
        return StoredFiles(self._store, self.address(number), note)

    def unfinished(self) -> StoredFiles:
        """Return the place of the files of a checkpoint that has no manifest yet."""
        return StoredFiles(self._store, self.url)

    def begin(self) -> str:
        """Return the prefix for the parts of the next checkpoint."""
        latest = max(self.numbers(), default=0)
        return f"parts-{latest + 1:06d}-{uuid4().hex[:8]}"

    def commit(self, parts: str, manifest: CheckpointManifest) -> int:
        """Write the manifest of the parts of `begin`; return the checkpoint's number.

        Raises CheckpointError if a file is missing or has another size, StorageError if another process has
        written a checkpoint of this number.
        """
        match = PARTS.fullmatch(parts)
        assert match is not None
        number = int(match[1])
        self.unfinished().check(manifest.files)
        if not self._store.put_if_absent(f"{_name(number)}/{MANIFEST_NAME}", manifest_content(manifest)):
            raise StorageError(
                f"another job has written checkpoint {number} here meanwhile",
                where=self.url,
                remedy="give each job a storage of its own",
            )
        return number

    def sweep(self, keep: Collection[int], *, newest: int = 1) -> None:
        """Remove all but the `newest` checkpoints, the best one, and those to `keep`.

        Parts without a manifest go too, so nobody may be writing. If the store does not answer, that is
        logged, and the next call removes it.
        """
        try:
            names = self._store.list()
            numbers = _numbers(names)
            best = self.best()
            kept = {*keep, *numbers[-newest:], *([best[0]] if best is not None else [])}.intersection(numbers)
            needed = {entry.name for number in kept for entry in self.read(number).files}
            # The manifests first: one without its files would pass for a whole checkpoint.
            self._store.delete([f"{_name(n)}/{MANIFEST_NAME}" for n in numbers if n not in kept])
            unneeded = [name for name in names if PARTS.fullmatch(name.partition("/")[0])]
            self._store.delete([name for name in unneeded if name not in needed])
        except (StorageError, ResourceError, CheckpointError) as error:
            log.warning("old checkpoints stay for now: %s", error)

    def best(self) -> tuple[int, BestNote] | None:
        """Return the number of the best checkpoint, and why it is; None without one."""
        body = self._json(BEST_NAME)
        try:
            return None if body is None else (int(body["checkpoint"]), BestNote(**body["note"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self._altered(BEST_NAME) from error

    def set_best(self, number: int, note: BestNote) -> None:
        self._put_json(BEST_NAME, {"checkpoint": number, "note": asdict(note)})

    def clear_best(self) -> None:
        self._store.delete([BEST_NAME])

    def owner(self) -> Owner | None:
        """Return the run that writes here; None if none has."""
        body = self._json(OWNER_NAME)
        try:
            return None if body is None else Owner(**body)
        except TypeError as error:
            raise self._altered(OWNER_NAME) from error

    def claim(self, owner: Owner) -> bool:
        """Become the first owner; return whether there was none."""
        return self._store.put_if_absent(OWNER_NAME, json.dumps(asdict(owner)).encode())

    def pass_to(self, owner: Owner) -> None:
        """Replace the owner."""
        self._put_json(OWNER_NAME, asdict(owner))

    def keep_run_files(self, paths: Iterable[Path]) -> None:
        """Copy files of the run's folder; failures are logged."""
        try:
            for path in paths:
                self._store.put(f"run/{path.name}", [path.read_bytes()])
        except (StorageError, ResourceError, OSError) as error:
            log.warning("the report is not in the storage: %s", error)

    def _put_json(self, name: str, body: dict[str, Any]) -> None:
        self._store.put(name, [json.dumps(body).encode()])

    def _json(self, name: str) -> dict[str, Any] | None:
        try:
            body = json.loads(self._store.get(name))
        except ObjectMissing:
            return None
        except ValueError as error:
            raise self._altered(name) from error
        if not isinstance(body, dict):
            raise self._altered(name)
        return body

    def _altered(self, name: str) -> CheckpointError:
        return CheckpointError(
            "was altered", where=f"{self.url}/{name}", remedy="remove it, or take another storage"
        )


def split_address(url: str) -> tuple[str, int | None]:
    """Split a URL into the storage's and the number of a checkpoint, if any."""
    root, _, last = root_of(url).rpartition("/")
    match = _CHECKPOINT.fullmatch(last)
    return (root, int(match[1])) if match else (root_of(url), None)


def _name(number: int) -> str:
    return f"checkpoint-{number:06d}"


def _numbers(names: Collection[str]) -> list[int]:
    parts = (name.partition("/") for name in names)
    matches = (_CHECKPOINT.fullmatch(first) for first, _, rest in parts if rest == MANIFEST_NAME)
    return sorted(int(match[1]) for match in matches if match)
