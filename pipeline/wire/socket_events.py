"""Waiting on an asyncio loop for what happens at plain ZeroMQ sockets."""

from __future__ import annotations

import asyncio

import zmq


class SocketEvents:
    """Wakes the one coroutine that drives some sockets of its loop, when something may have changed there.

    ZeroMQ's descriptor tells of a change once, and every use of the socket may take the notice away. So the
    coroutine takes what is there until nothing is; whoever else uses a socket calls `wake` after it.
    `zmq.asyncio` spares its users that rule, for a future and a turn of the loop a message: see
    docs/architecture.md for what that costs.
    """

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._descriptors = [int(socket.getsockopt(zmq.FD)) for socket in sockets]
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._event.set)
        # What came before this was made is told by nobody.
        self.wake()

    def wake(self) -> None:
        """Makes `changed` return; on the loop's thread."""
        self._event.set()

    async def changed(self) -> None:
        """Returns when something may have changed since the last call, after a turn of the loop's others."""
        if self._event.is_set():
            await asyncio.sleep(0)
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """Watches no longer; to be called before the sockets are closed. A second time does nothing."""
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._descriptors = []
