"""A sync node on the test's own loop, whose answers the test may drop, delay or change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import zmq
import zmq.asyncio
from shadowsync.nodes.sync.center import CenterState, Rule
from shadowsync.pipeline.codecs.formats import LinkCodecs
from shadowsync.pipeline.wire.center_messages import CenterExchange, CenterRead, CenterSeed, CenterValues
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.frames import decode, encode
from shadowsync.pipeline.wire.messages import Failure
from shadowsync.pipeline.wire.schema import Message

Leaving = Sequence[Message | bytes]


def as_it_is(reply: CenterValues) -> Leaving:
    """What a sync node of ours does."""
    return [reply]


class FakeCenter:
    """Serves one link from a `CenterState`; `leaving` says what leaves in the place of an answer.

    Bytes leave as they are, as a header. While it is `deaf`, requests are lost. With `bytes_per_second` it
    takes so long for each message, as over a slow link.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        rule: Rule,
        leaving: Callable[[CenterValues], Leaving] = as_it_is,
        index: int = 0,
        codecs: LinkCodecs | None = None,
        *,
        deltas: bool = False,
    ) -> None:
        self.state = CenterState(rule, codecs, deltas=deltas)
        self.heard: list[Message] = []
        self.leaving = leaving
        self.deaf = False
        self.bytes_per_second = math.inf
        self._socket = zmq.asyncio.Context(context).socket(zmq.ROUTER)
        # As the product's: a peer that connects again takes its own place.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # No thread of ZeroMQ is between the two ends, so a test may run in virtual time.
        endpoint = f"inproc://center-{index}-{uuid4().hex}"
        self._socket.bind(endpoint)
        self.member = MemberInfo(f"sync-{index}", "sync", index, f"token-{index}", endpoint)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._changed = asyncio.Condition()

    async def until_heard(self, count: int) -> None:
        """Returns when so many messages came."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.heard) >= count)

    async def close(self) -> None:
        """Ends the task; an error of it is raised here."""
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close(linger=0)
        assert isinstance(ended, asyncio.CancelledError), ended

    async def _serve(self) -> None:
        while True:
            identity, *frames = await self._socket.recv_multipart()
            await self._carry(frames)
            message = decode(frames)
            if self.deaf:
                continue
            # Before it is answered: who has the answer may look at once.
            self.heard.append(message)
            for reply in self._replies_or_failure(identity, message):
                for out in self.leaving(reply) if isinstance(reply, CenterValues) else [reply]:
                    wire = [out] if isinstance(out, bytes) else encode(out)
                    await self._carry(wire)
                    await self._socket.send_multipart([identity, *wire])
            async with self._changed:
                self._changed.notify_all()

    async def _carry(self, frames: Sequence[Any]) -> None:
        if self.bytes_per_second < math.inf:
            size = sum(memoryview(frame).nbytes for frame in frames)
            await asyncio.sleep(size / self.bytes_per_second)

    def _replies_or_failure(self, identity: bytes, message: Message) -> Sequence[CenterValues | Failure]:
        try:
            return self._replies(identity, message)
        except ValueError as error:
            return [Failure(getattr(message, "request", 0), str(error))]

    def _replies(self, identity: bytes, message: Message) -> list[CenterValues]:
        if isinstance(message, CenterExchange):
            return self.state.exchange(identity, message)
        if isinstance(message, CenterRead):
            return [self.state.read(message)]
        assert isinstance(message, CenterSeed), message
        return [self.state.seed(message)]
