"""A worker's sockets to readers and embedding nodes.

The connections also notice nodes that have not answered for too long. If the path between two nodes is
broken, the coordinator still receives heartbeats from both ends, so it declares neither dead, and a job that
resends requests forever would hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, Generic

import zmq

from ...pipeline.config.job import Job
from ...pipeline.embedding.in_flight.rows_in_flight import RowsInFlight
from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.text.format import duration
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.messages import Delivery
from ...pipeline.wire.schema import Message
from ...pipeline.wire.socket_events import has_message
from ...pipeline.wire.sockets import Connection
from ..embedding.shared_memory import SharedMemoryClient
from ..runtime.main_loop import PauseAwareClock
from .batches import InFlightBatch
from .embedding_client import B, EmbeddingClient
from .prefetch import LEAST_PENDING_PUSHES, Prefetch, WorkerClock
from .reader_client import ReaderClient

# Time between checks for overdue requests; `retransmission` says when one is due.
RESEND_CHECK_SECONDS = 1.0
SHORTEST_WAIT_SECONDS = 0.0002
SPARE_BLOCKS = 6
# The coordinator declares a silent node dead after one node timeout. So a node that is not dead after four is
# alive, and the path to it is broken.
NO_REPLY_TIMEOUTS: Final = 4


class PeerUnreachable(ShadowSyncError):
    """A living node, named by `where`, does not answer this trainer."""

    exit_code = ExitCode.STOPPED_BY_DEATH


class ReplyWatch:
    """Time for which each node has left requests unanswered; no I/O, no clock.

    Args:
        trainer: this trainer's name, for the error.
        limit_seconds: longest time without an answer.
    """

    def __init__(self, trainer: str, limit_seconds: float) -> None:
        self._trainer, self._limit = trainer, limit_seconds
        self._waited_seconds: dict[str, float] = {}
        self._checked_at: float | None = None

    def record_message(self, node: str) -> None:
        self._waited_seconds.pop(node, None)

    def check(self, now: float, requested: Iterable[str]) -> None:
        """Add the time since the last check for unanswered nodes.

        `now` is by a clock that excludes pauses: those of this worker, in which it asks nothing, do not
        count. Raises PeerUnreachable if a node exceeds the limit.
        """
        before, self._checked_at = self._checked_at, now
        step = now - before if before is not None else 0.0
        self._waited_seconds = {node: self._waited_seconds.get(node, 0.0) + step for node in requested}
        for node, seconds in self._waited_seconds.items():
            if seconds > self._limit:
                raise PeerUnreachable(
                    f"has not answered {self._trainer} for {duration(self._limit)}, although both are alive",
                    where=node,
                    remedy="check the network between them",
                )


class WorkerConnections(Generic[B]):
    """All connections of one worker.

    Used by its thread, except for `metrics`. B is what is kept of a batch.

    Attributes:
        readers: a client for each reader, by name.
        shards: the client of all embedding nodes.
        prefetch: how many batches are to be in flight.

    Args:
        identity: the worker's identity for the nodes that it connects to.
        waker: a descriptor that ends a `poll` when it is readable.
        waits: whether readers are to send nothing before `widen_credit`.
        page_lock: called with the memory that is shared with embedding nodes, see `Device.page_lock`.
        rows, worker: see `EmbeddingClient`.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        identity: str,
        job: Job,
        waker: int,
        *,
        waits: bool = False,
        page_lock: Callable[[Float32Array], object] | None = None,
        rows: RowsInFlight | None = None,
        worker: int = 0,
    ) -> None:
        def connect(member: MemberInfo) -> Connection:
            return Connection(context, member.endpoint, identity)

        self._connect = connect
        readers = [member for member in members if member.role == "reader"]
        self.prefetch = Prefetch.of(job, len(readers))
        shards = sorted((m for m in members if m.role == "embedding"), key=lambda m: m.index)
        connected = _connected([*readers, *shards], connect)
        self._credit = 0 if waits else self.prefetch.credit
        self.readers = {r.name: ReaderClient(r.name, connected[r], self._credit) for r in readers}
        names = [member.name for member in shards]
        # Blocks for lookups ahead, pushes that these may lack, the current batch, unanswered pushes, and some
        # to spare. A depth that grows is for long round trips, which memory does not have; without a block,
        # the socket is used.
        blocks = 2 * self.prefetch.lookups_ahead + LEAST_PENDING_PUSHES + SPARE_BLOCKS
        shared = names if job.network.shares_memory else []
        segments = [SharedMemoryClient(name, blocks, page_lock) for name in shared]
        self.shards = EmbeddingClient[B](
            [connected[m] for m in shards], names, job.codecs.embedding(), segments, rows, worker
        )
        # Connections to replaced embedding nodes: their counts still matter.
        self._former: list[tuple[str, Connection]] = []
        self._former_memory: list[tuple[str, SharedMemoryClient]] = []
        self._readable: frozenset[object] = frozenset()
        self._poller = zmq.Poller()
        for _, connection in self._named_connections():
            self._poller.register(connection.socket, zmq.POLLIN)
        self._poller.register(waker, zmq.POLLIN)
        self._checked_at = time.monotonic()
        trainer = next((m.name for m in members if identity.startswith(f"{m.token}/")), identity)
        self._lost: set[str] = set()
        # Living readers: each credit expects an answer.
        self._living_readers = set(self.readers)
        # A step of the model may take long, and nothing is checked meanwhile.
        self._clock = PauseAwareClock(2 * RESEND_CHECK_SECONDS)
        self._watch = ReplyWatch(trainer, NO_REPLY_TIMEOUTS * job.run.node_timeout_seconds)
        self._has_waited = False
        self._round_trip_seconds = 0.0
        self._round_trips = 0

    def poll(self, timeout_milliseconds: int) -> float:
        """Wait until something has arrived to be taken; return the seconds waited."""
        before = time.monotonic()
        self._readable = frozenset(socket for socket, _ in self._poller.poll(timeout_milliseconds))
        seconds = time.monotonic() - before
        # Only a message that ends a wait has a known arrival time; others may have come during the compute.
        self._has_waited = timeout_milliseconds > 0 and seconds > SHORTEST_WAIT_SECONDS
        return seconds

    def take_deliveries(self, impossible: Callable[[ReaderClient, Delivery], bool]) -> list[InFlightBatch]:
        """Return new deliveries.

        A reader whose delivery is `impossible` is lost: it counts as not received, and nothing more of it is
        taken.
        """
        delivered: list[InFlightBatch] = []
        for reader in self.readers.values():
            for message in self._receive_from(reader.name, reader.connection):
                if not isinstance(message, Delivery):
                    continue
                if impossible(reader, message):
                    self.lose(reader.name)
                    break
                if reader.accept(message):
                    delivered.append(InFlightBatch(reader, message))
        return delivered

    def take_replies(self) -> list[B]:
        """Take the replies of embedding nodes; return the batches whose last push is answered.

        Also resends overdue requests.

        Raises:
            LookupRefused: an embedding node refused a request.
            PeerUnreachable: a living node, also a reader, has answered nothing for too long.
        """
        pushed: list[B] = []
        for shard, (name, connection) in enumerate(self.shards.named_connections):
            for message in self._receive_from(name, connection):
                now = time.monotonic()
                self._measure_round_trip(message, now)
                finished = self.shards.receive(shard, message)
                if finished is not None:
                    pushed.append(finished)
        now = time.monotonic()
        if now - self._checked_at > RESEND_CHECK_SECONDS:
            self._checked_at = now
            self.shards.resend_overdue(now)
            self._watch.check(self._clock.now(), self._living_readers | self.shards.pending_nodes)
        return pushed

    @property
    def takes_pushes(self) -> bool:
        """Whether so few pushes are unanswered that another batch may be trained."""
        return self.shards.pending_pushes < self.prefetch.pending_pushes(len(self.shards.names))

    def stepped(self, clock: WorkerClock, ready: int) -> None:
        """Record a step (see `Prefetch`), and ask readers for as many batches as are to be in flight."""
        self.prefetch.stepped(clock, ready)
        self.widen_credit()

    def widen_credit(self) -> None:
        """Have readers send as many batches as are to be in flight."""
        self._credit = self.prefetch.credit
        for reader in self.readers.values():
            reader.widen(self._credit)

    def lose(self, name: str) -> None:
        """Expect nothing more of a lost node."""
        self._lost.add(name)
        if name in self.readers:
            self._living_readers.discard(name)
            self.readers[name].lose()
            # Closed at once: another reader at its address would accept this connection.
            self._leave(self.readers[name].connection)
        if name in self.shards.names:
            self._leave(self.shards.connections[self.shards.names.index(name)])
            self.shards.lose(name)

    def end_training(self, sequences: Container[str]) -> None:
        """Take no more training batches from readers that did not say what they sent.

        They may send more, which nobody would count. `sequences` has the names of the others.
        """
        for name, reader in self.readers.items():
            if name not in sequences:
                reader.end_training()

    def replace_shard(self, member: MemberInfo) -> None:
        """Connect to a replacement embedding node, unless known or lost."""
        if member.name in self.shards.names or member.name in self._lost:
            return
        before = self.shards.named_connections[member.index]
        # The notice of the old node's death may not have arrived yet.
        self._leave(before[1])
        self._former = [*self._former, before]
        if self.shards.shared_memory:
            shared = before[0], self.shards.shared_memory[member.index]
            self._former_memory = [*self._former_memory, shared]
        connection = self._connect(member)
        self._poller.register(connection.socket, zmq.POLLIN)
        self.shards.replace(member.index, member.name, connection, time.monotonic())

    def _leave(self, connection: Connection) -> None:
        if not connection.socket.closed:
            self._poller.unregister(connection.socket)
            self._readable -= {connection.socket}
            connection.close()

    def connect_reader(self, member: MemberInfo) -> None:
        """Connect to a new reader, unless it is known or lost."""
        if member.name in self.readers or member.name in self._lost:
            return
        reader = ReaderClient(member.name, self._connect(member), self._credit)
        # A new dict: another thread may be iterating over the old one in `metrics`.
        self.readers = {**self.readers, member.name: reader}
        self._poller.register(reader.connection.socket, zmq.POLLIN)
        self._living_readers.add(member.name)

    def _receive_from(self, name: str, connection: Connection) -> Iterator[Message]:
        """Yield a connection's messages since the last `poll`."""
        readable = connection.socket in self._readable
        while readable and (message := connection.receive()) is not None:
            self._watch.record_message(name)
            yield message
            readable = has_message(connection.socket)

    def metrics(self) -> dict[str, float]:
        """Return counts so far, under the names of the coordinator's status.

        Any thread may call. The node at the other end counts the bytes, too. For lookups that the worker
        waited for, `round_trip_seconds` is the time from request to answer, and `round_trips` their number.
        """
        connections = self._named_connections()
        counts: dict[str, float] = {
            "lookups": self.shards.lookups,
            "resent_requests": self.shards.resent,
            "resent_pushes": self.shards.resent_pushes,
            "round_trips": self._round_trips,
            "round_trip_seconds": self._round_trip_seconds,
            "lookups_ahead": self.prefetch.lookups_ahead,
            "credit": self.prefetch.credit,
            "repeated_deliveries": sum(reader.repeated_deliveries for reader in self.readers.values()),
            "sent_bytes": sum(connection.sent_bytes for _, connection in connections),
            "refused_messages": sum(connection.refusals.count for _, connection in connections),
            "unsent_messages": sum(connection.unsent_messages for _, connection in connections),
            "received_bytes": sum(connection.received_bytes for _, connection in connections),
        }
        counts |= self._shared_memory_counts()
        counts |= {
            f"training_examples/{name}": reader.training_examples for name, reader in self.readers.items()
        }
        for name, connection in connections:
            counts[f"to/{name}"] = connection.sent_bytes
            counts[f"from/{name}"] = connection.received_bytes
        return counts

    def _shared_memory_counts(self) -> dict[str, float]:
        names, segments = self.shards.names, self.shards.shared_memory
        by_name = [*self._former_memory, *zip(names, segments, strict=False)]
        return {
            "shared_bytes": sum(segment.shared_bytes for _, segment in by_name),
            "unshared_links": sum(segment.refused for segment in segments),
            **{f"shared/{name}": segment.shared_bytes for name, segment in by_name},
        }

    def close(self) -> None:
        """Close the sockets and release the shared memory."""
        for segment in self.shards.shared_memory:
            segment.close()
        for _, connection in self._named_connections():
            connection.close()

    def _measure_round_trip(self, message: Message, now: float) -> None:
        if self._has_waited and (sent_at := self.shards.lookup_sent_at(message)) is not None:
            self._round_trips += 1
            self._round_trip_seconds += now - sent_at
            self.prefetch.answered(now - sent_at)

    def _named_connections(self) -> list[tuple[str, Connection]]:
        readers = [(reader.name, reader.connection) for reader in self.readers.values()]
        return readers + self._former + self.shards.named_connections


def _connected(
    members: Iterable[MemberInfo], connect: Callable[[MemberInfo], Connection]
) -> dict[MemberInfo, Connection]:
    """Connect to all, or leave no socket open."""
    connections = {}
    with ExitStack() as made:
        for member in members:
            connections[member] = connect(member)
            made.callback(connections[member].close)
        made.pop_all()
    return connections
