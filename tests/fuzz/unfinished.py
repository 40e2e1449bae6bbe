"""Sends messages that never end to a job: `python -m shadowsync.tests.fuzz.unfinished SEED MOST`.

It reads endpoints from its standard input, a line each, until that ends. To each it connects MOST times with
the job's key and as often without, one after the other, each as a new peer that offers far more than 300 MB.
Beside them CROWD connections without the key leave most of a frame unfinished. Then it prints for each
endpoint how many megabytes it sent without the key, how often it attacked, and how many of the first two
kinds of connections were shut down.
"""

from __future__ import annotations

import contextlib
import socket
import sys

import zmq
from shadowsync.pipeline.wire.sockets import configure_socket, connect

from .attack import IDLE_SECONDS, Orders
from .keyless import CONNECT_SECONDS, greeting

FRAME = bytes(1 << 20)
FRAMES = 100_000
# A frame of a command, within what any node's socket takes (ZMTP 3.1: flags, and a length of 8 bytes).
LARGE_BYTES, SMALL_BYTES = 1_000_000_000, 1_000_000
LARGE, SMALL = (b"\x06" + size.to_bytes(8, "big") for size in (LARGE_BYTES, SMALL_BYTES))
OF_SMALL = bytes(900_000)
CROWD = 40
# By then a connection that is not shut down is counted as one that was taken.
SHUT_DOWN_SECONDS = 30.0


class Unfinished:
    """One who sends to one endpoint."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, seed: int) -> None:
        self._context, self._endpoint, self._seed = context, endpoint, seed
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._address = host, int(port)
        self.connections = self.shut_down = self.sent = 0

    def attack(self) -> None:
        """Connect once with the key, and without; raises ConnectionRefusedError once the job has ended."""
        with contextlib.ExitStack() as stack:
            for _ in range(CROWD):
                stack.enter_context(self._begin(SMALL, OF_SMALL))
            with_key = self._with_key()
            without_key = self._without_key()
        self.connections += 1
        self.shut_down += with_key + without_key

    def _with_key(self) -> bool:
        """Return whether it was shut down."""
        peer = self._context.socket(zmq.DEALER)
        configure_socket(peer)
        peer.setsockopt(zmq.RECONNECT_IVL, -1)
        peer.setsockopt_string(zmq.IDENTITY, f"{self._seed:016x}{self.connections:016x}")
        events = peer.get_monitor_socket(int(zmq.EVENT_DISCONNECTED))
        connect(peer, self._endpoint)
        peer.send_multipart([FRAME] * FRAMES, copy=False)
        is_shut_down = bool(events.poll(int(1e3 * SHUT_DOWN_SECONDS)))
        peer.disable_monitor()
        peer.close(linger=0)
        return is_shut_down

    def _without_key(self) -> bool:
        """Return whether it was shut down before its end."""
        with self._begin(LARGE, b"") as connection:
            try:
                for _ in range(LARGE_BYTES // len(FRAME)):
                    connection.sendall(FRAME)
                    self.sent += len(FRAME)
            except ConnectionError:
                return True
        return False

    def _begin(self, command: bytes, content: bytes) -> socket.socket:
        """Connect without the key and send what begins a frame, unless that is shut down."""
        connection = socket.create_connection(self._address, CONNECT_SECONDS)
        # The other end may have shut it down.
        with contextlib.suppress(ConnectionError):
            connection.sendall(greeting(b"CURVE") + command + content)
        self.sent += len(content)
        return connection


def main(seed: int, most: int) -> None:
    """Attack all endpoints in turn."""
    orders = Orders()
    attackers: list[Unfinished] = []
    print("ready", flush=True)
    with zmq.Context() as context:
        while not orders.ended:
            is_done = all(attacker.connections >= most for attacker in attackers)
            for endpoint in orders.take(IDLE_SECONDS if is_done else 0.0):
                attackers.append(Unfinished(context, endpoint, seed + len(attackers)))
            for attacker in [] if is_done else attackers:
                with contextlib.suppress(ConnectionRefusedError):
                    attacker.attack()
    for attacker in attackers:
        print(attacker.sent // 1_000_000, attacker.connections, attacker.shut_down)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
