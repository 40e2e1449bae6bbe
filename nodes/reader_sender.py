"""The reader's sending thread: owns the ROUTER that workers connect to, and the deliveries."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..pipeline.types import BatchId
from ..pipeline.wire.messages import Credit
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Listener
from .delivery_state import TRAINING, DeliveryState
from .listening_service import ListeningService
from .reader_feed import AHEAD_BATCHES, Fed, SpanTotals

REFILL_BATCHES = AHEAD_BATCHES // 2


class Sender(ListeningService):
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
        super().__init__("sender", listener, failed)
        self.state = DeliveryState(retain_bytes)
        self._source = source
        self._totals = totals
        self._watched: dict[int, Callable[[], None]] = {}

    def watch_pass(self, pass_number: int, done: Callable[[], None]) -> None:
        """On this thread: calls `done` once nothing of the pass is outstanding any more."""
        self._watched[pass_number] = done

    def lose(self, token: str) -> list[tuple[BatchId, int]]:
        """On this thread: see `DeliveryState.lose`."""
        return self.state.lose(token)

    def settle_lost(self, token: str, again: Iterable[BatchId]) -> None:
        """On this thread: see `DeliveryState.settle`."""
        self.state.settle(token, again)

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        return super().metrics() | {
            "read_examples": self.state.read_examples,
            "read_batches": self.state.read_batches,
            "resent_batches": self.state.resent_batches,
            "kept_bytes": self.state.kept_bytes,
            "queued_batches": self.state.queued,
        }

    def handle(self, identity: bytes, message: Message) -> None:
        """A worker's credit."""
        if not isinstance(message, Credit):
            raise ValueError(f"a reader takes no {message.KIND}")
        self.state.credit(identity, message)

    def served(self) -> None:
        """Sends what there is credit for."""
        self._take_batches()
        now = time.monotonic()
        for identity, delivery in self.state.overdue(now):
            self.listener.send(identity, delivery)
        while deliveries := self.state.deliveries(now):
            for identity, delivery in deliveries:
                self.listener.send(identity, delivery)
            # Sending made room, and the parser does not wake this thread while its queue holds something.
            self._take_batches()
        self._finish_passes()

    def _take_batches(self) -> None:
        # Many at once: each time the parser is let go on costs two switches between threads.
        if not self.state.hungry(REFILL_BATCHES):
            return
        while self.state.hungry(AHEAD_BATCHES):
            try:
                fed = self._source.get_nowait()
            except queue.Empty:
                break
            if isinstance(fed, SpanTotals):
                self._totals(fed)
            else:
                self.state.offer(*fed)

    def _finish_passes(self) -> None:
        for number in [n for n in self._watched if n != TRAINING and not self.state.outstanding(n)]:
            self._watched.pop(number)()
