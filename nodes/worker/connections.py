"""A worker's sockets: to the readers that deliver to it, and to the embedding nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import zmq

from ...pipeline.config.job import Job
from ...pipeline.wire.control_orders import MemberInfo
from ...pipeline.wire.messages import Delivery
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Connection, has_message
from ..embedding.shared_memory import SharedMemoryClient
from .batches import InFlightBatch
from .embedding_client import EmbeddingClient
from .reader_client import ReaderClient

RESEND_CHECK_SECONDS = 1.0
WAITED_SECONDS = 0.0002
MAX_UNANSWERED_PUSHES = 8
SPARE_BLOCKS = 6


class WorkerConnections:
    """All of one worker's connections. Made and used by its thread, but for `metrics`.

    Attributes:
        readers: by name.
        shards: in the order of the nodes.

    Args:
        identity: of the worker, to the nodes that it connects to.
        waker: a descriptor that ends a `poll` when it can be read.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        identity: str,
        job: Job,
        waker: int,
    ) -> None:
        def connect(member: MemberInfo) -> Connection:
            return Connection(context, member.endpoint, identity)

        readers = [member for member in members if member.role == "reader"]
        shards = sorted((m for m in members if m.role == "embedding"), key=lambda m: m.index)
        self.readers = {r.name: ReaderClient(r.name, connect(r), job.trainer.credit) for r in readers}
        names = [member.name for member in shards]
        # Lookups ahead, a batch that is computed, and pushes that are not answered, with some to spare.
        blocks = job.trainer.lookups_ahead + MAX_UNANSWERED_PUSHES + SPARE_BLOCKS
        shared = [SharedMemoryClient(name, blocks) for name in names] if job.network.shares_memory else []
        self.shards = EmbeddingClient([connect(m) for m in shards], names, job.codecs.embedding(), shared)
        self._ready: frozenset[object] = frozenset()
        self._poller = zmq.Poller()
        for _, connection in self._ends():
            self._poller.register(connection.socket, zmq.POLLIN)
        self._poller.register(waker, zmq.POLLIN)
        self._checked_at = time.monotonic()
        self._waited = False
        self._round_trip_seconds = 0.0
        self._round_trips = 0

    def poll(self, timeout_milliseconds: int) -> float:
        """Waits until something has arrived, for `receive` to take; gives for how many seconds."""
        before = time.monotonic()
        self._ready = frozenset(socket for socket, _ in self._poller.poll(timeout_milliseconds))
        seconds = time.monotonic() - before
        # What came while the worker computed was on its way for an unknown time; what ends a wait came now.
        self._waited = timeout_milliseconds > 0 and seconds > WAITED_SECONDS
        return seconds

    def receive(self) -> tuple[list[InFlightBatch], list[InFlightBatch]]:
        """What has arrived: new deliveries, and those whose last push is answered. Sends again what was not
        answered for too long."""
        delivered, pushed = [], []
        for line in self.readers.values():
            for message in self._arrived(line.connection):
                if isinstance(message, Delivery) and line.arrived(message):
                    delivered.append(InFlightBatch(line, message))
        for shard, connection in enumerate(self.shards.connections):
            for message in self._arrived(connection):
                now = time.monotonic()
                self._time(message, now)
                finished = self.shards.receive(shard, message)
                if finished is not None:
                    pushed.append(finished)
        now = time.monotonic()
        if now - self._checked_at > RESEND_CHECK_SECONDS:
            self._checked_at = now
            self.shards.resend_overdue(now)
        return delivered, pushed

    def _arrived(self, connection: Connection) -> Iterator[Message]:
        """What the last `poll` saw at a connection, and what has come since."""
        there = connection.socket in self._ready
        while there and (message := connection.receive()) is not None:
            yield message
            there = has_message(connection.socket)

    def metrics(self) -> dict[str, float]:
        """Counts so far, those of bytes also by the node at the other end, under the names that the
        coordinator's status knows; any thread may call. Of lookups that the worker waited for,
        `round_trip_seconds` is from their sending to their answer, `round_trips` their number."""
        ends = self._ends()
        counts: dict[str, float] = {
            "lookups": self.shards.lookups,
            "resent_requests": self.shards.resent,
            "round_trips": self._round_trips,
            "round_trip_seconds": self._round_trip_seconds,
            "repeated_deliveries": sum(line.repeated_deliveries for line in self.readers.values()),
            "sent_bytes": sum(connection.sent_bytes for _, connection in ends),
            "refused_messages": sum(connection.refused_messages for _, connection in ends),
            "unsent_messages": sum(connection.unsent_messages for _, connection in ends),
            "received_bytes": sum(connection.received_bytes for _, connection in ends),
        }
        counts |= self._shared_counts()
        for name, connection in ends:
            counts[f"to/{name}"] = connection.sent_bytes
            counts[f"from/{name}"] = connection.received_bytes
        return counts

    def _shared_counts(self) -> dict[str, float]:
        shared = self.shards.shared
        return {
            "shared_bytes": sum(one.bytes for one in shared),
            "unshared_links": sum(one.refused for one in shared),
            **{
                f"shared/{name}": one.bytes
                for (name, _), one in zip(self.shards.named_connections, shared, strict=False)
            },
        }

    def close(self) -> None:
        """Closes the sockets, and what is shared."""
        for shared in self.shards.shared:
            shared.close()
        for _, connection in self._ends():
            connection.close()

    def _time(self, message: Message, now: float) -> None:
        if self._waited and (asked_at := self.shards.looked_up_at(message)) is not None:
            self._round_trips += 1
            self._round_trip_seconds += now - asked_at

    def _ends(self) -> list[tuple[str, Connection]]:
        return [(r.reader, r.connection) for r in self.readers.values()] + self.shards.named_connections
