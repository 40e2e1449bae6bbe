"""Connections through an emulated slow or broken network.

Bytes are delayed, rate-limited, and held back or cut off on request. Messages are not parsed. Each direction
of a listening node is one `ThrottledLink`, shared by all connections to that node, as a network card is.
Written by hand: toxiproxy is a binary of its own, and relays TCP only.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

from ...pipeline.wire.sockets import ROOT
from ...pipeline.wire.tasks import TaskSet

# Most bytes of one connection in flight in one direction. Beyond it the sender waits, as it would for a
# receive window: at a delay of 200 ms that is 320 MB/s.
MAX_ON_THE_WAY = 64 << 20
WRITE_BUFFER = 1 << 20
# Connections to one node, each of two files. A node that connects sends its first bytes at once.
MOST_CONNECTIONS = 4096
SILENT_SECONDS = 10.0

_END = b""
# The kernel's struct ucred: process, user, group.
_CREDENTIALS = struct.Struct("iII")

log = logging.getLogger(__name__)


class ThrottledLink:
    """One direction of a slow network card; without limit if `bytes_per_second` is None."""

    def __init__(self, delay_seconds: float, bytes_per_second: float | None) -> None:
        self._delay = delay_seconds
        self._rate = bytes_per_second
        self._free_at = 0.0
        self._held_until = 0.0
        self._more_until = 0.0
        self._more_seconds = 0.0
        self.bytes = 0

    def hold(self, until: float) -> None:
        """Hold back bytes that enter from now on until `until`, in the loop's time."""
        self._held_until = until

    def delay_more(self, seconds: float, until: float) -> None:
        """Add to the delay of bytes that enter before `until`, in the loop's time."""
        self._more_seconds, self._more_until = seconds, until

    def arrival_time(self, now: float, size: int) -> float:
        """Return when the last of `size` bytes arrives.

        The bytes pass after all bytes that entered before; then the delay is added.
        """
        self.bytes += size
        passed = now
        if self._rate is not None:
            passed = self._free_at = max(self._free_at, now) + size / self._rate
        more = self._more_seconds if now < self._more_until else 0.0
        return max(passed + self._delay + more, self._held_until)


class Endpoint(asyncio.Protocol):
    """One end of a relayed connection.

    Holds received bytes that the other end has not got yet. Runs on one asyncio loop. The end of a connection
    travels as its bytes do, behind them.
    """

    def __init__(self, link: ThrottledLink, loop: asyncio.AbstractEventLoop, living: set[Endpoint]) -> None:
        self.other: Endpoint | None = None
        self.transport: asyncio.Transport | None = None
        self._link = link
        self._loop = loop
        self._living = living
        self._queue: deque[tuple[float, bytes]] = deque()
        self._on_the_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._lost = False
        self._aborted = False
        self._end_entered = False
        self._end_delivered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass on the waiting bytes for this end, which is now open."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.transport = transport
        self._living.add(self)
        if self._aborted:
            transport.abort()
        elif self.other is not None:
            self.other.deliver()

    def data_received(self, data: bytes) -> None:
        """Enter bytes into the link; stop reading past the bound."""
        if self.other is None or self.other._lost:
            return
        self._queue.append((self._link.arrival_time(self._loop.time(), len(data)), data))
        self._on_the_way += len(data)
        if self._on_the_way > MAX_ON_THE_WAY and self.transport is not None:
            self.transport.pause_reading()
        self.deliver()

    def eof_received(self) -> bool:
        """Enter this direction's end; the other direction stays open."""
        self._enter_end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Drop bytes in flight to this end, which is gone."""
        self._lost = True
        self._living.discard(self)
        if self.other is not None:
            self.other._drop()
        self._enter_end()

    def pause_writing(self) -> None:
        """Note that this end takes no more now."""
        self._full = True

    def resume_writing(self) -> None:
        """Pass on waiting bytes, now that this end takes more."""
        self._full = False
        if self.other is not None:
            self.other.deliver()

    def abort(self) -> None:
        """End this end at once, or as soon as it is open."""
        self._aborted = True
        if self.transport is not None:
            self.transport.abort()

    def deliver(self) -> None:
        """Pass on bytes that are due, and set a timer for the rest."""
        to = self.other
        if to is None or to.transport is None or to._full or to._lost:
            return
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now and not to._full:
            _, data = self._queue.popleft()
            if data == _END:
                self._deliver_end(to)
                return
            self._on_the_way -= len(data)
            to.transport.write(data)
        if self._on_the_way <= MAX_ON_THE_WAY // 2 and self.transport is not None and not self._end_entered:
            self.transport.resume_reading()
        if self._queue and not to._full and self._timer is None:
            self._timer = self._loop.call_at(self._queue[0][0], self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.deliver()

    def _enter_end(self) -> None:
        if not self._end_entered:
            self._end_entered = True
            self._queue.append((self._link.arrival_time(self._loop.time(), 0), _END))
            self.deliver()
        elif self._lost and self._end_delivered and self.other is not None and self.other.transport:
            # The other end was left open for answers, but nobody is left to receive them.
            self.other.transport.close()

    def _deliver_end(self, to: Endpoint) -> None:
        self._end_delivered = True
        assert to.transport is not None
        if self._lost or to._end_delivered:
            to.transport.close()
            if self.transport is not None:
                self.transport.close()
        elif not to.transport.is_closing():
            to.transport.write_eof()

    def _drop(self) -> None:
        self._queue.clear()
        self._on_the_way = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class NearEnd(Endpoint):
    """The end of a process that connected to this relay.

    Processes of other users are turned away, as at the node itself: see `wire.sockets.bind`. So is one that
    sends nothing for SILENT_SECONDS.

    Attributes:
        silent: whether it has sent nothing yet.
    """

    def __init__(
        self,
        link: ThrottledLink,
        loop: asyncio.AbstractEventLoop,
        living: set[Endpoint],
        lost: Callable[[NearEnd], object],
    ) -> None:
        super().__init__(link, loop, living)
        self.silent = True
        self._on_lost = lost
        self._patience = loop.call_later(SILENT_SECONDS, self.abort)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not is_own_user(transport):
            self.abort()

    def data_received(self, data: bytes) -> None:
        self.silent = False
        self._patience.cancel()
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._on_lost(self)
        super().connection_lost(exc)


def is_own_user(transport: asyncio.BaseTransport) -> bool:
    """Return whether the other end may connect.

    Over a Unix socket it must be of this user or root, as the kernel recorded it.
    """
    accepted: socket.socket = transport.get_extra_info("socket")
    if accepted.family != socket.AF_UNIX:
        return True
    credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1] in (os.getuid(), ROOT)


class ProxyListener:
    """A listener in a node's place: relays each connection to that node.

    With `most` connections open, one more closes the oldest that has sent nothing; if all have, it is closed
    itself.
    """

    def __init__(
        self,
        target: str,
        delay_seconds: float,
        bytes_per_second: float | None,
        most: int = MOST_CONNECTIONS,
    ) -> None:
        self.target = target
        self.inward = ThrottledLink(delay_seconds, bytes_per_second)
        self.outward = ThrottledLink(delay_seconds, bytes_per_second)
        self.connections = 0
        self.refused = 0
        self._most = most
        # In order of arrival.
        self._near: dict[NearEnd, None] = {}
        self._server: asyncio.AbstractServer | None = None
        self._ends: set[Endpoint] = set()
        self._cut_until = 0.0
        self._tasks = TaskSet(_log_failure)

    async def open(self, listen: str) -> str:
        """Listen at an endpoint; return the one bound, which differs for port 0."""
        loop = asyncio.get_running_loop()
        if listen.startswith("ipc://"):
            self._server = await loop.create_unix_server(self._accept, unix_path(listen))
            return listen
        host, port = _host_and_port(listen)
        server = self._server = await loop.create_server(self._accept, host, port)
        return f"tcp://{host}:{server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening and end every connection at once."""
        if self._server is not None:
            self._server.close()
        self.reset()
        await self._tasks.close()

    @property
    def open_ends(self) -> int:
        return len(self._ends)

    def reset(self) -> None:
        """End every connection at once."""
        for end in tuple(self._ends):
            end.abort()

    def cut(self, until: float) -> None:
        """End every connection, and each new one before `until`, in the loop's time."""
        self._cut_until = until
        self.reset()

    def _accept(self) -> Endpoint:
        loop = asyncio.get_running_loop()
        near = NearEnd(self.inward, loop, self._ends, self._forget)
        far = Endpoint(self.outward, loop, self._ends)
        near.other, far.other = far, near
        self.connections += 1
        is_one_too_many = self._is_full() and not self._make_room()
        self._near[near] = None
        if is_one_too_many or loop.time() < self._cut_until:
            near.abort()
            return near
        self._tasks.start(self._connect_target(near, far))
        return near

    def _is_full(self) -> bool:
        return len(self._near) >= self._most

    def _make_room(self) -> bool:
        """Close the oldest connection that has sent nothing; return whether there is one."""
        self.refused += 1
        silent = next((connection for connection in self._near if connection.silent), None)
        if silent is None:
            return False
        self._forget(silent)
        silent.abort()
        return True

    def _forget(self, near: NearEnd) -> None:
        self._near.pop(near, None)

    async def _connect_target(self, near: Endpoint, far: Endpoint) -> None:
        try:
            await open_connection(lambda: far, self.target)
        except OSError:
            # As if the near end had found nobody listening.
            near.abort()


def _log_failure(error: BaseException) -> None:
    log.error("a connection could not be relayed", exc_info=error)


async def open_connection(make: Callable[[], asyncio.Protocol], endpoint: str) -> asyncio.BaseTransport:
    """Open a connection to `tcp://HOST:PORT` or `ipc://@NAME`; raises OSError."""
    loop = asyncio.get_running_loop()
    if endpoint.startswith("ipc://"):
        return (await loop.create_unix_connection(make, unix_path(endpoint)))[0]
    return (await loop.create_connection(make, *_host_and_port(endpoint)))[0]


def unix_path(endpoint: str) -> str:
    """Return the socket's path of `ipc://@NAME`."""
    # ZeroMQ's "@" is the zero byte that makes a name abstract.
    return "\0" + endpoint.removeprefix("ipc://@")


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host.strip("[]"), int(port)
