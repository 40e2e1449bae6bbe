"""The reader's sender: owns the ROUTER that workers connect to, and the deliveries."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable
from typing import Any

from ...pipeline.wire.messages import Credit
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Listener
from ..runtime.loops import ListeningLoop
from .deliveries import DeliveryState
from .parser import AHEAD_BATCHES, Parsed, SpanTotals

REFILL_BATCHES = AHEAD_BATCHES // 2
OVERDUE_SECONDS = 0.2


class Sender(ListeningLoop):
    """Sender of batches to the workers that have credit.

    The sender and everything that it calls run on the reader's loop. After a change of `state` from outside,
    call `wake`.

    Args:
        listener: the bound socket; closed when `serve` ends.
        source: the parser's queue. An `asyncio.Queue` would cost the parser two switches between threads a
            batch.
        state: the deliveries; from now on the sender's.
        totals: called with the totals of each span, after its last batch was taken.
    """

    def __init__(
        self,
        listener: Listener,
        source: queue.Queue[Parsed],
        state: DeliveryState,
        totals: Callable[[SpanTotals], None],
    ) -> None:
        super().__init__(listener)
        self.state = state
        self._source = source
        self._totals = totals
        self._pass_waiters: dict[int, asyncio.Event] = {}

    async def look_for_overdue(self) -> None:
        """Have overdue deliveries sent again, even if no message wakes `serve`."""
        while True:
            await asyncio.sleep(OVERDUE_SECONDS)
            self.wake()

    async def finished(self, pass_number: int) -> None:
        """Wait until no batch of an evaluation pass is outstanding."""
        done = self._pass_waiters.setdefault(pass_number, asyncio.Event())
        self.wake()
        await done.wait()

    def metrics(self) -> dict[str, Any]:
        """Return counts so far; any thread may call."""
        return super().metrics() | {
            "read_examples": self.state.read_examples,
            "read_batches": self.state.read_batches,
            "resent_batches": self.state.resent_batches,
            "retained_bytes": self.state.retained_bytes,
            "queued_batches": self.state.queued,
        }

    def handle(self, identity: bytes, message: Message) -> None:
        """Record a worker's credit."""
        if not isinstance(message, Credit):
            raise ValueError(f"a reader does not accept a {message.KIND}")
        if (noted := self.state.credit(identity, message)) is not None:
            self.listener.send(identity, noted)

    def served(self) -> None:
        """Send what there is credit for."""
        self._take_batches()
        now = time.monotonic()
        for identity, delivery in self.state.overdue(now):
            self.listener.send(identity, delivery)
        while deliveries := self.state.deliveries(now):
            for identity, delivery in deliveries:
                self.listener.send(identity, delivery)
            # Sending made room, and the parser wakes nobody while its queue is not empty.
            self._take_batches()
        self._finish_passes()

    def _take_batches(self) -> None:
        # Many at once: each restart of the parser costs two thread switches.
        if not self.state.needs_more(REFILL_BATCHES):
            return
        while self.state.needs_more(AHEAD_BATCHES):
            try:
                parsed = self._source.get_nowait()
            except queue.Empty:
                break
            if isinstance(parsed, SpanTotals):
                self._totals(parsed)
            else:
                self.state.offer(*parsed)

    def _finish_passes(self) -> None:
        for number in [number for number in self._pass_waiters if not self.state.outstanding(number)]:
            self._pass_waiters.pop(number).set()
