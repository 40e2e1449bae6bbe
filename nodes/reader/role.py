"""The reader role: parses spans and delivers batches to trainers that have credit.

Imports no torch.
"""

from __future__ import annotations

from typing import Any, ClassVar

import zmq

from ...pipeline.config.job import Job
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import NodeFacts
from ...pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    CountDelivered,
    Delivered,
    Drain,
    Evaluate,
    MoreSpans,
    NodeLost,
    TrainerJoined,
)
from ...pipeline.wire.sockets import Listener
from ..runtime.largest_messages import LARGEST_HEADER_BYTES
from ..runtime.role import NodeContext, Role, admit_trainers, listener_of_trainers, unexpected_request
from .reader import Reader


class ReaderRole(Role):
    """The control side of a reader."""

    name: ClassVar[str] = "reader"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._listener: Listener | None = None
        self._reader: Reader | None = None

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Bind the socket that workers connect to."""
        # Only credits come in, which fit into a header.
        self._listener = listener_of_trainers(context, address, LARGEST_HEADER_BYTES, LARGEST_HEADER_BYTES)
        return self._listener.endpoint

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Start the parser and the sender; nothing is read before `begin`."""
        self._reader = Reader(self._job, node, self.bound)
        self._reader.start()
        return NodeFacts()

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer the coordinator; raises ProtocolError for other roles' requests."""
        if isinstance(request, Drain):
            return await self.reader.drain()
        if isinstance(request, Evaluate):
            return await self.reader.evaluate(request)
        if isinstance(request, CountDelivered):
            return Delivered(tuple(self.reader.delivered_to(token) for token in request.tokens))
        if isinstance(request, Begin):
            self.reader.begin()
        elif isinstance(request, MoreSpans):
            self.reader.more_spans()
        elif isinstance(request, NodeLost):
            self.reader.lose(request.token)
        elif isinstance(request, TrainerJoined):
            self.bound.admit_also(request.member.token)
        elif isinstance(request, ConnectPeers):
            admit_trainers(self.bound, request)
        else:
            raise unexpected_request(self.name, request)
        return Done()

    def metrics(self) -> dict[str, Any]:
        """Return counts so far."""
        return self._reader.metrics() if self._reader else {"bad_rows": 0, "read_spans": 0}

    async def close(self) -> None:
        """End the parser and the sender."""
        try:
            if self._reader is not None:
                await self._reader.close()
        finally:
            # Even if cancelled meanwhile: a context with an open socket cannot be terminated.
            if self._listener is not None:
                self._listener.close()

    @property
    def bound(self) -> Listener:
        """The listener, after `listen`."""
        assert self._listener is not None
        return self._listener

    @property
    def reader(self) -> Reader:
        """The reader, after it was made in `prepare`."""
        assert self._reader is not None
        return self._reader
