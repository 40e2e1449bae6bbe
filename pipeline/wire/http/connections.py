"""Bounds of an HTTP server's connections: their number and their times.

aiohttp bounds neither: it accepts whatever comes, and a head or body that never ends stays. What it does
bound are headers, and the requests that wait on one connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from ...open_files import most_of_files
from ..refusals import CountedLog

BEGIN_SECONDS: Final = 10.0
"""Time until the head of a request is whole: from the connection, and from the first byte of a later one."""
BODY_SECONDS: Final = 30.0
"""Time for a body, from its head."""
READ_SECONDS: Final = 10.0
"""Time for which a client may read nothing of what it is sent."""
PACE_SECONDS: Final = 0.002
"""Pause after each connection that came while there were too many."""
ACCEPT_AGAIN_SECONDS: Final = 0.5
SHARE_OF_DESCRIPTORS: Final = 8
"""A listener takes at most one in so many of the files that the process may have open."""
FEWEST: Final = 4
BODY_OF_GET = "a GET has no body\n"


@dataclass(slots=True)
class ConnectionCounts:
    """Counts since the start; one loop writes, any thread may read.

    Attributes:
        refused: connections that were closed because too many were open.
        closed: connections that were closed because they asked for nothing, or were too slow.
    """

    refused: int = 0
    closed: int = 0


class State(Enum):
    NEW = auto()
    """No request of it has been answered well, or one is not whole."""
    BUSY = auto()
    """A whole request is being answered."""
    IDLE = auto()
    """Between two requests."""


class Connections:
    """The connections of one listening socket. All of it belongs to one asyncio loop.

    At most `most` are open. If one more comes, the one that has sent no whole request for the longest time is
    closed, or else one that waits for a further request. If all are being answered, the new one is closed,
    before anything is read.

    Args:
        most: limit, which is lower if the process may open few files.
        idle_seconds: after this time without another request, a connection is closed.
    """

    def __init__(self, log: logging.Logger, *, most: int, idle_seconds: float) -> None:
        self.most = most_connections(most)
        self.idle_seconds = idle_seconds
        self.counts = ConnectionCounts()
        self._log = log
        self._refused = CountedLog(log)
        # In the order in which they came into their state.
        self._by_state: dict[State, dict[asyncio.BaseTransport, HttpConnection]] = {
            state: {} for state in State
        }

    def __len__(self) -> int:
        return sum(map(len, self._by_state.values()))

    async def accept(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections until cancelled, one after the other."""
        loop = asyncio.get_running_loop()
        failures = CountedLog(self._log)
        listening.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Too few descriptors or too little memory, perhaps for a moment only.
                failures.add("cannot accept a connection: %s", error.strerror or error)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            full = len(self) >= self.most
            if full:
                self.counts.refused += 1
                self._refused.add("%d connections are open; closed one for another", self.most)
            if full and not self._make_room():
                accepted.close()
            else:
                await loop.connect_accepted_socket(lambda: HttpConnection(self, protocol()), accepted)
            # Who connects again and again gets no more of this process for it.
            await asyncio.sleep(PACE_SECONDS if full else 0)

    def middleware(self) -> Middleware:
        """Return middleware that times requests, and refuses a GET with a body."""

        @web.middleware
        async def attend(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._of(request.transport)
            if request.method in ("GET", "HEAD") and request.body_exists:
                response: web.StreamResponse = web.Response(status=400, text=BODY_OF_GET)
                response.force_close()
                return response
            connection.begin(request)
            answered = False
            try:
                response = await handler(request)
                answered = response.status < web.HTTPBadRequest.status_code
            finally:
                connection.end(answered=answered)
            return response

        return attend

    def enter(self, transport: asyncio.BaseTransport, connection: HttpConnection, state: State) -> None:
        """Record that a connection came into a state."""
        self.leave(transport)
        self._by_state[state][transport] = connection

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """Forget a connection."""
        for connections in self._by_state.values():
            connections.pop(transport, None)

    def close_late(self, transport: asyncio.Transport, *, count: bool) -> None:
        """Close a connection whose time is over, whatever is unsent."""
        self.leave(transport)
        self.counts.closed += count
        transport.abort()

    def _of(self, transport: asyncio.BaseTransport | None) -> HttpConnection:
        for connections in self._by_state.values():
            if transport is not None and transport in connections:
                return connections[transport]
        raise ConnectionResetError("the connection was closed")

    def _make_room(self) -> bool:
        """Close the connection that has waited for the longest time.

        Return whether there is one.
        """
        for state in (State.NEW, State.IDLE):
            for transport, connection in self._by_state[state].items():
                self.leave(transport)
                connection.abort()
                return True
        return False


class HttpConnection(asyncio.Protocol):
    """One connection of aiohttp's protocol, within the times of this module."""

    def __init__(self, owner: Connections, inner: asyncio.Protocol) -> None:
        self._owner = owner
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._answering = self._asked = self._between = self._unread = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.enter(transport, self, State.NEW)
        self._expect(BEGIN_SECONDS)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._between:
            self._between = False
            self._expect(BEGIN_SECONDS)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`; the client reads too slowly."""
        self._unread = True
        self._expect(READ_SECONDS)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._unread = False
        self._expect(None if self._answering else self._owner.idle_seconds)
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        if self._transport is not None:
            self._owner.leave(self._transport)
        self._inner.connection_lost(exc)

    def begin(self, request: web.BaseRequest) -> None:
        """Start to answer a request, whose body may still come."""
        self._between, self._asked = False, True
        if request.content.is_eof():
            self._answer()
        else:
            self._expect(BODY_SECONDS)
            request.content.on_eof(self._answer)

    def end(self, *, answered: bool) -> None:
        """Wait for the next request; `answered`: whether this one was not refused."""
        self._answering, self._between = False, True
        if self._transport is not None and not self._transport.is_closing():
            self._owner.enter(self._transport, self, State.IDLE if answered else State.NEW)
            self._expect(self._owner.idle_seconds)

    def abort(self) -> None:
        """Close it at once."""
        self._expect(None)
        if self._transport is not None:
            self._transport.abort()

    def _answer(self) -> None:
        if self._between or self._transport is None or self._transport.is_closing():
            # Its body ended after the answer.
            return
        self._answering = True
        self._owner.enter(self._transport, self, State.BUSY)
        self._expect(None)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection after this time, unless called again; None for no limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = asyncio.get_running_loop().call_later(seconds, self._late)

    def _late(self) -> None:
        assert self._transport is not None
        # That a client asks for nothing more is not its fault.
        self._owner.close_late(self._transport, count=self._unread or not (self._asked and self._between))


def most_connections(most: int) -> int:
    """Return how many connections a listener may have.

    At most `most`, and fewer in a process that may open few files.
    """
    return max(FEWEST, most_of_files(most, SHARE_OF_DESCRIPTORS))
