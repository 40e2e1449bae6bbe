"""The checkpoints of a run, in its folder or in a storage."""

from __future__ import annotations

import logging
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import CheckpointError, ResourceError
from .best import BEST, adopt_best, copy_checkpoint, drop, drop_all, pin, promote
from .best_note import BestNote
from .manifest import MANIFEST_NAME, CheckpointManifest, begin, commit, kept_name, step_of, sweep
from .saved import best_note_at
from .storage import CheckpointStorage, split_address

log = logging.getLogger(__name__)

REPORT_FILES: Final = ("report.md", "report.json", "job.json")


class RunCheckpoints(ABC):
    """The checkpoints of one run, for its coordinator.

    One thread at a time may call `begin`, `commit` and `sweep`, and one the others. All raise ResourceError
    or StorageError.

    Attributes:
        folder: the folder on this machine that has them; None if there is none.
    """

    folder: Path | None = None

    @property
    @abstractmethod
    def best(self) -> str:
        """Location of the best checkpoint."""

    @abstractmethod
    def begin(self) -> str:
        """Return the folder or URL where nodes write their next parts."""

    @abstractmethod
    def commit(self, directory: str, manifest: CheckpointManifest) -> None:
        """Make the parts in the place of `begin` the last checkpoint.

        The one before goes then. Raises CheckpointError if a file of the manifest is missing.
        """

    @abstractmethod
    def sweep(self) -> None:
        """Abandon what was begun and not committed."""

    @abstractmethod
    def pin(self, number: int) -> str:
        """Have the last checkpoint stay until it is promoted or dropped; return its location."""

    @abstractmethod
    def promote(self, candidate: str, note: BestNote) -> None:
        """Make a pinned checkpoint the best one."""

    @abstractmethod
    def drop(self, candidate: str) -> None:
        """Unpin a checkpoint."""

    @abstractmethod
    def drop_all(self) -> None:
        """Unpin all."""

    @abstractmethod
    def adopt_best(self, start: str, fits: Callable[[BestNote], bool]) -> BestNote | None:
        """Take over the best checkpoint of the resumed run at `start`, if its note `fits`.

        Returns why it is the best, or None. Raises CheckpointError if it cannot be taken over from there.
        """

    def end(self) -> None:
        """Sweep at the end of the job."""
        self.sweep()

    def keep_report(self, folder: Path) -> None:  # noqa: B027
        """Copy the report to the checkpoints, if they are elsewhere."""


class FolderCheckpoints(RunCheckpoints):
    """Checkpoints in the run's folder; see `manifest` and `best`.

    Args:
        folder: the run's.
        keep: how many of the last checkpoints stay, see `kept`.
    """

    def __init__(self, folder: Path, keep: int = 1) -> None:
        self.folder: Path = folder
        self._keep = keep

    @property
    def best(self) -> str:
        return str(self.folder / BEST)

    def begin(self) -> str:
        """Make an empty folder for the nodes."""
        return str(begin(self.folder))

    def commit(self, directory: str, manifest: CheckpointManifest) -> None:
        """Write the manifest, and put the folder in place.

        If it cannot be kept beyond the next one, that is logged: it is whole all the same.
        """
        current = commit(Path(directory), manifest)
        if self._keep > 1:
            try:
                keep(current, manifest.examples_trained, self._keep)
            except ResourceError as error:
                log.warning("the checkpoint stays only until the next one: %s", error)

    def sweep(self) -> None:
        """Remove the folders that were not committed."""
        sweep(self.folder)

    def pin(self, number: int) -> str:
        """Link the last checkpoint to a folder of its own."""
        return str(pin(self.folder / "checkpoint", number))

    def promote(self, candidate: str, note: BestNote) -> None:
        """Rename the folder to that of the best one."""
        promote(Path(candidate), note)

    def drop(self, candidate: str) -> None:
        drop(Path(candidate))

    def drop_all(self) -> None:
        drop_all(self.folder)

    def adopt_best(self, start: str, fits: Callable[[BestNote], bool]) -> BestNote | None:
        """Link or copy it."""
        if "://" in start:
            # Nothing can be linked from there; the folder gets a best one with the next validation.
            _refuse_to_move(start, fits)
            return None
        return adopt_best(Path(start), self.folder, fits)


class StoredCheckpoints(RunCheckpoints):
    """Checkpoints in a storage. Pinning and promoting copy nothing.

    Args:
        storage: the storage.
        start: number of the checkpoint in it that the job resumes, which stays until the job ends.
        keep: how many of the last checkpoints stay.
    """

    def __init__(self, storage: CheckpointStorage, start: int | None = None, *, keep: int = 1) -> None:
        self._storage = storage
        self._keep = keep
        self._start = start
        self._last = 0
        self._pinned: dict[str, int] = {}
        # Pins come and go while another thread commits.
        self._lock = threading.Lock()

    @property
    def best(self) -> str:
        best = self._storage.best()
        return self._storage.url if best is None else self._storage.address(best[0])

    def begin(self) -> str:
        """Return the URL of a new prefix."""
        return f"{self._storage.url}/{self._storage.begin()}"

    def commit(self, directory: str, manifest: CheckpointManifest) -> None:
        """Write the manifest, and sweep."""
        self._last = self._storage.commit(directory.rpartition("/")[2], manifest)
        self.sweep()

    def sweep(self) -> None:
        """Remove what no checkpoint needs that stays."""
        with self._lock:
            kept = {*self._pinned.values()}
        self._storage.sweep(kept if self._start is None else {*kept, self._start}, newest=self._keep)

    def pin(self, number: int) -> str:  # noqa: ARG002
        """Keep the last checkpoint."""
        last = self._last or max(self._storage.numbers(), default=0)
        address = self._storage.address(last)
        with self._lock:
            self._pinned[address] = last
        return address

    def promote(self, candidate: str, note: BestNote) -> None:
        """Point to it."""
        with self._lock:
            number = self._pinned[candidate]
        self._storage.set_best(number, note)

    def drop(self, candidate: str) -> None:
        """Let the next sweep have it."""
        with self._lock:
            self._pinned.pop(candidate, None)

    def drop_all(self) -> None:
        """Let the next sweep have them all."""
        with self._lock:
            self._pinned.clear()

    def adopt_best(self, start: str, fits: Callable[[BestNote], bool]) -> BestNote | None:
        """Leave the pointer as it is, or remove it."""
        if "://" not in start or split_address(start)[0] != self._storage.url:
            _refuse_to_move(start, fits)
            return None
        best = self._storage.best()
        if best is None or fits(best[1]):
            return None if best is None else best[1]
        # Its value cannot be compared with those of this run.
        self._storage.clear_best()
        return None

    def end(self) -> None:
        """Let go of what was resumed, too."""
        self._start = None
        self.drop_all()
        self.sweep()

    def keep_report(self, folder: Path) -> None:
        """Write the report and the job as `run/NAME`; failures are logged."""
        self._storage.keep_run_files(folder / name for name in REPORT_FILES)


def _refuse_to_move(start: str, fits: Callable[[BestNote], bool]) -> None:
    """Raise CheckpointError if the best checkpoint at `start` would be taken over."""
    note = best_note_at(start)
    if note is not None and fits(note):
        raise CheckpointError(
            "it stays where it is, and is not copied from one kind of place to the other", where=start
        )


def keep(checkpoint: Path, examples: int, most: int) -> None:
    """Link RUN/checkpoint as RUN/step-N, and remove all such folders but the newest `most`.

    Only one thread of one process may call at a time. Raises ResourceError.
    """
    run = checkpoint.parent
    copy_checkpoint(checkpoint, run / kept_name(examples))
    steps = {path: step for path in run.iterdir() if (step := step_of(path.name)) is not None}
    # One without its manifest was begun by a process that has died.
    whole = [path for path in steps if (path / MANIFEST_NAME).is_file()]
    newest = sorted(whole, key=lambda path: steps[path])[-most:]
    for path in steps:
        if path not in newest:
            shutil.rmtree(path, ignore_errors=True)
