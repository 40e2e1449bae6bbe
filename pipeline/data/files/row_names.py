"""Names of input files by which rows are drawn, wherever they lie."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from typing import Final

from ...config.data import DrawBy
from ...types import TOPIC_PREFIX
from .kafka_client import is_topic
from .paths import absolute_path, is_url

_ESCAPED: Final = re.compile(r"\[([*?[])\]")
"""What `glob.escape` makes of a character of a pattern."""
_SCHEMES: Final = {"s3a": "s3", "gcs": "gs"}
"""Other names of a file system, which fsspec gives back as its own."""


class RowNames:
    """Names of the files of some patterns; each differs from all others.

    By "path" a name is the file's path below the folder that the patterns share, as far as they have no
    wildcard. So it stays when all files move together. That of a topic's partition is TOPIC/NUMBER, with its
    brokers if the patterns have several. By "name" it is the file's name without its folder, which several
    files may have.

    No file is opened, and any thread may use it.
    """

    def __init__(self, patterns: Sequence[str], by: DrawBy) -> None:
        self._by = by
        self._brokers = {_brokers(pattern) for pattern in patterns if is_topic(pattern)}
        places = [_place(pattern) for pattern in patterns if not is_topic(pattern)]
        self._schemes = {scheme for scheme, _ in places}
        self._root = _common([_fixed(parts) for _, parts in places])

    def of(self, path: str) -> str:
        """Return the name of a file or of a topic's partition."""
        if self._by == "name":
            return file_name(path)
        if is_topic(path):
            topic = path.removeprefix(TOPIC_PREFIX)
            return topic if len(self._brokers) > 1 else topic.partition("/")[2]
        scheme, parts = _place(path)
        depth = len(self._root)
        if len(self._schemes) > 1 or scheme not in self._schemes or parts[:depth] != self._root:
            # Unique all the same.
            return "/".join((scheme, *parts))
        return "/".join(parts[depth:])


def file_name(path: str) -> str:
    """Return the last part of a path or URL."""
    return path.rpartition("/")[2]


def _brokers(topic: str) -> str:
    return topic.removeprefix(TOPIC_PREFIX).partition("/")[0]


def _place(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the file system of a path or pattern, and its parts."""
    scheme, _, rest = path.partition("://") if "://" in path else ("file", "", path)
    if not is_url(path):
        scheme, rest = "file", absolute_path(rest)
    return _SCHEMES.get(scheme, scheme), tuple(part for part in rest.split("/") if part)


def _fixed(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a pattern's folders before its first wildcard.

    One with a bracket that is not escaped counts as a wildcard even if a folder has that name: rows of runs
    that are resumed would be drawn anew.
    """
    names = []
    for part in parts[:-1]:
        name = _ESCAPED.sub(r"\1", part)
        if part != glob.escape(name):
            break
        names.append(name)
    return tuple(names)


def _common(folders: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the parts with which all of them begin."""
    if not folders:
        return ()
    depth = 0
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        depth += 1
    return folders[0][:depth]
