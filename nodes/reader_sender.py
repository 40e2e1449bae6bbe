"""The reader's sending thread: owns the ROUTER that workers connect to, and the deliveries."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from ..pipeline.data.batch import BatchId
from ..pipeline.wire.messages import Credit, Failure
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .delivery_state import TRAINING, DeliveryState, token_of
from .reader_feed import AHEAD_BATCHES, Fed, SpanTotals
from .service import Service

POLL_MILLISECONDS = 200

log = logging.getLogger(__name__)


class Sender(Service):
    """Hands batches to the workers that have credit.

    Args:
        listener: the bound socket; owned by this thread from `start` on.
        source: the parser's queue.
        totals: called on this thread with the totals of each span, after its last batch was taken.
    """

    def __init__(
        self,
        listener: Listener,
        source: queue.Queue[Fed],
        retain_bytes: int,
        totals: Callable[[SpanTotals], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__("sender", failed)
        self.state = DeliveryState(retain_bytes)
        self._listener = listener
        self._source = source
        self._totals = totals
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._watched: dict[int, Callable[[], None]] = {}

    def call(self, command: Callable[[], None]) -> None:
        """Runs `command` on this thread soon; any thread may call it."""
        self._commands.put(command)
        self.waker.wake()

    def watch_pass(self, pass_number: int, done: Callable[[], None]) -> None:
        """On this thread: calls `done` once nothing of the pass is outstanding any more."""
        self._watched[pass_number] = done

    def lose(self, token: str) -> list[tuple[BatchId, int]]:
        """On this thread: see `DeliveryState.lose`."""
        return self.state.lose(token)

    def settle(self, token: str, again: Iterable[BatchId]) -> None:
        """On this thread: see `DeliveryState.settle`."""
        self.state.settle(token, again)

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return {
            "read_examples": self.state.read_examples,
            "read_batches": self.state.read_batches,
            "resent_batches": self.state.resent_batches,
            "kept_bytes": self.state.kept_bytes,
            "sent_bytes": self._listener.sent_bytes,
            "received_bytes": self._listener.received_bytes,
        }

    def body(self) -> None:
        """Sends until told to stop, then closes the socket."""
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
                self._take_batches()
                now = time.monotonic()
                for identity, delivery in self.state.deliveries(now) + self.state.overdue(now):
                    self._listener.send(identity, delivery)
                # Sending made room, and the parser only wakes this thread when it puts something.
                if self._take_batches():
                    self.waker.wake()
                self._finish_passes()
        finally:
            self._listener.close()

    def _handle(self, identity: bytes, message: Message) -> None:
        if isinstance(message, Credit):
            self.state.credit(identity, message)
        else:
            log.error("refused a %s from %r", message.KIND, token_of(identity))
            self._listener.send(identity, Failure(request=0, what=f"a reader takes no {message.KIND}"))

    def _take_batches(self) -> bool:
        took = False
        while self.state.hungry(AHEAD_BATCHES):
            try:
                fed = self._source.get_nowait()
            except queue.Empty:
                break
            took = True
            if isinstance(fed, SpanTotals):
                self._totals(fed)
            else:
                self.state.offer(*fed)
        return took

    def _finish_passes(self) -> None:
        for number in [n for n in self._watched if n != TRAINING and not self.state.outstanding(n)]:
            self._watched.pop(number)()
