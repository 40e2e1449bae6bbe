"""A worker's flow control with one reader."""

from __future__ import annotations

import math

from ...pipeline.wire.messages import Credit, Delivery
from ...pipeline.wire.rpc.retransmission import CREDIT
from ...pipeline.wire.sockets import Connection

GATHER_SECONDS = 0.1


class ReaderClient:
    """Sequence numbers and credit of one reader; owned by the worker's thread.

    Repeated deliveries are dropped, and so are all of a lost reader. `Credit` carries absolute numbers and is
    repeated as `CREDIT` says, so that a lost one does no harm. New credit is sent at once if it amounts to
    half the window; otherwise it waits up to GATHER_SECONDS for more, since waking the reader costs more than
    its work. So a worker has between half the window and all of it, here or in flight, while the reader has
    batches.

    Args:
        window: most unprocessed deliveries, here or in flight, at first.

    Attributes:
        training_examples: examples of accepted deliveries that are to be trained.
    """

    def __init__(self, name: str, connection: Connection, window: int) -> None:
        self.name = name
        self.connection = connection
        self._window = window
        self._received = 0
        self._early: set[int] = set()
        self._processed = 0
        self._done = 0
        self._done_early: set[int] = set()
        self._sent_state = (0, 0, 0)
        self._sent_at = -math.inf
        self._lost = False
        self.repeated_deliveries = 0
        self.training_examples = 0
        self._takes_training = True

    def widen(self, window: int) -> None:
        """Allow so many unprocessed deliveries, if that is more than before."""
        self._window = max(self._window, window)

    @property
    def is_lost(self) -> bool:
        """Whether nothing more is accepted of it."""
        return self._lost

    @property
    def received(self) -> int:
        """Last sequence number up to which all deliveries have arrived."""
        return self._received

    @property
    def unfinished(self) -> int:
        """Number of deliveries that have arrived but are not finished."""
        return self._received + len(self._early) - self._done - len(self._done_early)

    def require_granted(self, delivery: Delivery) -> None:
        """Raise ValueError for a delivery beyond the credit that the reader was sent."""
        if delivery.sequence > (limit := self._sent_state[0]):
            raise ValueError(f"delivery {delivery.sequence}; it may send those up to {limit}")

    def accept(self, delivery: Delivery) -> bool:
        """Record a delivery; return False for one to be dropped."""
        if self._lost:
            return False
        sequence = delivery.sequence
        if sequence <= self._received or sequence in self._early:
            self.repeated_deliveries += 1
            return False
        self._early.add(sequence)
        is_training = delivery.pass_number == 0
        if is_training and self._takes_training:
            self.training_examples += len(delivery.labels)
        while self._received + 1 in self._early:
            self._received += 1
            self._early.discard(self._received)
        if is_training and not self._takes_training:
            self.mark_processed()
            self.mark_finished(sequence)
            return False
        return True

    def lose(self) -> None:
        """Mark the reader as lost: accept nothing more, and send no more credit."""
        self._lost = True

    def end_training(self) -> None:
        """Drop further training deliveries, uncounted."""
        self._takes_training = False

    def mark_processed(self) -> None:
        """Allow one more delivery, since one was computed or dropped."""
        self._processed += 1

    def mark_finished(self, sequence: int) -> None:
        """Let the reader forget a delivery that the coordinator has confirmed."""
        self._done_early.add(sequence)
        while self._done + 1 in self._done_early:
            self._done += 1
            self._done_early.discard(self._done)

    def send_credit(self, now: float) -> None:
        """Send the credit if it changed or is old. Call it regularly."""
        if self._lost:
            return
        limit = self._processed + self._window
        state = limit, self._received, self._done
        if state == self._sent_state:
            due = CREDIT.due(self._sent_at, now)
        else:
            requests_many = 2 * (limit - self._sent_state[0]) >= self._window
            due = requests_many or now - self._sent_at >= GATHER_SECONDS
        if due:
            self.connection.send(Credit(limit=limit, received=self._received, done=self._done))
            self._sent_state, self._sent_at = state, now
