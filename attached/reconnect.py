"""How a loop that has lost its hub joins again."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import Final

from ..pipeline.errors import ShadowSyncError
from ..pipeline.wire.endpoints import host_of
from .node_thread import NodeThread
from .role import LoopRole

LOOK_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 2.0

Place = tuple[NodeThread[LoopRole], LoopRole]

log = logging.getLogger(__name__)


class HubReconnect:
    """A thread that looks for a hub, and takes the loop's place there.

    The loop trains meanwhile. Its thread calls all methods.

    Args:
        endpoint: where the hub was.
        join: makes a node that joins there, and returns once the loop may train; it raises ShadowSyncError,
            with nothing changed.

    Attributes:
        turn: held while an attempt is made; who holds it keeps the others' rounds off the parameters.
    """

    def __init__(self, endpoint: str, join: Callable[[], Place]) -> None:
        self._endpoint, self._join = endpoint, join
        self.turn = threading.Lock()
        self._ended = threading.Event()
        self._arrived = threading.Event()
        self._place: Place | None = None
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="reconnect", daemon=True)
        self._thread.start()

    def place(self) -> Place | None:
        """Return the new place; None while there is none."""
        return self._place if self._arrived.is_set() else None

    def wait(self, seconds: float) -> bool:
        """Wait for a new place; return whether there is one."""
        return self._arrived.wait(seconds)

    def end(self) -> None:
        """Look no longer; an attempt that is being made is waited for."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if not answers(self._endpoint):
                continue
            with self.turn:
                if self._ended.is_set():
                    return
                try:
                    self._place = self._join()
                except ShadowSyncError as error:
                    self._tell(str(error))
                else:
                    self._arrived.set()
                    return

    def _tell(self, why: str) -> None:
        if why != self._told:
            self._told = why
            log.warning("the loop cannot come back yet: %s", why)


def answers(endpoint: str) -> bool:
    """Return whether something listens there."""
    host, port = host_of(endpoint), endpoint.rpartition(":")[2]
    try:
        with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
            return True
    except OSError:
        return False
