"""Standard streams that nobody reads, or that cannot be written."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, Any, cast


def open_missing_streams() -> None:
    """Have standard input, output and error, also if the process was started without.

    The next file or socket that is opened would get the number of one that is missing, and what is printed.
    """
    for place, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(place)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(place, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def ignore_unread_output() -> None:
    """Drop from now on what standard output and error cannot take.

    They may be closed pipes, or files on a full disk.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is not _Unread:
            inner = stream.inner if isinstance(stream, _Unread) else stream
            setattr(sys, name, cast(IO[str], _Unread(inner)))


def name_full_output() -> None:
    """Raise ResourceError from now on if standard output cannot take what a command prints.

    A pipe that nobody reads any more ends the command, as it does any other.
    """
    if not isinstance(sys.stdout, _Unread):
        sys.stdout = cast(IO[str], _Named(sys.stdout))


class _Unread:
    """A text stream that drops what cannot be written.

    Everything else is the stream's own.
    """

    def __init__(self, stream: IO[str]) -> None:
        self.inner = stream

    def write(self, text: str) -> int:
        try:
            return self.inner.write(text)
        except OSError as error:
            self._drop()
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            self.inner.flush()
        except OSError as error:
            self._drop()
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """Say that something was dropped."""

    def _drop(self) -> None:
        """Empty the stream's buffer, which would be written again, also when the process ends."""
        with contextlib.suppress(OSError):
            place = self.inner.fileno()
            kept, nothing = os.dup(place), os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nothing, place)
                self.inner.flush()
            finally:
                os.dup2(kept, place)
                os.close(kept)
                os.close(nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Named(_Unread):
    """A text stream that raises ResourceError if it cannot be written."""

    def _fail(self, error: OSError) -> None:
        from ..pipeline.errors import ResourceError

        if isinstance(error, BrokenPipeError):
            raise error
        raise ResourceError(
            f"cannot be written ({error.strerror})", where="standard output", remedy="free its disk"
        ) from error
