"""A service thread that owns a `Listener` and waits for its messages in a poller."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import TypeVar

import zmq

from ...pipeline.wire.sockets import Listener
from .message_handler import MessageHandler
from .thread_bridge import ThreadBridge
from .threads import Service

POLL_MILLISECONDS = 200

T = TypeVar("T")


class ListeningService(MessageHandler, Service):
    """Handles messages in the order in which they come, and between them what other threads ask for.

    For work that holds its thread; what does not is a `ListeningLoop`.

    Args:
        listener: the bound socket; owned by this thread from `start` on, and closed at its end.
    """

    def __init__(self, name: str, listener: Listener, failed: Callable[[BaseException], None]) -> None:
        MessageHandler.__init__(self, listener)
        Service.__init__(self, name, failed)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread between two messages; any thread may call it.

        If the thread stops first it is never run: whoever waits for it is to be cancelled with the node.
        """
        self._commands.put(command)
        self.waker.wake()

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` on this thread between two messages, and gives what it gives; for a loop's thread."""
        bridge = ThreadBridge[T]()
        self.call(lambda: bridge.run(work))
        return await bridge.result

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
                woken_at = time.monotonic()
                self.waker.clear()
                while not self._commands.empty():
                    self.settle()
                    # What was taken is then not done, and a command would see rows that are half of it.
                    if self.stopping:
                        break
                    self._commands.get()()
                self._take(woken_at)
        finally:
            self.listener.close()

    def settle(self) -> None:
        """Called before a command: what was taken is to be done by then, unless the thread is `stopping`."""
