"""Whether every byte of a prepared folder is what was written."""

from __future__ import annotations

import hashlib

from ...errors import DataError
from ..paths import opened_raw, reading, size_of
from .manifest import PreparedManifest, in_folder, read_prepared
from .part_reader import REMEDY

_PIECE_BYTES = 1 << 22


def verify_folder(folder: str) -> PreparedManifest:
    """Reads all parts once, and compares size and SHA-256 with the manifest, which it gives.

    Raises DataError for the first part that differs, is absent or cannot be read.
    """
    manifest = read_prepared(folder)
    for part in manifest.parts:
        path = in_folder(folder, part.name)
        digest = hashlib.sha256()
        with reading(path), opened_raw(path) as file:
            size = size_of(path)
            while piece := file.read(_PIECE_BYTES):
                digest.update(piece)
        if size is not None and size != part.bytes:
            raise DataError(f"has {size} bytes, its manifest says {part.bytes}", where=path, remedy=REMEDY)
        if digest.hexdigest() != part.sha256:
            raise DataError("was altered: its SHA-256 is not the manifest's", where=path, remedy=REMEDY)
    return manifest
