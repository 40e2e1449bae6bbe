"""A folder as a store of checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...atomic_file import UNFINISHED, atomic_file, sync_directory, unfinished_path, unwritable
from .contract import Hashing, ObjectMissing, StorageError, Store, Stored

_PIECE_BYTES = 4 << 20


class LocalStore(Store):
    """Objects as files of a folder; see `Store`.

    Each file appears complete (fsynced, then renamed) or not at all.

    Args:
        folder: the folder. Without `makes_folder` it must exist for names without "/".
        makes_folder: whether the folder is made when something is written.
    """

    def __init__(self, folder: Path, *, makes_folder: bool = False) -> None:
        self._folder = folder
        self._makes_folder = makes_folder
        self.where = str(folder)

    def put(self, name: str, pieces: Iterable[bytes]) -> Stored:
        """Write a file; raises ResourceError, and what the pieces raise."""
        path, hashing = self._folder / name, Hashing(pieces)
        self._make_parent(name)
        with atomic_file(path) as file:
            for piece in hashing:
                file.write(piece)
        return hashing.stored(name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists.

        The link of a whole file is the test and the act in one.
        """
        path = self._folder / name
        self._make_parent(name)
        temporary = unfinished_path(path)
        try:
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(path.parent)
        except OSError as error:
            raise unwritable(path, error) from error
        return True

    def pieces(self, name: str) -> Iterator[bytes]:
        try:
            with (self._folder / name).open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    yield piece
        except OSError as error:
            raise self._unreadable(name, error) from error

    def get_range(self, name: str, start: int, length: int) -> bytes:
        try:
            with (self._folder / name).open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise self._unreadable(name, error) from error

    def list(self) -> dict[str, int]:
        """Return the files' sizes, without unfinished ones."""
        sizes: dict[str, int] = {}
        for folder, _, files in os.walk(self._folder):
            for name in files:
                path = Path(folder, name)
                # Another process may remove it meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    if UNFINISHED not in name:
                        sizes[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return dict(sorted(sizes.items()))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, and the folders that are empty then."""
        for name in names:
            path = self._folder / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(path, error) from error
            for parent in path.parents[: name.count("/")]:
                # Another file is in it, or another process was faster.
                with contextlib.suppress(OSError):
                    parent.rmdir()

    def _make_parent(self, name: str) -> None:
        if "/" not in name and not self._makes_folder:
            # Of a checkpoint that was abandoned the folder is gone, and stays so.
            return
        parent = (self._folder / name).parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(parent, error) from error

    def _unreadable(self, name: str, error: OSError) -> StorageError:
        kind = ObjectMissing if isinstance(error, FileNotFoundError | NotADirectoryError) else StorageError
        return kind(f"cannot be read ({error.strerror})", where=str(self._folder / name))
