"""Service threads that own a `Listener`: one loop for all roles that answer."""

from __future__ import annotations

import logging
import queue
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import zmq

from ..pipeline.wire.messages import Failure
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .service import Service
from .tracing import TRACER

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
        self._woken_at = 0.0
        self._busy_seconds = 0.0
        self._handled_seconds = 0.0
        self._handled = 0

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread between two messages; any thread may call it.

        If the thread stops first it is never run: whoever waits for it is to be cancelled with the node.
        """
        self._commands.put(command)
        self.waker.wake()

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them. `handled_seconds` were spent on the `handled_messages`;
        in `busy_seconds`, those among them, the thread did not wait for messages."""
        return {
            "sent_bytes": self.listener.sent_bytes,
            "received_bytes": self.listener.received_bytes,
            "busy_seconds": self._busy_seconds,
            "handled_seconds": self._handled_seconds,
            "handled_messages": self._handled,
        }

    def body(self) -> None:
        """Serves until told to stop, then closes the socket."""
        poller = zmq.Poller()
        poller.register(self.listener.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        waker_only = zmq.Poller()
        waker_only.register(self.waker.fileno(), zmq.POLLIN)
        try:
            while not self.stopping:
                (poller if self.takes_more() else waker_only).poll(POLL_MILLISECONDS)
                self._woken_at = time.monotonic()
                self.waker.clear()
                while not self._commands.empty():
                    self.settle()
                    # What was taken is then not done, and a command would see rows that are half of it.
                    if self.stopping:
                        break
                    self._commands.get()()
                self.listener.serve(self._handle_or_refuse, self.takes_more)
                self.served()
                self._busy_seconds += time.monotonic() - self._woken_at
        finally:
            self.listener.close()

    @abstractmethod
    def handle(self, identity: bytes, message: Message) -> None:
        """One message; raises ValueError for what cannot be done."""

    def takes_more(self) -> bool:
        """Whether messages are to be taken; if not, whoever changes that wakes the thread."""
        return True

    def settle(self) -> None:
        """Called before a command: what was taken is to be done by then, unless the thread is `stopping`."""

    def served(self) -> None:
        """Called after what had come was handled, and when anything else woke the thread."""

    def refuse(self, identity: bytes, message: Message, error: ValueError) -> None:
        """Counts, logs and answers a message that cannot be done, where that is seen after `handle`."""
        self.listener.refused_messages += 1
        # As text: who keeps the record would keep with the error all that was made for the message.
        what = str(error)
        log.error("refused a %s from %r: %s", message.KIND, identity, what)
        self.listener.send(identity, Failure(request=getattr(message, "request", 0), what=what))

    def _handle_or_refuse(self, identity: bytes, message: Message) -> None:
        began = time.monotonic()
        try:
            self.handle(identity, message)
        except ValueError as error:
            self.refuse(identity, message, error)
        seconds = time.monotonic() - began
        self._handled += 1
        self._handled_seconds += seconds
        if TRACER.on:
            TRACER.note(message.KIND, began, seconds)
