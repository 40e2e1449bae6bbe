"""The contract of a store of checkpoints.

It is what a folder and a bucket of objects have in common. Nothing is ever renamed or linked, since a bucket
knows neither.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...errors import ExitCode, ShadowSyncError
from .yielding import Yielding


class StorageError(ShadowSyncError):
    """A storage of checkpoints does not answer, or refuses."""

    exit_code = ExitCode.RESOURCES


class ObjectMissing(StorageError):
    """A storage has no object of this name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What `Store.put` has written: name, size in bytes, hex SHA-256."""

    name: str
    bytes: int
    sha256: str


class Hashing:
    """Pieces that are counted and hashed as they go by."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self._digest = hashlib.sha256()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self._digest.update(piece)
            self._bytes += len(piece)
            yield piece

    def stored(self, name: str) -> Stored:
        """Return what went by, as the object `name`."""
        return Stored(name, self._bytes, self._digest.hexdigest())


class Store(ABC):
    """Objects by name, below one address.

    A name is parts with "/" between them. An object is there whole or not at all, and readers see it as soon
    as it is. Any thread may call; several processes may use the same address. All methods raise
    StorageError, or ResourceError of a folder, if the place does not answer or refuses.

    Attributes:
        where: the address, for errors.
    """

    where: str

    @abstractmethod
    def put(self, name: str, pieces: Iterable[bytes]) -> Stored:
        """Write an object piece by piece, in place of an older one.

        Memory holds a few pieces at a time. If iterating the pieces raises, nothing is written and the
        exception goes through.
        """

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one; return whether it was written.

        Of several callers at once exactly one gets True.
        """

    @abstractmethod
    def pieces(self, name: str) -> Iterator[bytes]:
        """Read an object piece by piece; raises ObjectMissing."""

    @abstractmethod
    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Read up to `length` bytes from `start` on, which lies inside; raises ObjectMissing."""

    @abstractmethod
    def list(self) -> dict[str, int]:
        """Return the sizes in bytes of all objects, by name in ascending order."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; names without one are passed over."""

    def get(self, name: str) -> bytes:
        """Read a whole object; raises ObjectMissing."""
        return b"".join(self.pieces(name))


@dataclass(frozen=True, slots=True)
class PartTarget:
    """A prefix of a store, where a node writes; "" is the root.

    With `yielding` its writing yields to training.
    """

    store: Store
    prefix: str = ""
    yielding: Yielding | None = None

    def put(self, name: str, pieces: Iterable[bytes]) -> Stored:
        """Write an object below the prefix.

        Its name in the result has the prefix. Raises as `Store.put`.
        """
        if self.yielding is not None:
            pieces = self.yielding.between(pieces)
        return self.store.put(f"{self.prefix}/{name}" if self.prefix else name, pieces)
