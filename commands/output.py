"""Standard streams of commands that train: what nobody reads ends nothing."""

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
        if not isinstance(stream, _Unread):
            setattr(sys, name, cast(IO[str], _Unread(stream)))


class _Unread:
    """A text stream that drops what cannot be written.

    Everything else is the stream's own.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Empty the stream's buffer, which would be written again, also when the process ends."""
        with contextlib.suppress(OSError):
            place = self._stream.fileno()
            kept, nothing = os.dup(place), os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nothing, place)
                self._stream.flush()
            finally:
                os.dup2(kept, place)
                os.close(kept)
                os.close(nothing)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
