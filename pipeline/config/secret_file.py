"""Secrets in files: keys, tokens and passwords."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from ..errors import JobFileError

_OTHERS: Final = 0o077


def read_secret(path: Path, what: str, remedy: str, *, encoding: Literal["ascii", "utf-8"] = "ascii") -> str:
    """Read a secret, a text, from a file.

    Raises JobFileError, with `what` as its subject, if the file cannot be read, or if it belongs to this user
    and others have any right to it. The rights are not checked if this user cannot change them: on a file of
    another user, or on a read-only mount, which is usual for secrets.
    """
    try:
        status = path.stat()
        text = path.read_text(encoding=encoding)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not {encoding.upper()} text"
        raise JobFileError(f"the {what} cannot be read ({why})", where=str(path), remedy=remedy) from error
    changeable = status.st_uid == os.getuid() and not os.statvfs(path).f_flag & os.ST_RDONLY
    if status.st_mode & _OTHERS and changeable:
        raise JobFileError(
            f"others can read the {what}", where=str(path), remedy=f"chmod 600 {path}, or make a new one"
        )
    return text
