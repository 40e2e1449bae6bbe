"""A worker's standing with one reader: what arrived, what is done, what may still come."""

from __future__ import annotations

import math

from ...pipeline.wire.messages import Credit, Delivery
from ...pipeline.wire.sockets import Connection

RESTATE_SECONDS = 1.0
GATHER_SECONDS = 0.1


class ReaderClient:
    """Sequences of one reader, as its worker counts them. Owned by the worker thread.

    A delivery that came before is dropped. `Credit` states the standing in absolute numbers, at least every
    RESTATE_SECONDS, so that losing one costs nothing. A change is stated at once where half the window of
    new credit has come together; otherwise it waits up to GATHER_SECONDS for others: a statement wakes the
    reader, which costs more than what it then does. So a worker has between half the window and all of it,
    here or on its way, while the reader has batches.
    """

    def __init__(self, reader: str, connection: Connection, window: int) -> None:
        self.reader = reader
        self.connection = connection
        self._window = window
        self._received = 0
        self._early: set[int] = set()
        self._processed = 0
        self._done = 0
        self._done_early: set[int] = set()
        self._stated = (0, 0, 0)
        self._stated_at = -math.inf
        self.repeated_deliveries = 0

    @property
    def received(self) -> int:
        """All sequences up to this one have arrived."""
        return self._received

    @property
    def unfinished(self) -> int:
        """Deliveries that arrived and are not finished."""
        return self._received + len(self._early) - self._done - len(self._done_early)

    def arrived(self, delivery: Delivery) -> bool:
        """Notes a delivery; False if it came before."""
        sequence = delivery.sequence
        if sequence <= self._received or sequence in self._early:
            self.repeated_deliveries += 1
            return False
        self._early.add(sequence)
        while self._received + 1 in self._early:
            self._received += 1
            self._early.discard(self._received)
        return True

    def processed(self) -> None:
        """One more delivery has been computed (or dropped), so one more may come."""
        self._processed += 1

    def finished(self, sequence: int) -> None:
        """The reader may forget this delivery: the coordinator has confirmed it."""
        self._done_early.add(sequence)
        while self._done + 1 in self._done_early:
            self._done += 1
            self._done_early.discard(self._done)

    def tell(self, now: float) -> None:
        """Sends the standing if it changed or is old; call it again and again."""
        limit = self._processed + self._window
        standing = limit, self._received, self._done
        since = now - self._stated_at
        if standing == self._stated:
            wait = RESTATE_SECONDS
        else:
            wait = 0.0 if 2 * (limit - self._stated[0]) >= self._window else GATHER_SECONDS
        if since >= wait:
            self.connection.send(Credit(limit=limit, received=self._received, done=self._done))
            self._stated, self._stated_at = standing, now
