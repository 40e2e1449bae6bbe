"""A user's own class by name: "package.module:Class", or "file.py:Class"."""

from __future__ import annotations

from typing import Any

from ...class_loader import NoSuchFile, is_file, load_module
from ..errors import JobFileError

_WHERE = "model.name"


def load_own(name: str) -> Any:
    """What the name stands for; raises JobFileError. A file is imported once in a process, by its path."""
    where, _, wanted = name.rpartition(":")
    try:
        return getattr(load_module(where), wanted)
    except NoSuchFile as error:
        raise JobFileError(
            f"{name!r} given; there is no file {where}", where=_WHERE, remedy="give the path of a Python file"
        ) from error
    except Exception as error:
        raise JobFileError(
            f"{name!r} cannot be imported ({type(error).__name__}: {error})",
            where=_WHERE,
            remedy="look at the file"
            if is_file(where)
            else "install the package that holds it, or set PYTHONPATH to its folder",
        ) from error
