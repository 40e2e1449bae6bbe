"""Sends hostile messages to the sockets of a job: `python -m shadowsync.tests.fuzz.attack SEED [MOST]`.

It reads endpoints from its standard input, a line each, until that ends. Then it prints for each how many
messages it sent, and how many answers came back. After MOST messages in all it waits for the end.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Sequence
from uuid import UUID

import zmq
from shadowsync.pipeline.wire.sockets import configure_socket, connect

from .hostile_messages import HostileMessages

AT_ONCE = 32
MOST_UNANSWERED = 256
IDLE_SECONDS = 0.5


class Attacker:
    """One who sends to one endpoint, from time to time as another peer."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, seed: int, words: Sequence[str]
    ):
        self._context, self._endpoint = context, endpoint
        self._messages = HostileMessages(seed, words)
        self._seed = seed
        self.sent = self.replied = 0
        self._peers = 0
        self._socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        configure_socket(socket)
        self._peers += 1
        identity = str(UUID(int=self._seed << 32 | self._peers)).replace("-", "")
        suffix = ("", "/0", "/peer", "/shadow")[self._peers % 4]
        socket.setsockopt_string(zmq.IDENTITY, identity + suffix)
        connect(socket, self._endpoint)
        return socket

    def attack(self) -> None:
        """Send some messages, and take what comes back."""
        for _ in range(AT_ONCE):
            if self.sent - self.replied > MOST_UNANSWERED * self._peers:
                # Some are not answered at all: as another peer it is heard again. What is sent is still sent:
                # libzmq 4.3 aborts if a connection breaks as a socket drops half of a message.
                self._socket.close(linger=-1)
                self._socket = self._connect()
            try:
                self._socket.send_multipart(self._messages.next(), zmq.NOBLOCK)
            except zmq.Again:
                break
            self.sent += 1
        while self._socket.poll(0):
            self._socket.recv_multipart(zmq.NOBLOCK)
            self.replied += 1


class Orders:
    """The endpoints that come on the standard input, a line each, until it ends."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def take(self, seconds: float) -> list[str]:
        """Wait for some; none if there are none."""
        if not select.select([0], [], [], seconds)[0]:
            return []
        found = os.read(0, 65_536)
        self.ended = not found
        *lines, self._rest = (self._rest + found).split(b"\n")
        return [line.decode() for line in lines]


def main(seed: int, most: int) -> None:
    """Attack all endpoints in turn."""
    words = ["trainer", "reader", "embedding", "sync", "coordinator", "trainer-0", "reader-0", "embedding-0"]
    orders = Orders()
    attackers: list[Attacker] = []
    print("ready", flush=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    while not orders.ended:
        is_done = sum(attacker.sent for attacker in attackers) >= most
        for endpoint in orders.take(IDLE_SECONDS if is_done else 0.002):
            words.append(endpoint)
            attackers.append(Attacker(context, endpoint, seed + len(attackers), words))
        for attacker in [] if is_done else attackers:
            attacker.attack()
    for attacker in attackers:
        print(attacker.sent, attacker.replied, flush=True)
    # The context would wait for messages to those that have ended.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else sys.maxsize)
