"""Encrypted sockets: CURVE with the job's key, and ZAP.

Both concern TCP alone. To `ipc` only processes of the same user and root can connect, see `sockets.bind`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final
from uuid import uuid4

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from ...errors import JobFileError
from ..endpoints import host_of, is_loopback_host
from ..refusals import Refusals
from ..socket_events import SocketTurns
from .job_key import HOW_TO_MAKE, JobKey, is_insecure, job_key

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"shadowsync"
# Why ZeroMQ fails a handshake before it asks the authenticator.
_FAILURES: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "it has no key",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "it has another key",
}
# By the address of its context, which several Python objects may stand for.
_AUTHENTICATORS: Final[dict[int, ZapAuthenticator]] = {}

log = logging.getLogger(__name__)


def listen_with_key(socket: zmq.Socket[bytes] | Any, address: str) -> None:
    """Restrict a listening socket to peers with the job's key.

    Does nothing if there is no key.
    """
    if address.startswith("tcp://") and (key := job_key()) is not None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.server.secret)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        # Without an authenticator nobody is admitted, instead of everybody who knows the public key.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        if (authenticator := _AUTHENTICATORS.get(socket.context.underlying)) is not None:
            authenticator.watch(socket)


def close_listening(socket: zmq.Socket[bytes] | Any) -> None:
    """Close a socket that `listen_with_key` had, on its thread."""
    if not socket.closed:
        # Or ZeroMQ's thread would wait for a closed authenticator to take another failed handshake.
        with contextlib.suppress(zmq.ContextTerminated):
            socket.disable_monitor()
    socket.close()


def connect_with_key(socket: zmq.Socket[bytes] | Any, endpoint: str) -> None:
    """Use the job's key for a connecting socket."""
    if endpoint.startswith("tcp://") and (key := job_key()) is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, key.client.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.client.secret)


def require_key(address: str) -> None:
    """Check that a socket without a key is on loopback.

    Raises JobFileError for one off loopback, where no key is set and nothing says that this is wanted.
    """
    if is_open(address) and not is_insecure():
        raise JobFileError(
            "without a key, anyone who can reach this address could read the data and stop the job",
            where=address,
            remedy=f"give all nodes of the job --key FILE ({HOW_TO_MAKE}),"
            " or --insecure on a network you trust",
        )


def socket_warnings(address: str) -> list[str]:
    """Return warnings for a coordinator that listens without a key."""
    if not is_open(address):
        return []
    return [
        f"Connections to {address} were neither encrypted nor authenticated, and anyone who could reach it"
        " could join (--insecure)."
    ]


def is_open(address: str) -> bool:
    """Return whether other machines reach `address`, and need no key."""
    return address.startswith("tcp://") and not is_loopback(address) and job_key() is None


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches `tcp://HOST:PORT`."""
    return is_loopback_host(host_of(address))


class ZapAuthenticator:
    """ZAP authenticator for the sockets of one context.

    The handshake waits for it, so nothing of a stranger's messages is ever held. It also counts the
    handshakes that fail before it is asked, as without any key. Belongs to one loop, on which it is made,
    before anything listens.

    Args:
        refused: called for each connection that is refused.

    Attributes:
        refusals: refused connections.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        key: JobKey,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._admitted = z85.decode(key.client.public)
        self._refused = refused
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        # Of failed handshakes, from the sockets that listen; and what takes them.
        self._events: list[zmq.Socket[bytes]] = []
        self._turns = [SocketTurns(self._reply, self._socket)]
        self.refusals = Refusals(log)
        _AUTHENTICATORS[context.underlying] = self

    def watch(self, socket: zmq.Socket[bytes] | Any) -> None:
        """Count a socket's failed handshakes.

        The socket's thread calls, before it binds, and ends it with `close_listening`, before `close`.
        """
        address = f"inproc://handshakes-{uuid4().hex}"
        events = self._context.socket(zmq.PAIR)
        # No limit: if a queue is full, ZeroMQ's own thread waits for room, and all its sockets with it.
        events.setsockopt(zmq.RCVHWM, 0)
        events.setsockopt(zmq.LINGER, 0)
        self._events.append(events)
        socket.monitor(address, int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL))
        events.connect(address)
        self._loop.call_soon_threadsafe(self._follow, events)

    def close(self) -> None:
        """Close its sockets, after those that listen; a second call does nothing."""
        if _AUTHENTICATORS.get(self._context.underlying) is self:
            del _AUTHENTICATORS[self._context.underlying]
        for turns in self._turns:
            turns.close()
        for socket in (self._socket, *self._events):
            socket.close()

    def _reply(self) -> None:
        while int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            version, request, _, address, _, mechanism, *credentials = self._socket.recv_multipart()
            admitted = mechanism == b"CURVE" and credentials == [self._admitted]
            if not admitted:
                self._refuse("refused a connection from %s: it has another key", address.decode())
            status = (b"200", b"OK") if admitted else (b"400", b"another key")
            self._socket.send_multipart([version, request, *status, b"", b""])

    def _follow(self, events: zmq.Socket[bytes]) -> None:
        if not events.closed:
            self._turns.append(SocketTurns(partial(self._take, events), events))

    def _take(self, events: zmq.Socket[bytes]) -> None:
        while int(events.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = parse_monitor_message(events.recv_multipart())
            why = _FAILURES.get(event["value"], "its handshake is not one of CURVE")
            self._refuse("refused a connection to %s: %s", event["endpoint"].decode(), why)

    def _refuse(self, text: str, *values: str) -> None:
        self.refusals.add(text, *values)
        self._refused()


def start_authenticator(
    context: zmq.Context[zmq.Socket[bytes]], refused: Callable[[], None] = lambda: None
) -> ZapAuthenticator | None:
    """Start the authenticator of a context, on its loop; None without a key."""
    return ZapAuthenticator(context, key, refused) if (key := job_key()) is not None else None
