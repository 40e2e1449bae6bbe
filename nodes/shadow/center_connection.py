"""A connection of a trainer's thread to one sync node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from ...pipeline.codecs.feedback import decode_chunk
from ...pipeline.codecs.formats import CodecError, Float32
from ...pipeline.errors import ProtocolError
from ...pipeline.text.format import duration
from ...pipeline.types import Float32Array, is_finite
from ...pipeline.wire.center_messages import CenterExchange, CenterValues
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.messages import Failure
from ...pipeline.wire.refusals import Refusals
from ...pipeline.wire.rpc.retransmission import CENTER_TIMES, RetransmitPolicy
from ...pipeline.wire.schema import Message
from ...pipeline.wire.socket_events import SocketTurns
from ...pipeline.wire.sockets import send_frames
from ...sync_algos.base import PeerLost, Slice
from ..runtime.members import Traffic

# Few, so that a chunk enters the socket shortly before it is sent.
QUEUED_CHUNKS = 8
RECEIVED_AT_ONCE = 8
Decode = Callable[[int, CenterValues], Float32Array]
"""Makes the values of an answer's chunk that begins at this element of the slice; raises CodecError."""

log = logging.getLogger(__name__)


@dataclass
class _Pending:
    """An unanswered request and its missing chunks."""

    missing: set[int]
    target: Float32Array | None
    decode: Decode
    done: asyncio.Future[None]
    progressed_at: float
    is_exchange: bool = False


class CenterConnection:
    """A connection to one sync node.

    It is created on the asyncio loop that it belongs to.

    Args:
        part: the slice that the node holds.
        chunk: most elements of a chunk.
        traffic: the counts of all connections of the thread.
    """

    def __init__(
        self,
        member: MemberInfo,
        part: Slice,
        socket: zmq.Socket[bytes],
        *,
        chunk: int,
        timeout_seconds: float,
        traffic: Traffic,
    ) -> None:
        self.member = member
        self.part = part
        self.socket = socket
        self.chunk = chunk
        self.timeout_seconds = timeout_seconds
        self.traffic = traffic
        self.lost = False
        self.refusals = Refusals(log)
        self.sent_bytes = 0
        self.received_bytes = 0
        self._policy = RetransmitPolicy.in_timeout(timeout_seconds, CENTER_TIMES)
        self._pending: dict[int, _Pending] = {}
        # Set when the socket's queue may have room.
        self._room = asyncio.Event()
        self._turns = SocketTurns(self._take_turn, socket)

    async def request(
        self,
        number: int,
        chunk: Callable[[int, int], Message],
        target: Float32Array | None,
        decode: Decode | None = None,
    ) -> None:
        """Send the messages that `chunk(start, stop)` makes, and await an answer to each.

        The answers' values, which `decode` returns, are written to `target`, float32 of the slice's
        length. The timeout restarts with every chunk that the socket
        accepts and with every answer, so that a large slice on a slow link does not count as a lost node.
        After half the timeout, unanswered chunks are sent again.

        Raises:
            PeerLost: the node is gone or refused the request, or nothing was sent or answered for the
                timeout.
        """
        if self.lost:
            raise PeerLost(f"{self.member.name} is lost")
        starts = range(self.part.start, self.part.stop, self.chunk)
        loop = asyncio.get_running_loop()
        pending = _Pending(set(starts), target, decode or _plain, loop.create_future(), loop.time())
        self._pending[number] = pending
        sender = asyncio.ensure_future(self._send_chunks(chunk, pending, first=True))
        resent_at: float | None = None
        try:
            while not await self._ended(pending, sender, resent=resent_at is not None):
                silent_seconds = loop.time() - pending.progressed_at
                if resent_at is not None and pending.progressed_at > resent_at:
                    resent_at = None
                elif silent_seconds >= self.timeout_seconds:
                    raise PeerLost(
                        f"{self.member.name} did not answer within {duration(self.timeout_seconds)}"
                    )
                elif resent_at is None and self._policy.due(pending.progressed_at, loop.time()):
                    resent_at = loop.time()
                    if sender.done():
                        # The node recognises an applied chunk, and repeats the answer.
                        sender = asyncio.ensure_future(self._send_chunks(chunk, pending, first=False))
        finally:
            del self._pending[number]
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _ended(self, pending: _Pending, sender: asyncio.Future[None], *, resent: bool) -> bool:
        """Wait until a request ends or its repeat is due.

        Returns whether it ended. Raises the request's error, or the error of sending its chunks.
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

    def close(self) -> None:
        """Close the socket; pending requests end with PeerLost.

        Queued messages get some time to be sent.
        """
        self.mark_lost()
        self._turns.close()
        self.socket.close()

    def _take_turn(self) -> None:
        self._room.set()
        self._turns.receive(self.socket, self._receive, RECEIVED_AT_ONCE)

    def _receive(self) -> None:
        buffers = [part.buffer for part in self.socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        size = sum(buffer.nbytes for buffer in buffers)
        self.traffic.received += size
        self.received_bytes += size
        try:
            message = decode(buffers)
        except ProtocolError as error:
            self._refuse(f"sent an invalid message: {error}")
            return
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
            await self._queue(frames)
            if first:
                pending.progressed_at = asyncio.get_running_loop().time()

    async def _queue(self, frames: list[Any]) -> None:
        """Queue a message as soon as the socket has room for it."""
        while True:
            self._room.clear()
            try:
                send_frames(self.socket, frames, zmq.NOBLOCK)
            except zmq.Again:
                # The attempt consumed the socket's signal: an answer may have come, or there is room now.
                if self.socket.getsockopt(zmq.EVENTS):
                    self._turns.wake()
                await self._room.wait()
            else:
                self._turns.wake()
                return

    def _accept(self, message: CenterValues, size: int) -> None:
        pending = self._pending.get(message.request)
        if pending is None or message.start not in pending.missing:
            return
        pending.progressed_at = asyncio.get_running_loop().time()
        if pending.is_exchange:
            self.traffic.went_down(size, message.elements)
        if pending.target is not None:
            offset = message.start - self.part.start
            stop = min(offset + self.chunk, len(pending.target))
            if message.elements != stop - offset:
                self._refuse(f"answered with {message.elements} elements; {stop - offset} are expected")
                return
            try:
                values = pending.decode(offset, message)
            except CodecError as error:
                self._refuse(f"answered with values that cannot be decoded: {error}")
                return
            if not is_finite(values):
                # A center takes finite values only; with these no replica would be.
                self._refuse("answered with values that are not all finite")
                return
            pending.target[offset:stop] = values
        pending.missing.discard(message.start)
        if not pending.missing and not pending.done.done():
            pending.done.set_result(None)

    def _fail(self, pending: _Pending, why: str) -> None:
        if not pending.done.done():
            pending.done.set_exception(PeerLost(f"{self.member.name} {why}"))

    def _refuse(self, why: str) -> None:
        self.refusals.add("%s %s", self.member.name, why)


def _plain(offset: int, message: CenterValues) -> Float32Array:  # noqa: ARG001
    return decode_chunk(Float32(), message.payload, message.elements, coded=False)
