"""The embedding node's service thread: the only reader and writer of its rows."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Any

import torch
import zmq

from ..pipeline.embedding.applied import AppliedBatches
from ..pipeline.embedding.store import ShardStore
from ..pipeline.wire.messages import Failure, Lookup, Push, Pushed, Vectors
from ..pipeline.wire.pool import BufferPool
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .service import Service

POLL_MILLISECONDS = 200

log = logging.getLogger(__name__)


class ShardService(Service):
    """Answers lookups and applies pushes, in the order in which they come.

    A push that was applied before (contract 7: it has the id of its batch) is answered again and changes
    nothing.
    """

    def __init__(
        self, listener: Listener, store: ShardStore, failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__("shard", failed)
        self.store = store
        self.applied = AppliedBatches()
        self._listener = listener
        self._pool = BufferPool()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._pushes = 0
        self._lookups = 0
        self._looked_up_rows = 0
        self._staleness_sum = 0
        self._staleness_max = 0

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread between two messages; any thread may call it."""
        self._commands.put(command)
        self.waker.wake()

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return {
            "applied_batches": len(self.applied),
            "repeated_pushes": self.applied.repeats,
            "lookups": self._lookups,
            "looked_up_rows": self._looked_up_rows,
            "staleness_sum": self._staleness_sum,
            "staleness_max": self._staleness_max,
            "staleness_count": self._pushes,
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
            if isinstance(message, Lookup):
                self._look_up(identity, message)
            elif isinstance(message, Push):
                self._push(identity, message)
            else:
                raise ValueError(f"an embedding node takes no {message.KIND}")
        except ValueError as error:
            self._listener.refused_messages += 1
            log.error("refused a %s from %r: %s", message.KIND, identity, error)
            request = getattr(message, "request", 0)
            self._listener.send(identity, Failure(request=request, what=str(error)))

    def _look_up(self, identity: bytes, message: Lookup) -> None:
        rows = len(message.rows)
        buffer = self._pool.take(rows * self.store.dim)
        values = buffer.reshape(rows, self.store.dim)
        trackers = None
        try:
            self.store.lookup(message.rows, values)
            answer = Vectors(request=message.request, version=self._pushes, values=values)
            trackers = self._listener.send(identity, answer)
        finally:
            self._pool.sent(buffer, trackers or [])
        self._lookups += 1
        self._looked_up_rows += rows

    def _push(self, identity: bytes, message: Push) -> None:
        if message.gradients.shape != (len(message.rows), self.store.dim):
            raise ValueError(
                f"gradients {list(message.gradients.shape)} for {len(message.rows)} rows of {self.store.dim}"
            )
        repeated = message.id in self.applied
        if repeated:
            self.applied.add(message.id)
        else:
            self.store.apply(message.rows, message.gradients)
            self.applied.add(message.id)
            staleness = max(0, self._pushes - message.version)
            self._staleness_sum += staleness
            self._staleness_max = max(self._staleness_max, staleness)
            self._pushes += 1
        self._listener.send(identity, Pushed(request=message.request, repeated=repeated))
