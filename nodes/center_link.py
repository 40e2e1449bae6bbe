"""A trainer thread's link to the sync nodes: exchanges, reads and seeds, in chunks, all slices at once."""

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

from ..pipeline.data.batch import Float32Array
from ..pipeline.errors import ProtocolError
from ..pipeline.wire.frames import decode, encode
from ..pipeline.wire.messages import CenterExchange, CenterRead, CenterSeed, CenterValues, Failure
from ..pipeline.wire.schema import Message
from ..pipeline.wire.sockets import prepare
from ..sync_algos.base import PeerLost, Slice
from ..sync_algos.memory import split_evenly
from .role import MemberInfo

QUEUED_CHUNKS = 64

log = logging.getLogger(__name__)


@dataclass
class _Pending:
    """A request on its way: which chunks are not answered, and where answers go."""

    missing: set[int]
    target: Float32Array | None
    origin: int
    done: asyncio.Future[None]


@dataclass
class _Line:
    """The socket to one sync node."""

    member: MemberInfo
    part: Slice
    socket: zmq.asyncio.Socket
    lost: bool = False
    pending: dict[int, _Pending] = field(default_factory=dict)


class CenterLink:
    """The center as one thread's asyncio loop sees it; implements `Center` of `sync_algos.base`.

    Made on that loop. Every request is sent again at half its timeout, and given up with PeerLost at the
    timeout, or at once when the coordinator says that the node is gone.
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
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunk = max(1, chunk_bytes // 4)
        self._timeout_seconds = timeout_seconds
        self._next_request = 1
        self.sent_bytes = 0
        self.received_bytes = 0
        self.refused_messages = 0
        self._lines: list[_Line] = []
        parts = split_evenly(numel, len(members))
        async_context = zmq.asyncio.Context(context)
        for member, part in zip(members, parts, strict=False):
            socket = async_context.socket(zmq.DEALER)
            prepare(socket)
            socket.setsockopt(zmq.SNDHWM, QUEUED_CHUNKS)
            socket.setsockopt_string(zmq.IDENTITY, identity)
            socket.connect(member.endpoint)
            self._lines.append(_Line(member, part, socket))
        self._tasks = [self._loop.create_task(self._receive(line)) for line in self._lines]

    @property
    def slices(self) -> tuple[Slice, ...]:
        """The slices, in order; together they are the whole flat buffer."""
        return tuple(line.part for line in self._lines)

    async def exchange(self, part: Slice, values: torch.Tensor) -> torch.Tensor:
        """See `Center.exchange`. `values` must not be changed until this returns or raises."""
        array = values.numpy()
        answer = np.empty(len(part), dtype=np.float32)

        def chunk(request: int, start: int, stop: int) -> Message:
            return CenterExchange(request, start, array[start - part.start : stop - part.start])

        await self._request(self._line(part), chunk, answer)
        return torch.from_numpy(answer)

    async def read(self, part: Slice) -> torch.Tensor:
        """The center's slice as it is now, float32 [len(part)]; raises PeerLost."""
        answer = np.empty(len(part), dtype=np.float32)
        await self._request(self._line(part), CenterRead, answer)
        return torch.from_numpy(answer)

    async def read_all(self) -> torch.Tensor:
        """The whole center, float32 [numel]; raises PeerLost if any slice cannot be read."""
        return torch.cat(list(await asyncio.gather(*(self.read(line.part) for line in self._lines))))

    async def seed(self, flat: torch.Tensor) -> None:
        """Gives every sync node its slice and first value; raises PeerLost."""
        # Frames leave without a copy, perhaps after this returned: a repeat may still be queued then.
        array = flat.numpy().copy()

        async def one(line: _Line) -> None:
            def chunk(request: int, start: int, stop: int) -> Message:
                return CenterSeed(request, line.part.start, line.part.stop, start, array[start:stop])

            await self._request(line, chunk, None)

        await asyncio.gather(*(one(line) for line in self._lines))

    def lose(self, token: str) -> None:
        """The node with this token is gone: what waits for it ends with PeerLost, as will later requests."""
        for line in self._lines:
            if line.member.token == token:
                line.lost = True
                for pending in line.pending.values():
                    if not pending.done.done():
                        pending.done.set_exception(PeerLost(f"{line.member.name} is gone"))

    async def close(self) -> None:
        """Ends the receiving tasks and closes the sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self._lines:
            line.socket.close()

    def _line(self, part: Slice) -> _Line:
        return next(line for line in self._lines if line.part == part)

    async def _request(
        self, line: _Line, chunk: Callable[[int, int, int], Message], target: Float32Array | None
    ) -> None:
        if line.lost:
            raise PeerLost(f"{line.member.name} is gone")
        request, self._next_request = self._next_request, self._next_request + 1
        starts = range(line.part.start, line.part.stop, self._chunk)
        pending = _Pending(set(starts), target, line.part.start, self._loop.create_future())
        line.pending[request] = pending
        try:
            for _ in range(2):
                # The second time only what is not answered; the node recognises what it has applied.
                sending = self._send_chunks(line, request, chunk, pending)
                if await self._bounded(sending, pending, self._timeout_seconds / 2):
                    return
            raise PeerLost(f"{line.member.name} did not answer within {self._timeout_seconds:g} s")
        finally:
            del line.pending[request]

    async def _send_chunks(
        self, line: _Line, request: int, chunk: Callable[[int, int, int], Message], pending: _Pending
    ) -> None:
        for start in sorted(pending.missing):
            frames = encode(chunk(request, start, min(start + self._chunk, line.part.stop)))
            self.sent_bytes += sum(memoryview(frame).nbytes for frame in frames)
            await cast("Awaitable[Any]", line.socket.send_multipart(frames, copy=False))

    async def _bounded(self, sending: Awaitable[None], pending: _Pending, seconds: float) -> bool:
        sender = asyncio.ensure_future(sending)
        try:
            await asyncio.wait({pending.done}, timeout=seconds)
            if not pending.done.done():
                if sender.done():
                    # Raises what kept the chunks from being sent.
                    sender.result()
                return False
            pending.done.result()
            return True
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def _receive(self, line: _Line) -> None:
        while True:
            parts = await line.socket.recv_multipart(copy=False)
            buffers = [part.buffer for part in parts]
            self.received_bytes += sum(buffer.nbytes for buffer in buffers)
            try:
                message = decode(buffers)
            except ProtocolError as error:
                self.refused_messages += 1
                log.error("refused a message from %s: %s", line.member.name, error)
                continue
            if isinstance(message, CenterValues):
                self._accept(line, message)
            else:
                self.refused_messages += 1
                what = message.what if isinstance(message, Failure) else f"a {message.KIND}"
                log.error("%s answered: %s", line.member.name, what)

    def _accept(self, line: _Line, message: CenterValues) -> None:
        pending = line.pending.get(message.request)
        if pending is None or message.start not in pending.missing:
            return
        if pending.target is not None:
            at = message.start - pending.origin
            stop = min(at + self._chunk, len(pending.target))
            if len(message.values) != stop - at:
                self.refused_messages += 1
                log.error("%s answered %d elements of %d", line.member.name, len(message.values), stop - at)
                return
            pending.target[at:stop] = message.values
        pending.missing.discard(message.start)
        if not pending.missing and not pending.done.done():
            pending.done.set_result(None)
