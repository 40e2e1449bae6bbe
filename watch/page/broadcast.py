"""Server-sent events for a bounded number of clients, without I/O.

No client can delay another. aiohttp has no server-sent events, and aiohttp-sse only writes to one connection:
it neither bounds a client's queue nor resends what a client missed. So this module does both.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from uuid import uuid4

MOST_CLIENTS = 16
QUEUED_EVENTS = 16
REMEMBERED_EVENTS = 30

log = logging.getLogger(__name__)


class Full(Exception):
    """No further client is accepted: there are MOST_CLIENTS."""


class Client:
    """One open page. Its connection calls `next`; only `Broadcast` calls the rest.

    Args:
        drop: closes the connection at once; called if the client does not keep up.
    """

    def __init__(self, drop: Callable[[], None]) -> None:
        self._drop = drop
        self._events: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._ended = False

    @property
    def waiting(self) -> int:
        """Number of queued events."""
        return len(self._events)

    async def next(self) -> bytes | None:
        """Wait for the next event, as bytes to send; None at the end."""
        while not self._events and not self._ended:
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft() if self._events else None

    def put(self, event: bytes) -> bool:
        """Queue an event; drop a client with a full queue, return False."""
        if len(self._events) >= QUEUED_EVENTS:
            self._events.clear()
            self.end()
            self._drop()
            return False
        self._events.append(event)
        self._wake.set()
        return True

    def end(self) -> None:
        """Mark the end: no event will follow."""
        self._ended = True
        self._wake.set()


class Broadcast:
    """Numbered events for all clients. All of it belongs to one asyncio loop.

    The id of an event contains a random id of this object, so that a client that reconnects after a restart
    is not mistaken for one that missed a few events.
    """

    def __init__(self) -> None:
        self._incarnation = uuid4().hex[:12]
        self._number = 0
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED_EVENTS)
        self.clients: set[Client] = set()

    def publish(self, kind: str, data: str) -> None:
        """Send an event to all clients; `data` is one line."""
        self._number += 1
        event = self._event(kind, data)
        self._recent.append((self._number, event))
        for client in tuple(self.clients):
            if not client.put(event):
                self.clients.discard(client)
                log.warning("an open page read too slowly and was dropped: %d events waited", QUEUED_EVENTS)

    def join(self, last_id: str, whole: Callable[[], str], drop: Callable[[], None]) -> Client:
        """Add a client.

        Args:
            last_id: id of the last event that a reconnecting client received; "" for a new client. The client
                gets the events it missed, or `whole()` as a "whole" event if they are no longer stored.
            whole: returns the data of the "whole" event.
            drop: see `Client`.

        Raises Full.
        """
        if len(self.clients) >= MOST_CLIENTS:
            raise Full
        client = Client(drop)
        missed = self._missed(last_id)
        if missed is None or len(missed) > QUEUED_EVENTS:
            missed = [self._event("whole", whole())]
        for event in missed:
            client.put(event)
        self.clients.add(client)
        return client

    def leave(self, client: Client) -> None:
        """Remove a client whose connection has ended."""
        self.clients.discard(client)
        client.end()

    def end(self) -> None:
        """Mark the end for all clients.

        Clients still get their queued events.
        """
        for client in self.clients:
            client.end()

    def _missed(self, last_id: str) -> list[bytes] | None:
        incarnation, _, number = last_id.partition("-")
        if incarnation != self._incarnation or not number.isdecimal() or int(number) > self._number:
            return None
        first = self._recent[0][0] if self._recent else self._number + 1
        if int(number) + 1 < first:
            return None
        return [event for event_number, event in self._recent if event_number > int(number)]

    def _event(self, kind: str, data: str) -> bytes:
        return f"id: {self._incarnation}-{self._number}\nevent: {kind}\ndata: {data}\n\n".encode()
