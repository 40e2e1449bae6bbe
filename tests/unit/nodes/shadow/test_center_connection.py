"""When a sync node counts as lost: not while something moves. Time is virtual."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import zmq
from shadowsync.lab.virtual.clock import run_in_virtual_time
from shadowsync.nodes.runtime.members import Traffic
from shadowsync.nodes.shadow.center_connection import CenterConnection
from shadowsync.pipeline.codecs.formats import Float32
from shadowsync.pipeline.wire.center_messages import CenterRead, CenterValues
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.schema import Message
from shadowsync.sync_algos.base import PeerLost, Slice
from shadowsync.tests.support.coroutines import run_by

CHUNK, CHUNKS = 10, 6
TIMEOUT_SECONDS = 0.5


class SlowSocket:
    """Takes a chunk every `seconds`; 0: at once. Nothing can be received."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._has_room_at: float | None = None if seconds else 0.0
        self._descriptors = socket.socketpair()
        self.has_room: Callable[[], None] = lambda: None
        self.taken = 0

    def getsockopt(self, option: int) -> int:
        """The descriptor, and that there is neither a message nor room."""
        return self._descriptors[0].fileno() if option == zmq.FD else 0

    def send(self, frame: Any, flags: int, copy: bool = True) -> None:  # noqa: ARG002
        """As ZeroMQ's, when its queue is full."""
        loop = asyncio.get_running_loop()
        if self._has_room_at is None:
            self._has_room_at = loop.time() + self._seconds
            loop.call_later(self._seconds, lambda: self.has_room())
        if loop.time() < self._has_room_at:
            raise zmq.Again
        if not flags & zmq.SNDMORE:
            self.taken += 1
            self._has_room_at = None if self._seconds else 0.0


@pytest.fixture
def slow_socket() -> Iterator[Callable[[float], SlowSocket]]:
    """Makes sockets, and closes their descriptors."""
    made: list[SlowSocket] = []

    def make(seconds: float) -> SlowSocket:
        made.append(SlowSocket(seconds))
        return made[-1]

    yield make
    for slow in made:
        for descriptor in slow._descriptors:
            descriptor.close()


def connection_over(slow: SlowSocket) -> CenterConnection:
    """A connection to a node that never answers by itself."""
    connection = CenterConnection(
        member=MemberInfo("sync-0", "sync", 0, "s", ""),
        part=Slice(0, CHUNK * CHUNKS),
        socket=cast("zmq.Socket[bytes]", slow),
        chunk=CHUNK,
        timeout_seconds=TIMEOUT_SECONDS,
        traffic=Traffic(),
    )
    slow.has_room = connection._turns.wake
    return connection


def reply(connection: CenterConnection, number: int) -> None:
    """The answer to one chunk comes."""
    values = np.full(CHUNK, number, dtype=np.float32)
    connection._accept(CenterValues(1, CHUNK * number, CHUNK, False, Float32().encode(values)), 100)


def read(start: int, stop: int) -> Message:
    return CenterRead(1, start, stop)


async def call(slow: SlowSocket, replies: int, every_seconds: float) -> np.ndarray:
    """A request whose first answers come so late, one after the other."""
    connection, loop = connection_over(slow), asyncio.get_running_loop()
    for number in range(replies):
        loop.call_later(every_seconds * (number + 1), reply, connection, number)
    target = np.zeros(CHUNK * CHUNKS, dtype=np.float32)
    await asyncio.wait_for(connection.request(1, read, target), 60.0)
    return target


def test_answers_that_come_slowly_are_waited_for(slow_socket: Callable[[float], SlowSocket]) -> None:
    every = 0.6 * TIMEOUT_SECONDS
    found = run_in_virtual_time(call(slow_socket(0.0), CHUNKS, every))
    np.testing.assert_array_equal(found, np.repeat(np.arange(CHUNKS, dtype=np.float32), CHUNK))
    with pytest.raises(PeerLost, match="did not answer within"):
        run_in_virtual_time(call(slow_socket(0.0), CHUNKS - 1, every))


@run_by(run_in_virtual_time)
async def test_chunks_that_leave_slowly_are_waited_for(slow_socket: Callable[[float], SlowSocket]) -> None:
    """All of them take longer than the timeout; nothing is sent twice meanwhile."""
    slow = slow_socket(0.4 * TIMEOUT_SECONDS)
    whole = CHUNKS * 0.4 * TIMEOUT_SECONDS

    connection, loop = connection_over(slow), asyncio.get_running_loop()
    for number in range(CHUNKS):
        loop.call_later(whole + 0.1 * TIMEOUT_SECONDS, reply, connection, number)
    await asyncio.wait_for(connection.request(1, read, np.zeros(CHUNK * CHUNKS, dtype=np.float32)), 60.0)
    assert slow.taken == CHUNKS


def test_a_socket_that_takes_nothing_is_a_lost_node(slow_socket: Callable[[float], SlowSocket]) -> None:
    with pytest.raises(PeerLost, match="did not answer within"):
        run_in_virtual_time(call(slow_socket(100.0), 0, 1.0))
