"""A worker's requests to the embedding nodes: sent again until answered, each answered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...pipeline.codecs.formats import CodecError, LinkCodecs
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.errors import ShadowSyncError
from ...pipeline.types import Float32Array
from ...pipeline.wire.messages import Attached, Failure, Lookup, Push, Pushed, Vectors
from ...pipeline.wire.retransmission import LOOKUP
from ...pipeline.wire.row_codec import RowCodec
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Connection
from ..embedding.shared_memory import Lease, SharedMemoryClient
from .batches import InFlightBatch


class LookupRefused(ShadowSyncError):
    """An embedding node could not understand or do what a worker asked."""


@dataclass(slots=True)
class _Request:
    slot: InFlightBatch
    shard: int
    message: Lookup | Push
    sent_at: float
    lease: Lease | None = None


class EmbeddingClient:
    """All of a worker's connections to embedding nodes, in the order of the nodes. Owned by its thread.

    Args:
        shared: for each node, if memory is to be shared with them.

    Attributes:
        lookups: messages that asked for vectors.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        names: Sequence[str],
        codecs: LinkCodecs | None = None,
        shared: Sequence[SharedMemoryClient] = (),
    ) -> None:
        self.connections = list(connections)
        self._names = list(names)
        codecs = codecs or LinkCodecs()
        self._coding = RowCodec(codecs)
        self.shared = list(shared)
        self._lends = {Lookup: not codecs.down.lossy, Push: not codecs.up.lossy}
        self._next_request = 1
        self._open: dict[int, _Request] = {}
        self.lookups = 0
        self.resent = 0
        self.repeated_pushes = 0
        self.lost = False

    @property
    def named_connections(self) -> list[tuple[str, Connection]]:
        """Each node's connection."""
        return list(zip(self._names, self.connections, strict=True))

    @property
    def outstanding(self) -> int:
        """Requests that are not answered."""
        return len(self._open)

    @property
    def open_pushes(self) -> int:
        """Pushes that are not answered."""
        return sum(isinstance(request.message, Push) for request in self._open.values())

    def looked_up_at(self, answer: Message) -> float | None:
        """When the lookup was sent that this answers; None if it answers none that is open."""
        request = self._open.get(getattr(answer, "request", 0))
        return request.sent_at if request is not None and isinstance(request.message, Lookup) else None

    def look_up(self, slot: InFlightBatch, requests: Sequence[LookupPlan], now: float) -> None:
        """Asks every node for its part of a batch, those too that have none of its rows."""
        slot.requests = list(requests)
        slot.versions = [0] * len(requests)
        slot.answers = [np.zeros(0, np.float32) for _ in requests]
        for shard, request in enumerate(requests):
            slot.unanswered += 1
            self._ask(slot, shard, request, now)

    def push(self, slot: InFlightBatch, gradients: Sequence[Float32Array], now: float) -> None:
        """Sends every node the gradients of its part. A node that has none of the rows is told all the same:
        every node's books have every batch."""
        targets = slot.targets or self.targets(slot)
        slot.targets = []
        for shard, (request, gradient, lease) in enumerate(
            zip(slot.requests, gradients, targets, strict=True)
        ):
            slot.unpushed += 1
            if lease is not None and not lease.holds(gradient):
                lease.values[:] = gradient
            version = slot.versions[shard]
            number, id = self._number(), slot.delivery.id
            rows, counts, lengths = request.rows, request.counts, request.bag_lengths
            message = Push(number, id, version, rows, gradient, slot.lr_scale, counts, lengths)
            self._send(slot, shard, message, now, lease=lease)

    def targets(self, slot: InFlightBatch) -> list[Lease | None]:
        """For each node the shared memory for the gradients of its part, or None; kept in the slot. They are
        sent without a copy if they are there by the time of `push`."""
        slot.targets = [
            self._lend(shard, Push, request.floats) for shard, request in enumerate(slot.requests)
        ]
        return slot.targets

    def receive(self, shard: int, message: Message) -> InFlightBatch | None:
        """Takes an answer; gives the slot whose last push it was, if it was that."""
        number = getattr(message, "request", 0)
        if isinstance(message, Failure):
            raise LookupRefused(message.what, where=self._names[shard])
        if isinstance(message, Attached) and self.shared:
            self.shared[shard].answered(message)
            return None
        request = self._open.get(number)
        if request is None or request.shard != shard:
            return None
        slot = request.slot
        try:
            message = self._coding.incoming(message)
        except CodecError as error:
            raise LookupRefused(f"answered what cannot be read: {error}", where=self._names[shard]) from error
        if isinstance(message, Vectors) and isinstance(request.message, Lookup):
            self._answered(request, message)
        elif isinstance(message, Pushed) and isinstance(request.message, Push):
            slot.unpushed -= 1
            self.repeated_pushes += message.repeated
        else:
            return None
        del self._open[number]
        return slot if isinstance(message, Pushed) and slot.unpushed == 0 else None

    def lose(self, shard: str) -> list[InFlightBatch]:
        """A node is gone, its rows with it. Gives the slots whose push it has not answered and never will,
        but for those that another lost node stranded before."""
        self.lost = True
        at = self._names.index(shard)
        if self.shared:
            self.shared[at].close()
        dropped = {n: request for n, request in self._open.items() if request.shard == at}
        self._open = {n: request for n, request in self._open.items() if n not in dropped}
        pushed = [request.slot for request in dropped.values() if isinstance(request.message, Push)]
        stranded = [slot for slot in pushed if not slot.stranded]
        for slot in stranded:
            slot.stranded = True
        return stranded

    def forget_lookups(self) -> None:
        """Drops lookups whose answers nobody wants any more."""
        for request in self._open.values():
            if isinstance(request.message, Lookup):
                self._retire(request)
        self._open = {n: request for n, request in self._open.items() if isinstance(request.message, Push)}

    def resend_overdue(self, now: float) -> None:
        """Sends again what was not answered for too long, whole and over the socket; nodes recognise
        repeats."""
        for shard in range(len(self.shared)):
            self._offer(shard, now)
        for request in self._open.values():
            if LOOKUP.due(request.sent_at, now):
                request.sent_at = now
                self.resent += 1
                self._retire(request)
                self.connections[request.shard].send(self._coding.outgoing(request.message))

    def _answered(self, request: _Request, message: Vectors) -> None:
        slot, shard = request.slot, request.shard
        expected = slot.requests[shard].floats
        values = message.values
        if message.shared:
            if request.lease is None:
                raise LookupRefused("answered into memory that it was not given", where=self._names[shard])
            values = request.lease.values
            self.shared[shard].bytes += values.nbytes
        if len(values) != expected:
            raise LookupRefused(f"answered {len(values)} floats, not {expected}", where=self._names[shard])
        slot.answers[shard], slot.versions[shard] = values, message.version
        slot.unanswered -= 1

    def _ask(self, slot: InFlightBatch, shard: int, asked: LookupPlan, now: float) -> None:
        self.lookups += 1
        message = Lookup(self._number(), asked.rows, asked.counts, asked.bag_lengths)
        if self.shared:
            self._offer(shard, now, asked.floats if self._lends[Lookup] else 0)
        lease = self._lend(shard, Lookup, asked.floats)
        self._send(slot, shard, message, now, lease)

    def _send(
        self,
        slot: InFlightBatch,
        shard: int,
        message: Lookup | Push,
        now: float,
        lease: Lease | None = None,
    ) -> None:
        if lease is not None and not self.shared[shard].has(lease):
            # Another segment was offered meanwhile, for which the node lets go of this one.
            lease = None
        # What is kept is whole: sent again, it goes over the socket.
        self._open[message.request] = _Request(slot, shard, message, now, lease)
        if lease is None:
            self.connections[shard].send(self._coding.outgoing(message))
            return
        self.connections[shard].send(lease.carry(message))
        if isinstance(message, Push):
            self.shared[shard].bytes += lease.values.nbytes

    def _lend(self, shard: int, kind: type[Lookup] | type[Push], floats: int) -> Lease | None:
        return self.shared[shard].take(floats) if self.shared and self._lends[kind] else None

    def _offer(self, shard: int, now: float, floats: int = 0) -> None:
        if (offer := self.shared[shard].offer(now, floats)) is not None:
            self.connections[shard].send(offer)

    def _retire(self, request: _Request) -> None:
        """The node may yet do what it was asked at first, with the memory that was lent for it."""
        if request.lease is not None:
            self.shared[request.shard].retire(request.lease)

    def _number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
