"""Encrypted sockets: CURVE with the job's key, and ZAP.

Both are used with TCP only. Only processes of the same user and root can connect to `ipc`, see
`sockets.bind`.
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
from ..tasks import post
from .arrivals import Arrivals, ArrivalWatch, Excess, can_watch
from .job_key import HOW_TO_MAKE, JobKey, is_insecure, job_key

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"shadowsync"
# Then the loop does its other work, however many more strangers come.
HANDLED_AT_ONCE: Final = 64
# Reasons for which ZeroMQ fails a handshake before it asks the authenticator.
_FAILURES: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "it has no key",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "it has another key",
}
# By the address of the context, because several Python objects may stand for one context.
_AUTHENTICATORS: Final[dict[int, ZapAuthenticator]] = {}

log = logging.getLogger(__name__)


def listen_with_key(socket: zmq.Socket[bytes] | Any, address: str, arrivals: Arrivals | None = None) -> None:
    """Restrict a listening socket to peers with the job's key, if there is one.

    `arrivals` bounds what its connections may hold, if there is an authenticator.
    """
    if not address.startswith("tcp://"):
        return
    if (key := job_key()) is not None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.server.secret)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        # So that without an authenticator nobody is admitted, not everybody who knows the public key.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    if (authenticator := _AUTHENTICATORS.get(socket.context.underlying)) is not None:
        authenticator.watch(socket, arrivals)


def close_listening(socket: zmq.Socket[bytes] | Any) -> None:
    """Close a socket that was given to `listen_with_key`, on its thread."""
    if not socket.closed:
        # Otherwise ZeroMQ's thread would wait for a closed authenticator to take another failed handshake.
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
    """Check that other machines need a key to connect to `address`.

    Raises JobFileError if they need none, unless this was allowed (`is_insecure`).
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
    """Return whether other machines can connect to `address` without a key."""
    return address.startswith("tcp://") and not is_loopback(address) and job_key() is None


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach `tcp://HOST:PORT`."""
    return is_loopback_host(host_of(address))


class ZapAuthenticator:
    """ZAP authenticator for the sockets of one context.

    A handshake waits for the authenticator, so a stranger's messages are never stored. The authenticator also
    counts handshakes that fail before it is asked, for example without any key, and shuts down connections
    that hold too much. It must be made before any socket listens, on its loop; only the loop's thread may
    call, except for `watch`.

    Args:
        context: the context of the sockets.
        key: the job's key; without one nobody is asked, and connections are only looked at.
        refused: called for each refused connection.

    Attributes:
        refusals: count and log of refused connections.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        key: JobKey | None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._refused = refused
        # Sockets with the events of failed handshakes, one for each listening socket.
        self._events: list[zmq.Socket[bytes]] = []
        self._turns: list[SocketTurns] = []
        self._asked: zmq.Socket[bytes] | None = None
        if key is not None:
            self._admitted = z85.decode(key.client.public)
            self._asked = context.socket(zmq.REP)
            self._asked.setsockopt(zmq.LINGER, 0)
            self._asked.bind(ZAP_ENDPOINT)
            self._take_turns(partial(self._reply, self._asked), self._asked)
        self._arrivals = ArrivalWatch(self._cut)
        self.refusals = Refusals(log)
        _AUTHENTICATORS[context.underlying] = self

    def watch(self, socket: zmq.Socket[bytes] | Any, arrivals: Arrivals | None = None) -> None:
        """Count a socket's failed handshakes, and look at what its connections hold.

        The socket's thread calls this before it binds. It must call `close_listening` before `close` of the
        authenticator.
        """
        is_looked_at = arrivals is not None and can_watch()
        if self._asked is None and not is_looked_at:
            return
        address = f"inproc://handshakes-{uuid4().hex}"
        events = self._context.socket(zmq.PAIR)
        # No limit: with a full queue ZeroMQ's own thread would wait for room, and all its sockets too.
        events.setsockopt(zmq.RCVHWM, 0)
        events.setsockopt(zmq.LINGER, 0)
        self._events.append(events)
        # Without a key none fails for want of it.
        kinds = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL if self._asked is not None else 0
        if arrivals is not None and is_looked_at:
            arrivals.is_watched = True
            kinds |= zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        socket.monitor(address, int(kinds))
        events.connect(address)
        post(self._loop, partial(self._follow, events, arrivals))

    def close(self) -> None:
        """Close the authenticator, after all listening sockets.

        A second call does nothing.
        """
        if _AUTHENTICATORS.get(self._context.underlying) is self:
            del _AUTHENTICATORS[self._context.underlying]
        self._arrivals.close()
        for turns in self._turns:
            turns.close()
        for socket in (self._asked, *self._events):
            if socket is not None:
                socket.close()

    def _take_turns(self, receive: Callable[[], None], socket: zmq.Socket[bytes]) -> None:
        turns = SocketTurns(lambda: turns.receive(socket, receive, HANDLED_AT_ONCE), socket)
        self._turns.append(turns)

    def _reply(self, asked: zmq.Socket[bytes]) -> None:
        version, request, _, address, _, mechanism, *credentials = asked.recv_multipart()
        admitted = mechanism == b"CURVE" and credentials == [self._admitted]
        if not admitted:
            self._refuse("refused a connection from %s: it has another key", address.decode())
        status = (b"200", b"OK") if admitted else (b"400", b"another key")
        asked.send_multipart([version, request, *status, b"", b""])

    def _follow(self, events: zmq.Socket[bytes], arrivals: Arrivals | None) -> None:
        if not events.closed:
            self._take_turns(partial(self._take, events, arrivals), events)

    def _take(self, events: zmq.Socket[bytes], arrivals: Arrivals | None) -> None:
        event = parse_monitor_message(events.recv_multipart())
        kind, value, endpoint = event["event"], int(event["value"]), event["endpoint"].decode()
        if arrivals is not None and kind == zmq.EVENT_ACCEPTED:
            self._arrivals.accept(arrivals, value, endpoint)
        elif arrivals is not None and kind == zmq.EVENT_DISCONNECTED:
            arrivals.forget(value)
        else:
            why = _FAILURES.get(value, "its handshake is not one of CURVE")
            self._refuse("refused a connection to %s: %s", endpoint, why)

    def _cut(self, excess: Excess) -> None:
        self._refuse("shut down a connection from %s: %s", excess.peer, excess.why)

    def _refuse(self, text: str, *values: str) -> None:
        self.refusals.add(text, *values)
        self._refused()


def start_authenticator(
    context: zmq.Context[zmq.Socket[bytes]], refused: Callable[[], None] = lambda: None
) -> ZapAuthenticator:
    """Start the authenticator of a context, on its loop."""
    return ZapAuthenticator(context, job_key(), refused)
