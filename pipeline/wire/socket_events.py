"""Waiting for events of plain ZeroMQ sockets on an asyncio loop."""

from __future__ import annotations

import asyncio

import zmq


class SocketEvents:
    """A waker for the one coroutine that drives some sockets, when their state may have changed.

    ZeroMQ's descriptor is edge-triggered: it signals a change once, and any use of the socket may consume the
    signal. So the coroutine receives until nothing is left, and any other user of a socket calls `wake`
    afterwards. `zmq.asyncio` needs no such rule, at the price of a future and a turn of the loop per message;
    docs/architecture.md has the figures.
    """

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._descriptors = [int(socket.getsockopt(zmq.FD)) for socket in sockets]
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._event.set)
        # Messages that came before this object was made cause no signal.
        self.wake()

    def wake(self) -> None:
        """Make `changed` return. Only the loop's thread may call."""
        self._event.set()

    async def changed(self) -> None:
        """Wait until something may have changed since the last call; let other tasks run first."""
        if self._event.is_set():
            await asyncio.sleep(0)
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """Stop watching; call it before the sockets are closed. A second call does nothing."""
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._descriptors = []
