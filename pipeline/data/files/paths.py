"""Paths of input files: local ones, and URLs of fsspec's file systems."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from ...config.kafka import KafkaSection
from ...errors import DataError, ShadowSyncError
from .kafka_client import PLAINTEXT, is_topic
from .topic import partitions_of

_LOCAL = ("file://", "local://")
_MARK = re.compile(
    r"/(_SUCCESS|_(common_)?metadata|_(started|committed)_[^/]*|[^/]*\.crc|(_temporary|_delta_log)/.*)$"
)


def is_url(path: str) -> bool:
    """Return whether fsspec opens `path`; "file://" is a local path."""
    return "://" in path and not path.startswith(_LOCAL)


def absolute_path(pattern: str) -> str:
    """Return the pattern as an absolute path; a URL as it is."""
    return pattern if is_url(pattern) else os.path.abspath(pattern_in(os.getcwd(), pattern))


def pattern_in(folder: str, pattern: str) -> str:
    """Return a pattern that is relative to a folder as one path.

    Characters of a pattern in the name of the folder are escaped, unless the path is a plain one.
    """
    path = os.path.join(folder, pattern)
    return path if is_plain(path, pattern) else os.path.join(glob.escape(folder), pattern)


def is_plain(path: str, pattern: str) -> bool:
    """Return whether the end of a path is no pattern: without wildcards, or the name of what is there."""
    return not glob.has_magic(pattern) or os.path.exists(path)


def file_identity(path: str) -> str:
    """Return a text that is the same for every name of a file.

    The text is the path with links resolved, or the URL as it is.
    """
    return path if is_url(path) else os.path.realpath(path)


def linked_identity(path: str) -> str:
    """Return a text that is the same for every name of a file now, also of hard links; see `file_identity`.

    It changes with the first link. A file that is gone has that of its path.
    """
    if not is_url(path) and os.path.exists(path) and (status := os.stat(path)).st_nlink > 1:
        return f"{status.st_dev}:{status.st_ino}"
    return file_identity(path)


def suffix_of(path: str) -> str:
    """Return a file's last suffix in lower case, such as ".gz"."""
    name = urlsplit(path).path if is_url(path) else path
    return PurePosixPath(name).suffix.lower()


@contextmanager
def read_errors(path: str) -> Iterator[None]:
    """Turn the errors of reading `path` into a DataError.

    For a local path these are OSError and the errors of Arrow. File systems of fsspec raise errors of any
    class, so for a URL every error becomes a DataError. The package's own errors pass through.
    """
    try:
        yield
    except ShadowSyncError:
        raise
    except Exception as error:
        if not (is_url(path) or isinstance(error, OSError | pa.ArrowException)):
            raise
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(
            f"cannot be read ({why})", where=path, remedy="check its path and permissions, or copy it anew"
        ) from (error if is_url(path) else None)


@contextmanager
def open_for_arrow(path: str) -> Iterator[Any]:
    """Yield what Arrow opens: a path, or a URL's open file."""
    if not is_url(path):
        yield path
        return
    system, name = _system(path)
    with system.open(name, "rb") as file:
        yield file


@contextmanager
def open_raw(path: str, *, forward: bool = False) -> Iterator[Any]:
    """Open a file to read bytes with `read`, `readinto` and `seek`.

    With `forward` a URL of a web server can only be read from start to end, which every server supports.
    """
    if not is_url(path):
        with open(path, "rb", buffering=0) as file:
            yield file
        return
    system, name = _system(path)
    streamed = forward and urlsplit(path).scheme in ("http", "https")
    with system.open(name, "rb", **({"block_size": 0} if streamed else {})) as file:
        yield file


def file_size_bytes(path: str) -> int | None:
    """Return a file's size in bytes; None if it is unknown."""
    if not is_url(path):
        return os.path.getsize(path)
    system, name = _system(path)
    size: int | None = system.size(name)
    return size


def can_seek(path: str) -> bool:
    """Return whether reading can start in the middle of the file."""
    if not is_url(path):
        return True
    with read_errors(path), open_raw(path) as file:
        if not file.seekable():
            return False
        try:
            # A web server may answer a range request with the whole file, which fsspec refuses on reading.
            file.seek(1)
            file.read(1)
        except (ValueError, NotImplementedError):
            return False
        return True


def match_files(
    patterns: Sequence[str], kafka: KafkaSection = PLAINTEXT, *, may_be_none: bool = False
) -> list[str]:
    """Return the files that any pattern matches, sorted, each once.

    Raises DataError for a pattern that matches none, unless there `may_be_none`, and as `partitions_of`.
    """
    by_identity: dict[str, str] = {}
    for pattern in patterns:
        try:
            by_identity.update(_matching(pattern, kafka))
        except NoFileMatches:
            if not may_be_none:
                raise
    return [by_identity[key] for key in sorted(by_identity)]


class EmptyFile(DataError):
    """A file without a row, whose text says what it `has`."""

    def __init__(self, path: str, has: str) -> None:
        super().__init__(has, where=path, remedy="leave it out, or fill it")


class NoFileMatches(DataError):
    """A pattern matches no file."""


def _matching(pattern: str, kafka: KafkaSection) -> dict[str, str]:
    """Return the files that match, by absolute path or URL."""
    if is_topic(pattern):
        return {path: path for path in partitions_of(pattern, kafka)}
    if is_url(pattern):
        return _matching_urls(pattern)
    local = pattern.split("://", 1)[1] if pattern.startswith(_LOCAL) else pattern
    # The name of a file may contain characters of a pattern.
    names = [local] if os.path.exists(local) else without_marks(glob.glob(local, recursive=True))
    files = [name for name in names if os.path.isfile(name)]
    if not files:
        raise _no_files(pattern, os.path.isdir(local))
    return {os.path.abspath(name): name for name in files}


def without_marks(names: Iterable[str]) -> list[str]:
    """Leave out what Spark, Hive and Databricks write beside the data."""
    return [name for name in names if not _MARK.search(name)]


def _matching_urls(pattern: str) -> dict[str, str]:
    """Return the URLs that match, by their file system's own form."""
    with read_errors(pattern):
        system, name = _system(pattern)
        if system.exists(name):
            if system.isdir(name) and not system.isfile(name):
                raise _no_files(pattern, folder=True)
            return {pattern if "::" in pattern else str(system.unstrip_protocol(name)): pattern}
        if "::" in pattern or not glob.has_magic(name):
            raise _no_files(pattern, folder=False)
        urls = [str(system.unstrip_protocol(match)) for match in without_marks(system.glob(name))]
        if not urls:
            raise _no_files(pattern, folder=False)
        return {url: url for url in urls}


def _no_files(pattern: str, folder: bool) -> DataError:
    if folder:
        return DataError("is a folder", where=pattern, remedy="name its files, for example with /*")
    return NoFileMatches("matches no file", where=pattern, remedy="check the path or pattern")


def _system(path: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, name = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise DataError(
            f"the file system of this URL cannot be used ({error})",
            where=path,
            remedy="install the package that the message names, or copy the file to this machine",
        ) from error
    return system, str(name)
