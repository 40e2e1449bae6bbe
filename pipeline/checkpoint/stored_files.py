"""The tensor files of a checkpoint in a store.

Headers are read by range. A file is fetched whole when its tensors are first read, since its checksum is that
of the whole.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, ResourceError
from .best_note import BestNote
from .files import DTYPES, FileEntry
from .store.contract import Hashing, ObjectMissing, Store

_REMEDY: Final = "restore the file, or use another checkpoint"
_FIRST_BYTES: Final = 64 << 10
"""Enough for the header of most files, so that one request gets it."""

_LARGEST_HEADER_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class TensorForm:
    """A tensor in a file: shape, type, offset of its first byte."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class StoredFiles:
    """The files of one checkpoint in a store, in the place of its folder.

    A fetched file has no name on this machine: it takes space where temporary files are (TMPDIR) until
    `release`, or until this object or its process ends, however that ends. Any thread may call.

    Args:
        store: the store, whose names the entries have.
        where: the checkpoint's address, for errors and to open it again.
        note: why it is the best checkpoint, if it is known as that.
    """

    def __init__(self, store: Store, where: str, note: BestNote | None = None) -> None:
        self._store = store
        self._where = where
        self.note = note
        self._lock = threading.Lock()
        self._fetched: dict[str, _Scratch] = {}

    def __str__(self) -> str:
        return self._where

    def check(self, files: Iterable[FileEntry]) -> None:
        """Raise CheckpointError for a file that is missing or has another size; StorageError."""
        sizes = self._store.list()
        for entry in files:
            size = sizes.get(entry.name)
            if size != entry.bytes:
                what = "the file is missing" if size is None else f"the file has {size} bytes"
                raise self.error(entry, f"{what}; its manifest states {entry.bytes} bytes")

    def header(self, entry: FileEntry) -> tuple[dict[str, str], dict[str, TensorForm]]:
        """Read a file's header: its metadata, and its tensors by name.

        Raises CheckpointError for one that is missing or invalid, StorageError.
        """
        try:
            first = self._store.get_range(entry.name, 0, min(_FIRST_BYTES, entry.bytes))
            length = int.from_bytes(first[:8], "little")
            if len(first) < 8 or not 0 < length <= min(_LARGEST_HEADER_BYTES, entry.bytes - 8):
                raise ValueError("it has no header")
            if 8 + length > len(first):
                first = self._store.get_range(entry.name, 0, 8 + length)
            return _parse(first[8 : 8 + length], entry.bytes)
        except ObjectMissing as error:
            raise self.error(entry, "the file is missing") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.error(entry, f"the file cannot be read ({error})") from error

    def read(self, entry: FileEntry, dtype: np.dtype[Any], count: int, offset: int) -> NDArray[Any]:
        """Return `count` numbers from an offset of a file as a new array.

        Raises CheckpointError for a file that is missing or was altered, ResourceError, StorageError.
        """
        values: NDArray[Any] = np.empty(count, dtype)
        if count:
            with self._lock:
                scratch = self._fetched.get(entry.name)
                if scratch is None:
                    scratch = self._fetched[entry.name] = self._fetch(entry)
            left = values.data.cast("B")
            # One call reads at most 2 GiB.
            while left:
                if not (done := os.preadv(scratch.descriptor, [left], offset)):
                    raise self.error(entry, "the file ends within a tensor")
                left, offset = left[done:], offset + done
        return values

    def release(self) -> None:
        """Give back the space of fetched files; later reads fetch again."""
        with self._lock:
            for scratch in self._fetched.values():
                scratch.close()
            self._fetched.clear()

    def error(self, entry: FileEntry, what: str) -> CheckpointError:
        return CheckpointError(what, where=f"{self._store.where}/{entry.name}", remedy=_REMEDY)

    def _fetch(self, entry: FileEntry) -> _Scratch:
        scratch = None
        try:
            scratch = _Scratch()
            hashing = Hashing(self._store.pieces(entry.name))
            for piece in hashing:
                scratch.write(piece)
        except ObjectMissing as error:
            raise self.error(entry, "the file is missing") from error
        except OSError as error:
            raise ResourceError(
                f"a file of {entry.bytes} bytes cannot be fetched ({error.strerror})",
                where=tempfile.gettempdir(),
                remedy="free space there, or set TMPDIR to another folder",
            ) from error
        fetched = hashing.stored(entry.name)
        if (fetched.bytes, fetched.sha256) != (entry.bytes, entry.sha256):
            raise self.error(entry, "the file was altered: its SHA-256 differs")
        return scratch


class _Scratch:
    """A file without a name, which vanishes with its descriptor."""

    def __init__(self) -> None:
        self.descriptor, path = tempfile.mkstemp(prefix="shadowsync-")
        os.unlink(path)
        self.close = weakref.finalize(self, os.close, self.descriptor)

    def write(self, piece: bytes) -> None:
        left = memoryview(piece)
        while left:
            left = left[os.write(self.descriptor, left) :]


def _parse(header: bytes, file_bytes: int) -> tuple[dict[str, str], dict[str, TensorForm]]:
    described = json.loads(header)
    metadata = {str(key): str(value) for key, value in described.pop("__metadata__", {}).items()}
    begin, end, forms = 8 + len(header), 0, {}
    for name, place in sorted(described.items(), key=lambda item: item[1]["data_offsets"][0]):
        shape, dtype = tuple(int(n) for n in place["shape"]), DTYPES[place["dtype"]]
        first, last = place["data_offsets"]
        if first != end or last - first != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
            raise ValueError(f"tensor {name} has other bytes than its shape")
        forms[name] = TensorForm(shape, dtype, begin + first)
        end = last
    if begin + end != file_bytes:
        raise ValueError(f"it has {file_bytes} bytes instead of {begin + end}")
    return metadata, forms
