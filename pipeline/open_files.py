"""The limit of files that a process may have open."""

from __future__ import annotations

import errno
import os
import resource
from typing import Final

from .errors import ResourceError

MOST_NEEDED: Final = 65_536
"""More than a process of the largest job needs. Some libraries look at each number up to the limit."""
OF_ZEROMQ: Final = 12
"""Files of a context with two sockets, one of them watched, and its first connection."""
_ERRNOS: Final = (errno.EMFILE, errno.ENFILE)
_TEXTS: Final = tuple(os.strerror(number) for number in _ERRNOS)


def raise_limit() -> None:
    """Raise the limit of this process and its children.

    It becomes what the system permits, up to MOST_NEEDED.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST_NEEDED if hard == resource.RLIM_INFINITY else min(hard, MOST_NEEDED)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def most_of_files(most: int, share: int) -> int:
    """Return `most`, or less if this process may open few files.

    It is at most one of every `share` files.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else min(most, soft // share)


def require_files(files: int = OF_ZEROMQ) -> None:
    """Check that this process may open `files` more.

    ZeroMQ aborts the process if it cannot open its first ones, and later tries for ever to connect. Raises
    ResourceError.
    """
    opened: list[int] = []
    try:
        for _ in range(files):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise files_error() from error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def too_many_files(error: BaseException) -> ResourceError | None:
    """Return the named error if too many open files caused this one, else None.

    Libraries have it as an OSError, as a number, or as a text in an error of their own.
    """
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "errno", None) in _ERRNOS or any(text in str(cause) for text in _TEXTS):
            return files_error()
        cause = cause.__cause__
    return None


def files_error() -> ResourceError:
    """Return the error of a process that may open too few files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ResourceError(
        f"too many open files: a process may have {soft:,} open here",
        where=f"process {os.getpid()}",
        remedy="raise the limit (`ulimit -n 4096`, in containers and services their nofile or LimitNOFILE)",
    )
