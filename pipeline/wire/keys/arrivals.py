"""Bounds of what connections send without finishing a message.

ZeroMQ bounds each frame, but not how many frames an unfinished message has, and it holds them all. It also
holds finished messages until the socket's thread takes them. So each TCP connection of a listening socket is
looked at: what the kernel received (`tcpi_bytes_received` of `struct tcp_info`) and what was not taken in
messages is held. A connection that holds too much is shut down, and ZeroMQ drops what it held.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import zmq

from ...open_files import most_of_files

# Room for a message's header, and for messages beside the largest one.
HEADER_ROOM: Final = 1 << 18
LEAST_OF_UNADMITTED: Final = 4 << 20
# So many of the largest messages in all: peers that connect again send at once.
MESSAGES_OF_UNADMITTED: Final = 2
MOST_UNADMITTED: Final = 512
# Of the files that the process may open: ZeroMQ accepts some hundred before one is shut down.
SHARE_OF_UNADMITTED: Final = 4
# One that is not admitted, on a fast link, sends some megabytes within this time.
UNADMITTED_SECONDS: Final = 0.01
# Looking at one connection takes 2 us, so many of those that are not admitted cost a few percent of one core.
SECONDS_PER_UNADMITTED: Final = 1e-4
PLACE_SECONDS: Final = 0.25

# Of asm-generic/socket.h: a number that no other socket has, before or after (Linux 4.12).
_SO_COOKIE: Final = 57
_COOKIE_BYTES: Final = 8
# `tcpi_bytes_received` in `struct tcp_info` of linux/tcp.h, and the bytes up to its end.
_RECEIVED_AT: Final = 128
_INFO_BYTES: Final = 136
# Of each frame in a CURVE message (RFC 26): its command's name, nonce, authenticator and flags. Then the
# frame's head (RFC 37): flags, and a length of 1 or 8 bytes.
_CURVE_BYTES: Final = 8 + 8 + 16 + 1
_SHORT_FRAME: Final = 255
# Keeps the interpreter's lock: giving it up for a microsecond may cost milliseconds beside busy threads.
_LIBC: Final = ctypes.PyDLL(None)


def wire_bytes(sizes: Sequence[int]) -> int:
    """Return the encrypted bytes of a message with frames of these sizes."""
    total = 0
    for size in sizes:
        body = size + _CURVE_BYTES
        total += body + (2 if body <= _SHORT_FRAME else 9)
    return total


@dataclass(slots=True)
class Accepted:
    """A connection that a listening socket accepted.

    A descriptor may be closed and used again at any moment; `cookie` tells which connection it was.
    """

    descriptor: int
    cookie: int


@dataclass(frozen=True, slots=True)
class Excess:
    """A connection that was shut down: who it was, and why."""

    peer: str
    why: str


class Arrivals:
    """What the connections of one listening socket hold, and how much they may.

    The socket's thread calls `take`; the rest belongs to the loop of the `ArrivalWatch`.

    Args:
        largest: bytes of the largest message that peers send.
        of_place: bytes that a connection with a place in the job may hold.
        of_unadmitted: bytes that all others together may hold; by default a few of the largest messages.

    Attributes:
        is_watched: whether a watch looks at the connections; otherwise `take` does nothing.
    """

    def __init__(self, largest: int, of_place: int, of_unadmitted: int | None = None) -> None:
        self.largest = largest
        self.is_watched = False
        self._most_unadmitted = most_of_files(MOST_UNADMITTED, SHARE_OF_UNADMITTED)
        self._of_place = of_place
        few = max(LEAST_OF_UNADMITTED, MESSAGES_OF_UNADMITTED * largest)
        self._of_unadmitted = few if of_unadmitted is None else of_unadmitted
        self._connections: dict[int, Accepted] = {}
        # By cookie.
        self._taken: dict[int, int] = {}
        self._with_place: set[int] = set()

    def take(self, parts: Sequence[zmq.Frame], sizes: Sequence[int], *, has_place: bool) -> None:
        """Record a received message, and whether its sender has a place.

        `sizes` are the bytes of its frames on the wire, so without a ROUTER's identity.
        """
        if not self.is_watched:
            return
        # 0 if the connection is closed.
        if cookie := cookie_of(int(parts[-1].get(int(zmq.SRCFD)))):
            self._taken[cookie] = self._taken.get(cookie, 0) + wire_bytes(sizes)
            if has_place:
                self._with_place.add(cookie)

    def accept(self, descriptor: int, port: int) -> Excess | None:
        """Look at a connection from now on.

        Returns the one that is shut down if there are too many.
        """
        with _held(descriptor) as held:
            if held is None or _port(held) != port:
                # Closed meanwhile, and perhaps used again for something else.
                return None
            cookie = cookie_of(held.fileno())
        if not cookie:
            return None
        self.forget(descriptor)
        self._connections[descriptor] = Accepted(descriptor, cookie)
        unadmitted = self._unadmitted()
        if len(unadmitted) <= self._most_unadmitted:
            return None
        return self._shut_down(
            unadmitted[0], f"more than {self._most_unadmitted} are open without a place in the job"
        )

    def forget(self, descriptor: int) -> None:
        """Look no more at a connection that was closed."""
        if (gone := self._connections.pop(descriptor, None)) is not None:
            self._taken.pop(gone.cookie, None)
            self._with_place.discard(gone.cookie)

    def count(self) -> tuple[int, int]:
        """Return how many connections there are, and how many of them are not admitted."""
        return len(self._connections), len(self._unadmitted())

    def shut_down_excessive(self, *, everyone: bool) -> list[Excess]:
        """Shut down the connections that hold too much.

        Those that are not admitted may together hold less than one that is; that one is looked at for
        `everyone`.
        """
        excessive = []
        unadmitted: list[tuple[int, Accepted]] = []
        for connection in list(self._connections.values()):
            is_unadmitted = connection.cookie not in self._with_place
            if not is_unadmitted and not everyone:
                continue
            held = self._held_bytes(connection)
            if is_unadmitted:
                unadmitted.append((held, connection))
            elif held > self._of_place:
                excessive.append((held, connection))
        total = sum(held for held, _ in unadmitted)
        unadmitted.sort(key=lambda entry: entry[0])
        while total > self._of_unadmitted:
            excessive.append(unadmitted.pop())
            total -= excessive[-1][0]
        excesses = (
            self._shut_down(connection, f"it sent {held} bytes without finishing a message")
            for held, connection in excessive
        )
        self._drop_stale()
        return [connection for connection in excesses if connection is not None]

    def _unadmitted(self) -> list[Accepted]:
        """Return the connections that are not admitted, the oldest first."""
        return [
            connection
            for connection in self._connections.values()
            if connection.cookie not in self._with_place
        ]

    def _held_bytes(self, connection: Accepted) -> int:
        """Return the bytes that a connection sent and that were not taken in messages."""
        received, taken = received_bytes(connection.descriptor), self._taken.get(connection.cookie, 0)
        if taken > received:
            # The last messages of a connection that had the same descriptor.
            self._taken[connection.cookie] = received
        return max(0, received - taken)

    def _shut_down(self, connection: Accepted, why: str) -> Excess | None:
        """Shut a connection down, unless it is closed."""
        self.forget(connection.descriptor)
        with _held(connection.descriptor) as held:
            if held is None or cookie_of(held.fileno()) != connection.cookie:
                return None
            try:
                host, port = held.getpeername()[:2]
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The peer has closed it.
                return None
        return Excess(f"{host}:{port}", why)

    def _drop_stale(self) -> None:
        """Drop what was taken of connections that were closed before they were looked at."""
        if len(self._taken) > 2 * len(self._connections) + MOST_UNADMITTED:
            known = {connection.cookie for connection in self._connections.values()}
            for cookie in [cookie for cookie in list(self._taken) if cookie not in known]:
                self._taken.pop(cookie, None)
                self._with_place.discard(cookie)


class ArrivalWatch:
    """The timer that looks at the connections of the listening sockets of one context.

    All belongs to its loop. There is no timer without connections.

    Args:
        refused: called for each connection that is shut down.
    """

    def __init__(self, refused: Callable[[Excess], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._refused = refused
        self._sockets: list[Arrivals] = []
        self._timer: asyncio.TimerHandle | None = None
        self._everyone_at = 0.0

    def accept(self, arrivals: Arrivals, descriptor: int, endpoint: str) -> None:
        """Look at a connection that this socket accepted at `endpoint`."""
        if arrivals not in self._sockets:
            self._sockets.append(arrivals)
        excess = arrivals.accept(descriptor, int(endpoint.rpartition(":")[2]))
        if excess is not None:
            self._refused(excess)
        # A timer for those with a place would leave the others too much time.
        self._schedule()

    def close(self) -> None:
        """Look at nothing any more."""
        self._sockets = []
        self._schedule()

    def _schedule(self) -> None:
        counts = [arrivals.count() for arrivals in self._sockets]
        unadmitted = sum(count for _, count in counts)
        if not any(count for count, _ in counts):
            self._cancel()
            return
        least = max(UNADMITTED_SECONDS, SECONDS_PER_UNADMITTED * unadmitted)
        due = self._loop.time() + (least if unadmitted else PLACE_SECONDS)
        if self._timer is None or self._timer.when() > due:
            self._cancel()
            self._timer = self._loop.call_at(due, self._shut_down_excessive)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _shut_down_excessive(self) -> None:
        self._timer = None
        now = self._loop.time()
        everyone = now >= self._everyone_at
        if everyone:
            self._everyone_at = now + PLACE_SECONDS
        for arrivals in self._sockets:
            for excess in arrivals.shut_down_excessive(everyone=everyone):
                self._refused(excess)
        self._schedule()


def can_watch() -> bool:
    """Return whether this system says what connections receive."""
    return sys.platform == "linux"


def cookie_of(descriptor: int) -> int:
    """Return the number of a socket that no other one has.

    0 if the descriptor is not of a socket.
    """
    return int.from_bytes(_option(descriptor, socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES), sys.byteorder)


def received_bytes(descriptor: int) -> int:
    """Return the bytes that a TCP connection received.

    0 if the descriptor is not of one.
    """
    info = _option(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int.from_bytes(info[_RECEIVED_AT:], sys.byteorder)


def _option(descriptor: int, level: int, name: int, size: int) -> bytes:
    """Return an option of a socket, b"" without it.

    Not by a socket object, which would close the descriptor at its end.
    """
    value = ctypes.create_string_buffer(size)
    option = ctypes.c_uint32(size)
    if _LIBC.getsockopt(descriptor, level, name, value, ctypes.byref(option)) != 0 or option.value < size:
        return b""
    return value.raw


def _port(held: socket.socket) -> int | None:
    """Return the local port; None for a socket without one."""
    return held.getsockname()[1] if held.family in (socket.AF_INET, socket.AF_INET6) else None


@contextmanager
def _held(descriptor: int) -> Iterator[Any]:
    """Hold the socket that a descriptor is open for; None if it is none."""
    try:
        copied = os.dup(descriptor)
    except OSError:
        yield None
        return
    try:
        held = socket.socket(fileno=copied)
    except OSError:
        os.close(copied)
        yield None
        return
    # Closing the copy leaves the connection open.
    with held:
        yield held
