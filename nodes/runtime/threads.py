"""Threads that own sockets: they stop when told, and a failure of theirs fails the node."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

from ...pipeline.wire.waker import Waker

log = logging.getLogger(__name__)


class Service(ABC):
    """One thread with a waker. `body` runs on it and returns when `stopping` is set.

    Args:
        name: the thread's name.
        failed: called on the thread with whatever exception ends it.
    """

    def __init__(self, name: str, failed: Callable[[BaseException], None]) -> None:
        self.waker = Waker()
        self._stop = threading.Event()
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def stopping(self) -> bool:
        """Whether the thread should return soon."""
        return self._stop.is_set()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Tells the thread to return; any thread may call it."""
        self._stop.set()
        self.waker.wake()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the thread; whether it has returned, or never ran. Then the waker is closed."""
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            return False
        self.waker.close()
        return True

    @abstractmethod
    def body(self) -> None:
        """What the thread does."""

    def _run(self) -> None:
        try:
            self.body()
        except Exception as error:  # noqa: BLE001 - whatever it is, the node fails with it
            self._failed(error)
        finally:
            log.debug("thread %s ends", threading.current_thread().name)
