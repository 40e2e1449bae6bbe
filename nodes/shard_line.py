"""A worker's requests to the embedding nodes: sent again until answered, each answered once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..pipeline.data.batch import Float32Array
from ..pipeline.embedding.lookup import LookupPlan
from ..pipeline.errors import ShadowSyncError
from ..pipeline.wire.codecs.base import CodecError
from ..pipeline.wire.codecs.registry import LinkCodecs
from ..pipeline.wire.messages import Delivery, Failure, Lookup, Push, Pushed, Vectors
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import Connection
from .reader_line import ReaderLine
from .row_coding import RowCoding

RESEND_SECONDS = 3.0


class ShardRefused(ShadowSyncError):
    """An embedding node could not understand or do what a worker asked."""


@dataclass(slots=True)
class Slot:
    """A delivery on its way through a worker: looked up, computed, pushed, confirmed."""

    line: ReaderLine
    delivery: Delivery
    requests: list[LookupPlan] = field(default_factory=list)
    answers: list[Float32Array] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    unanswered: int = 0
    unpushed: int = 0
    loss: float = 0.0
    stranded: bool = False

    @property
    def training(self) -> bool:
        """Whether it is to be trained, not evaluated."""
        return self.delivery.pass_number == 0


@dataclass(slots=True)
class _Request:
    slot: Slot
    shard: int
    message: Lookup | Push
    sent_at: float


class ShardLines:
    """All of a worker's connections to embedding nodes, in the order of the nodes. Owned by its thread."""

    def __init__(
        self,
        connections: Sequence[Connection],
        names: Sequence[str],
        dim: int,
        codecs: LinkCodecs | None = None,
    ) -> None:
        self.connections = list(connections)
        self._names = list(names)
        self._dim = dim
        self._coding = RowCoding(codecs or LinkCodecs(), dim)
        self._next_request = 1
        self._open: dict[int, _Request] = {}
        self.lookups = 0
        self.resent = 0
        self.repeated_pushes = 0
        self.lost = False

    @property
    def outstanding(self) -> int:
        """Requests that are not answered."""
        return len(self._open)

    @property
    def open_pushes(self) -> int:
        """Pushes that are not answered."""
        return sum(isinstance(request.message, Push) for request in self._open.values())

    def look_up(self, slot: Slot, requests: Sequence[LookupPlan], now: float) -> None:
        """Asks every node for its part of a batch."""
        slot.requests = list(requests)
        slot.versions = [0] * len(requests)
        empty = np.empty((0, self._dim), dtype=np.float32)
        slot.answers = [empty] * len(requests)
        for shard, request in enumerate(requests):
            if len(request.rows):
                slot.unanswered += 1
                self.lookups += 1
                self._send(slot, shard, Lookup(self._number(), request.rows), now)

    def push(self, slot: Slot, gradients: Sequence[Float32Array], now: float) -> None:
        """Sends every node the gradients of its part."""
        for shard, (request, gradient) in enumerate(zip(slot.requests, gradients, strict=True)):
            if len(request.rows):
                slot.unpushed += 1
                version = slot.versions[shard]
                message = Push(self._number(), slot.delivery.id, version, request.rows, gradient)
                self._send(slot, shard, message, now)

    def receive(self, shard: int, message: Message) -> Slot | None:
        """Takes an answer; gives the slot whose last push it was, if it was that."""
        number = getattr(message, "request", 0)
        if isinstance(message, Failure):
            raise ShardRefused(message.what, where=self._names[shard])
        request = self._open.get(number)
        if request is None or request.shard != shard:
            return None
        slot = request.slot
        try:
            message = self._coding.incoming(message)
        except CodecError as error:
            raise ShardRefused(f"answered what cannot be read: {error}", where=self._names[shard]) from error
        if isinstance(message, Vectors) and isinstance(request.message, Lookup):
            expected = (len(request.message.rows), self._dim)
            if message.values.shape != expected:
                raise ShardRefused(
                    f"answered vectors {message.values.shape}, not {expected}", where=self._names[shard]
                )
            slot.answers[shard], slot.versions[shard] = message.values, message.version
            slot.unanswered -= 1
        elif isinstance(message, Pushed) and isinstance(request.message, Push):
            slot.unpushed -= 1
            self.repeated_pushes += message.repeated
        else:
            return None
        del self._open[number]
        return slot if isinstance(message, Pushed) and slot.unpushed == 0 else None

    def lose(self, shard: str) -> list[Slot]:
        """A node is gone, its rows with it. Gives the slots whose push it has not answered and never will,
        but for those that another lost node stranded before."""
        self.lost = True
        at = self._names.index(shard)
        dropped = {n: request for n, request in self._open.items() if request.shard == at}
        self._open = {n: request for n, request in self._open.items() if n not in dropped}
        pushed = [request.slot for request in dropped.values() if isinstance(request.message, Push)]
        stranded = [slot for slot in pushed if not slot.stranded]
        for slot in stranded:
            slot.stranded = True
        return stranded

    def forget_lookups(self) -> None:
        """Drops lookups whose answers nobody wants any more."""
        self._open = {n: request for n, request in self._open.items() if isinstance(request.message, Push)}

    def resend_overdue(self, now: float) -> None:
        """Sends again what was not answered for RESEND_SECONDS; nodes recognise repeats."""
        for request in self._open.values():
            if now - request.sent_at > RESEND_SECONDS:
                request.sent_at = now
                self.resent += 1
                self.connections[request.shard].send(self._coding.outgoing(request.message))

    def _send(self, slot: Slot, shard: int, message: Lookup | Push, now: float) -> None:
        self._open[message.request] = _Request(slot, shard, message, now)
        self.connections[shard].send(self._coding.outgoing(message))

    def _number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
