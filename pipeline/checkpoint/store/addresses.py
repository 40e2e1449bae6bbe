"""Stores by their addresses: the URLs that a job file and the commands take."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...config.storage_url import is_url, storage_fault
from ...errors import JobFileError
from ...jobfile.extras import require_extra
from .contract import PartTarget, Store
from .local import LocalStore
from .objects import REQUEST_SECONDS, ObjectStore, connect
from .yielding import Yielding


def root_of(url: str) -> str:
    """Return a URL without slashes at its end, for comparison."""
    return url.rstrip("/")


def open_store(url: str, request_seconds: float = REQUEST_SECONDS) -> Store:
    """Open the store at a URL; sends nothing yet.

    A request that takes longer than `request_seconds` is tried again, or fails. Raises JobFileError for a URL
    that cannot be used, and if the extra is missing; StorageError.
    """
    if fault := storage_fault(url):
        raise JobFileError("cannot be used as a storage", where=url, remedy=fault)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalStore(Path(unquote(parts.path)), makes_folder=True)
    require_extra(f"a storage at {parts.scheme}://", "storage")
    return ObjectStore(connect(root_of(url), request_seconds), root_of(url))


def part_target(directory: str, *, yields: bool = False) -> PartTarget:
    """Return where a node writes, by the path of a folder or a URL.

    The last part of the URL is the prefix. With `yields` the writing yields to training. Raises as
    `open_store`.
    """
    yielding = Yielding() if yields else None
    if not is_url(directory):
        return PartTarget(LocalStore(Path(directory)), yielding=yielding)
    root, _, prefix = directory.rpartition("/")
    return PartTarget(open_store(root), prefix, yielding)
