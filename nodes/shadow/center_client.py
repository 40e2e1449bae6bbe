"""The client of the sync nodes: exchanges, reads and seeds of the center.

A thread has one `CenterClient`, with one `CenterConnection` per sync node. Requests are sent in chunks, and
again until answered; all slices are under way at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
import zmq
import zmq.asyncio

from ...pipeline.codecs.feedback import Reference, decode_chunk
from ...pipeline.codecs.formats import Codec, CodecError, LinkCodecs
from ...pipeline.errors import ProtocolError
from ...pipeline.types import Float32Array
from ...pipeline.wire.buffers import BufferPool, bytes_of
from ...pipeline.wire.control_orders import MemberInfo
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, CenterValues, Failure
from ...pipeline.wire.retransmission import CENTER_TIMES, RetransmitPolicy
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import configure_socket
from ...sync_algos.base import PeerLost, Slice
from ...sync_algos.memory import split_evenly
from ..runtime.members import Traffic

# Few, so that a chunk enters the socket not long before it is sent.
QUEUED_CHUNKS = 8

log = logging.getLogger(__name__)


@dataclass
class _Pending:
    """An unanswered request: its missing chunks, and where answers are written."""

    missing: set[int]
    target: Float32Array | None
    done: asyncio.Future[None]
    progressed_at: float
    is_exchange: bool = False


@dataclass
class CenterConnection:
    """A connection to one sync node; all of it belongs to one asyncio loop.

    Attributes:
        part: the slice that the node holds.
        chunk: the most elements of a chunk.
        down: the codec of answers to exchanges.
    """

    member: MemberInfo
    part: Slice
    socket: zmq.asyncio.Socket
    chunk: int
    down: Codec
    timeout_seconds: float
    traffic: Traffic
    lost: bool = False
    refused_messages: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    _pending: dict[int, _Pending] = field(default_factory=dict)

    @property
    def _policy(self) -> RetransmitPolicy:
        return RetransmitPolicy.in_timeout(self.timeout_seconds, CENTER_TIMES)

    @classmethod
    def connect(
        cls, context: zmq.asyncio.Context, identity: str, member: MemberInfo, **more: Any
    ) -> CenterConnection:
        """Connect a new DEALER to the node; `more` are the other attributes."""
        socket = context.socket(zmq.DEALER)
        configure_socket(socket)
        socket.setsockopt(zmq.SNDHWM, QUEUED_CHUNKS)
        socket.setsockopt_string(zmq.IDENTITY, identity)
        socket.connect(member.endpoint)
        return cls(member=member, socket=socket, **more)

    async def request(
        self, number: int, chunk: Callable[[int, int], Message], target: Float32Array | None
    ) -> None:
        """Send the messages that `chunk(start, stop)` makes, and await an answer to each.

        The answers' values are written to `target`, float32 of the slice's length. The timeout restarts with
        every chunk that the socket accepts and with every answer, so that a large slice on a slow link does
        not count as a lost node. After half the timeout, unanswered chunks are sent again.

        Raises:
            PeerLost: the node is gone, refused the request, or nothing moved for the timeout.
        """
        if self.lost:
            raise PeerLost(f"{self.member.name} is lost")
        starts = range(self.part.start, self.part.stop, self.chunk)
        loop = asyncio.get_running_loop()
        pending = _Pending(set(starts), target, loop.create_future(), loop.time())
        self._pending[number] = pending
        sender = asyncio.ensure_future(self._send_chunks(chunk, pending, first=True))
        resent_at: float | None = None
        try:
            while not await self._ended(pending, sender, resent=resent_at is not None):
                silent_seconds = loop.time() - pending.progressed_at
                if resent_at is not None and pending.progressed_at > resent_at:
                    resent_at = None
                elif silent_seconds >= self.timeout_seconds:
                    raise PeerLost(f"{self.member.name} did not answer within {self.timeout_seconds:g} s")
                elif resent_at is None and self._policy.due(pending.progressed_at, loop.time()):
                    resent_at = loop.time()
                    if sender.done():
                        # The node recognises what it has applied, and repeats the answer.
                        sender = asyncio.ensure_future(self._send_chunks(chunk, pending, first=False))
        finally:
            del self._pending[number]
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _ended(self, pending: _Pending, sender: asyncio.Future[None], *, resent: bool) -> bool:
        """Wait until a request ends or its repeat is due; return whether it ended.

        Raises the request's error, or the error that kept its chunks from being sent.
        """
        # A repeated request has the rest of the timeout.
        policy = RetransmitPolicy(self.timeout_seconds) if resent else self._policy
        left = policy.left_seconds(pending.progressed_at, asyncio.get_running_loop().time())
        watched: set[asyncio.Future[None]] = {pending.done} | (set() if sender.done() else {sender})
        await asyncio.wait(watched, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if pending.done.done():
            pending.done.result()
            return True
        if sender.done():
            sender.result()
        return False

    def mark_lost(self) -> None:
        """Mark the node as lost: pending and later requests end with PeerLost."""
        self.lost = True
        for pending in self._pending.values():
            self._fail(pending, "is lost")

    async def receive(self) -> None:
        """Receive answers until cancelled."""
        while True:
            parts = await self.socket.recv_multipart(copy=False)
            buffers = [part.buffer for part in parts]
            size = sum(buffer.nbytes for buffer in buffers)
            self.traffic.received += size
            self.received_bytes += size
            try:
                message = decode(buffers)
            except ProtocolError as error:
                self._refuse(f"sent an invalid message: {error}")
                continue
            if isinstance(message, CenterValues):
                self._accept(message, size)
            elif isinstance(message, Failure):
                self._refuse(f"answered: {message.what}")
                if (refused := self._pending.get(message.request)) is not None:
                    self._fail(refused, f"answered: {message.what}")
            else:
                self._refuse(f"answered with a {message.KIND}")

    async def _send_chunks(
        self, chunk: Callable[[int, int], Message], pending: _Pending, *, first: bool
    ) -> None:
        for start in sorted(pending.missing):
            stop = min(start + self.chunk, self.part.stop)
            message = chunk(start, stop)
            frames = encode(message)
            size = sum(memoryview(frame).nbytes for frame in frames)
            self.traffic.sent += size
            self.sent_bytes += size
            if isinstance(message, CenterExchange):
                pending.is_exchange = True
                self.traffic.went_up(size, message.elements)
            await cast("Awaitable[Any]", self.socket.send_multipart(frames, copy=False))
            if first:
                pending.progressed_at = asyncio.get_running_loop().time()

    def _accept(self, message: CenterValues, size: int) -> None:
        pending = self._pending.get(message.request)
        if pending is None or message.start not in pending.missing:
            return
        pending.progressed_at = asyncio.get_running_loop().time()
        if pending.is_exchange:
            self.traffic.went_down(size, message.elements)
        if pending.target is not None:
            at = message.start - self.part.start
            stop = min(at + self.chunk, len(pending.target))
            if message.elements != stop - at:
                self._refuse(f"answered with {message.elements} elements; {stop - at} are expected")
                return
            try:
                values = decode_chunk(self.down, message.payload, message.elements, coded=message.coded)
            except CodecError as error:
                self._refuse(f"answered with values that cannot be decoded: {error}")
                return
            pending.target[at:stop] = values
        pending.missing.discard(message.start)
        if not pending.missing and not pending.done.done():
            pending.done.set_result(None)

    def _fail(self, pending: _Pending, why: str) -> None:
        if not pending.done.done():
            pending.done.set_exception(PeerLost(f"{self.member.name} {why}"))

    def _refuse(self, why: str) -> None:
        self.refused_messages += 1
        log.error("%s %s", self.member.name, why)


class _OpenExchange:
    """An exchange without a complete answer: its number, and its chunks as they were first sent."""

    def __init__(self, number: int, part: Slice, values: Float32Array, reference: Reference) -> None:
        self.number = number
        self._start = part.start
        self._values = values
        self._reference = reference
        self._chunks: dict[int, CenterExchange] = {}

    def chunk(self, start: int, stop: int) -> CenterExchange:
        """Return the message with these elements of the values.

        Encoding changes the reference, so a repeat sends the chunk as it was encoded.
        """
        if start not in self._chunks:
            at = start - self._start
            version, encoded = self._reference.encode(at, self._values[at : at + stop - start])
            self._chunks[start] = CenterExchange(self.number, start, stop - start, version, encoded.payload)
        return self._chunks[start]


class CenterClient:
    """The center, for one thread's asyncio loop; implements `Center` of `sync_algos.base`.

    It is made on that loop. A request is sent again after half its timeout. It ends with PeerLost at the
    timeout, or at once if the node refuses it or the coordinator reports the node as lost.

    Exchanges are encoded by `codecs`. With a lossy codec up, both ends keep the last values of each slice as
    the reference. A failed exchange leaves no reference, and the next one is sent as float32. Reads and seeds
    are float32.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        numel: int,
        identity: str,
        *,
        chunk_bytes: int,
        timeout_seconds: float,
        codecs: LinkCodecs | None = None,
    ) -> None:
        codecs = codecs or LinkCodecs()
        self._next_request = 1
        self._answered_slices = 0
        self.traffic = Traffic()
        async_context = zmq.asyncio.Context(context)
        self._connections = [
            CenterConnection.connect(
                async_context,
                identity,
                member,
                part=part,
                chunk=max(1, chunk_bytes // 4),
                down=codecs.down,
                timeout_seconds=timeout_seconds,
                traffic=self.traffic,
            )
            for member, part in zip(members, split_evenly(numel, len(members)), strict=False)
        ]
        self._references = {
            connection.part: Reference(codecs.up, len(connection.part)) for connection in self._connections
        }
        self._open: dict[Slice, _OpenExchange] = {}
        # One answer of each slice.
        self._answers = BufferPool(sum(bytes_of(len(connection.part)) for connection in self._connections))
        self._tasks = [
            asyncio.get_running_loop().create_task(connection.receive()) for connection in self._connections
        ]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices of the flat buffer in order; together they cover it."""
        return tuple(connection.part for connection in self._connections)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent so far; any thread may read it."""
        return self.traffic.sent

    @property
    def received_bytes(self) -> int:
        """Bytes received so far; any thread may read it."""
        return self.traffic.received

    @property
    def refused_messages(self) -> int:
        """Received messages that could not be used, including refusals of sync nodes."""
        return sum(connection.refused_messages for connection in self._connections)

    @property
    def reference_bytes(self) -> int:
        """Memory of the references in bytes; any thread may read it."""
        return sum(reference.memory_bytes for reference in self._references.values())

    def metrics(self) -> dict[str, int]:
        """Return this client's counts, to be summed over a trainer's threads.

        Any thread may call.
        """
        counts = {
            "reference_bytes": self.reference_bytes,
            "answered_slices": self._answered_slices,
            "refused_messages": self.refused_messages,
        }
        ends = {f"to/{connection.member.name}": connection.sent_bytes for connection in self._connections}
        ends |= {
            f"from/{connection.member.name}": connection.received_bytes for connection in self._connections
        }
        return self.traffic.metrics("center") | counts | ends

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """See `Center.exchange`.

        `values` must not change until this returns or raises. A slice has one exchange at a time.
        """
        if values.dtype != torch.float32 or values.shape != (len(part),) or not values.is_contiguous():
            raise ValueError(
                f"{values.dtype} of shape {tuple(values.shape)} given; "
                f"contiguous float32 [{len(part)}] is expected"
            )
        reference = self._references[part]
        reference.begin()
        self._open[part] = _OpenExchange(self._number(), part, values.numpy(), reference)
        return await self.settle(part)

    async def settle(self, part: Slice) -> torch.Tensor:
        """See `Center.settle`; a sync node keeps the answer until this thread's next exchange."""
        exchange = self._open.get(part)
        if exchange is None:
            raise RuntimeError(f"the last exchange of elements {part.start} to {part.stop} was answered")
        answer = self._answers.take(len(part))
        await self._connection(part).request(exchange.number, exchange.chunk, answer)
        self._references[part].complete(exchange.number)
        del self._open[part]
        self._answered_slices += 1
        return torch.from_numpy(answer)

    async def read(self, part: Slice) -> torch.Tensor:
        """Return the center's slice as it is now, float32 [len(part)]; raises PeerLost."""
        answer = np.empty(len(part), dtype=np.float32)
        number = self._number()
        await self._connection(part).request(number, lambda a, b: CenterRead(number, a, b), answer)
        return torch.from_numpy(answer)

    async def read_all(self) -> torch.Tensor:
        """Return the whole center, float32 [numel]; raises PeerLost if a slice cannot be read."""
        return torch.cat(
            list(await asyncio.gather(*(self.read(connection.part) for connection in self._connections)))
        )

    async def seed(self, flat: torch.Tensor) -> None:
        """Send every sync node its slice's bounds and first value; raises PeerLost."""
        # Frames are sent without a copy, and a repeat may still be queued when this returns.
        array = flat.numpy().copy()

        async def one(connection: CenterConnection) -> None:
            number, part = self._number(), connection.part

            def chunk(start: int, stop: int) -> CenterSeed:
                return CenterSeed(number, part.start, part.stop, start, array[start:stop])

            await connection.request(number, chunk, None)

        await asyncio.gather(*(one(connection) for connection in self._connections))

    def mark_lost(self, token: str) -> None:
        """Mark the node with this token as lost.

        Pending and later requests end with PeerLost.
        """
        for connection in self._connections:
            if connection.member.token == token:
                connection.mark_lost()

    async def close(self) -> None:
        """End the receiving tasks and close the sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            connection.socket.close()

    def _connection(self, part: Slice) -> CenterConnection:
        return next(connection for connection in self._connections if connection.part == part)

    def _number(self) -> int:
        number, self._next_request = self._next_request, self._next_request + 1
        return number
