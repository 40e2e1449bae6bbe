"""Waiting for events of plain ZeroMQ sockets on an asyncio loop.

ZeroMQ's descriptor is edge-triggered: it signals a change once, and any use of the socket may consume the
signal. So a woken coroutine must receive until nothing is left, and any other user of a socket must call
`wake` afterwards. `zmq.asyncio` needs no such rule, but costs a future and a turn of the loop for each
message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq

# A plain number, because an operation on flags of the enum takes longer than reading them from the socket.
_READABLE = int(zmq.POLLIN)


def has_message(socket: zmq.Socket[bytes]) -> bool:
    """Return whether a message has arrived.

    This takes a third of the time of trying to receive and catching the exception.
    """
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


class SocketTurns:
    """A caller of `take_turn` when the state of some sockets may have changed.

    `take_turn` runs on the running loop. `SocketEvents` wakes a coroutine instead, about 10 us later. Only
    the loop's thread may call.
    """

    def __init__(self, take_turn: Callable[[], None], *sockets: zmq.Socket[bytes]) -> None:
        self._take_turn = take_turn
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._descriptors: list[int] = []
        # Messages that came before this object was made cause no signal, so `add` has a turn taken.
        for socket in sockets:
            self.add(socket)

    def add(self, socket: zmq.Socket[bytes]) -> None:
        """Take turns for another socket too."""
        descriptor = int(socket.getsockopt(zmq.FD))
        self._descriptors.append(descriptor)
        self._loop.add_reader(descriptor, self._take_turn)
        self.wake()

    def remove(self, socket: zmq.Socket[bytes]) -> None:
        """Take no more turns for a socket; call this before it is closed."""
        descriptor = int(socket.getsockopt(zmq.FD))
        self._descriptors.remove(descriptor)
        self._loop.remove_reader(descriptor)

    def wake(self) -> None:
        """Schedule a turn, after other callbacks of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def receive(self, socket: zmq.Socket[bytes], receive: Callable[[], object], most: int) -> None:
        """Call `receive` for each message of a socket that has come, so often at most in this turn.

        The rest follows after other work of the loop, so whoever sends faster does not keep it. Nothing more
        is received once `receive` has closed this object.
        """
        for _ in range(most):
            if not self._descriptors or not has_message(socket):
                return
            receive()
        self.wake()

    def close(self) -> None:
        """Take no more turns.

        Call this before the sockets are closed. A second call does nothing.
        """
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self._descriptors = []

    def _run(self) -> None:
        self._scheduled = False
        if self._descriptors:
            self._take_turn()


class SocketEvents:
    """A waker of the coroutine that drives some sockets.

    The coroutine is woken when the state of the sockets may have changed. Only one coroutine may wait.
    """

    def __init__(self, *sockets: zmq.Socket[bytes]) -> None:
        self._event = asyncio.Event()
        self._turns = SocketTurns(self._event.set, *sockets)
        self.wake()

    def wake(self) -> None:
        """Make `changed` return. Only the loop's thread may call."""
        self._event.set()

    async def changed(self) -> None:
        """Wait until something may have changed since the last call.

        Other tasks run first.
        """
        if self._event.is_set():
            await asyncio.sleep(0)
        await self._event.wait()
        self._event.clear()

    def close(self) -> None:
        """Stop watching.

        Call this before the sockets are closed. A second call does nothing.
        """
        self._turns.close()
