"""Waking a thread that waits in a ZeroMQ poller."""

from __future__ import annotations

import socket


class Waker:
    """A socket pair: `wake` may be called by any thread, `fileno` and `clear` belong to the waiting one."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to register with a poller for reading."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Makes the descriptor readable; a full pair is readable already."""
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, OSError):
            return

    def clear(self) -> None:
        """Takes what `wake` wrote."""
        try:
            while self._reader.recv(4096):
                continue
        except (BlockingIOError, OSError):
            return

    def close(self) -> None:
        """Closes both ends."""
        self._reader.close()
        self._writer.close()
