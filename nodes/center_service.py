"""The sync node's service thread: the only one that touches its slice of the center."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any

import torch
import zmq

from ..pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, Failure
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .center_state import CenterState
from .service import Service

POLL_MILLISECONDS = 200

log = logging.getLogger(__name__)


class CenterService(Service):
    """Answers exchanges, reads and seeds, in the order in which they come."""

    def __init__(
        self, listener: Listener, state: CenterState, failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__("center", failed)
        self.state = state
        self._listener = listener
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread between two messages; any thread may call it."""
        self._commands.put(command)
        self.waker.wake()

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return {
            "applied_slices": self.state.applied_slices,
            "repeated_chunks": self.state.repeated_chunks,
            "reference_bytes": self.state.reference_bytes,
            "sent_bytes": self._listener.sent_bytes,
            "received_bytes": self._listener.received_bytes,
        }

    def body(self) -> None:
        """Serves until told to stop, then closes the socket."""
        torch.set_num_threads(1)
        poller = zmq.Poller()
        poller.register(self._listener.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        try:
            while not self.stopping:
                poller.poll(POLL_MILLISECONDS)
                self.waker.clear()
                while not self._commands.empty():
                    self._commands.get()()
                self._listener.serve(self._handle)
        finally:
            self._listener.close()

    def _handle(self, identity: bytes, message: Message) -> None:
        try:
            if isinstance(message, CenterExchange):
                for answer in self.state.exchange(identity, message):
                    self.state.sent(identity, self._listener.send(identity, answer) or [])
            elif isinstance(message, CenterRead):
                self._listener.send(identity, self.state.read(message))
            elif isinstance(message, CenterSeed):
                self._listener.send(identity, self.state.seed(message))
            else:
                raise ValueError(f"a sync node takes no {message.KIND}")
        except ValueError as error:
            self._listener.refused_messages += 1
            log.error("refused a %s from %r: %s", message.KIND, identity, error)
            request = getattr(message, "request", 0)
            self._listener.send(identity, Failure(request=request, what=str(error)))
