"""Sends messages to a job without its key: `python -m shadowsync.tests.fuzz.keyless SEED MOST`.

It reads endpoints from its standard input, a line each, until that ends. Then it prints for each how many
messages it sent, and how many connections it needed. Each connection greets in one of several ways, sends
messages without waiting for an answer, and is reset. IDLE connections to each endpoint say nothing. After
MOST messages in all only these stay.
"""

from __future__ import annotations

import random
import socket
import struct
import sys

from .attack import IDLE_SECONDS, Orders
from .hostile_messages import Frames, HostileMessages

AT_ONCE = 32
# Made once and sent again and again: nothing of it is read anyway.
DIFFERENT = 2_000
IDLE = 200
CONNECT_SECONDS = 10.0
# ZMTP 3.1 (https://rfc.zeromq.org/spec/37/): signature, version, mechanism, as-server, filler.
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
MORE, LONG = 1, 2


def greeting(mechanism: bytes) -> bytes:
    """A whole greeting."""
    return SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def framed(frames: Frames) -> bytes:
    """A message as it is on the wire."""
    last = len(frames) - 1
    parts = []
    for at, frame in enumerate(frames):
        more = MORE if at < last else 0
        short = len(frame) < 256
        head = struct.pack("!BB", more, len(frame)) if short else struct.pack("!BQ", more | LONG, len(frame))
        parts += [head, frame]
    return b"".join(parts)


class Keyless:
    """One who sends to one endpoint."""

    def __init__(self, endpoint: str, seed: int) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._address = host, int(port)
        self._random = random.Random(seed)
        messages = HostileMessages(seed)
        self._framed = [framed(messages.next()) for _ in range(DIFFERENT)]
        self.sent = self.connections = 0
        self._idle = [socket.create_connection(self._address, CONNECT_SECONDS) for _ in range(IDLE)]

    def attack(self) -> None:
        """Connect, send some messages, and reset the connection."""
        draw = self._random
        begin = draw.choice(
            (greeting(b"NULL"), greeting(b"CURVE"), greeting(b"PLAIN"), SIGNATURE, draw.randbytes(64), b"")
        )
        try:
            with socket.create_connection(self._address, CONNECT_SECONDS) as connection:
                # Reset at the end, so that ports are free again at once.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(begin + b"".join(draw.choices(self._framed, k=AT_ONCE)))
        except (ConnectionError, TimeoutError):
            # It was thrown out in the middle.
            return
        self.connections += 1
        self.sent += AT_ONCE

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.close()


def main(seed: int, most: int) -> None:
    """Attack all endpoints in turn."""
    orders = Orders()
    attackers: list[Keyless] = []
    print("ready", flush=True)
    while not orders.ended:
        is_done = sum(attacker.sent for attacker in attackers) >= most
        seconds = IDLE_SECONDS if is_done else 0.0
        attackers += [Keyless(endpoint, seed + len(attackers)) for endpoint in orders.take(seconds)]
        for attacker in [] if is_done else attackers:
            attacker.attack()
    for attacker in attackers:
        attacker.close()
        print(attacker.sent, attacker.connections)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
