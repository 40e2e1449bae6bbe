"""Service threads that own a `Listener`: one loop for all roles that answer."""

from __future__ import annotations

import logging
import queue
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import zmq

from ..pipeline.wire.messages import Failure
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .service import Service

POLL_MILLISECONDS = 200

log = logging.getLogger(__name__)


class ListeningService(Service):
    """Handles messages in the order in which they come, and between them what other threads ask for.

    What `handle` refuses with a ValueError is counted, logged with its sender, and answered with `Failure`.

    Args:
        listener: the bound socket; owned by this thread from `start` on, and closed at its end.
    """

    def __init__(self, name: str, listener: Listener, failed: Callable[[BaseException], None]) -> None:
        super().__init__(name, failed)
        self.listener = listener
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread between two messages; any thread may call it."""
        self._commands.put(command)
        self.waker.wake()

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return {"sent_bytes": self.listener.sent_bytes, "received_bytes": self.listener.received_bytes}

    def body(self) -> None:
        """Serves until told to stop, then closes the socket."""
        poller = zmq.Poller()
        poller.register(self.listener.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        try:
            while not self.stopping:
                poller.poll(POLL_MILLISECONDS)
                self.waker.clear()
                while not self._commands.empty():
                    self._commands.get()()
                self.listener.serve(self._handle_or_refuse)
                self.served()
        finally:
            self.listener.close()

    @abstractmethod
    def handle(self, identity: bytes, message: Message) -> None:
        """One message; raises ValueError for what cannot be done."""

    def served(self) -> None:
        """Called after what had come was handled, and when anything else woke the thread."""

    def _handle_or_refuse(self, identity: bytes, message: Message) -> None:
        try:
            self.handle(identity, message)
        except ValueError as error:
            self.listener.refused_messages += 1
            log.error("refused a %s from %r: %s", message.KIND, identity, error)
            request = getattr(message, "request", 0)
            self.listener.send(identity, Failure(request=request, what=str(error)))
