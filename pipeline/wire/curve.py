"""Sockets that only the job's key opens: CURVE (CurveZMQ, RFC 26), and ZAP (RFC 27), which admits the key.

Both concern TCP alone. To `ipc` only processes of the same user and root can connect, see `sockets.bind`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import zmq
import zmq.asyncio
from zmq.utils import z85

from ..errors import JobFileError
from .endpoints import host_of, is_loopback_host
from .job_key import HOW_TO_MAKE, JobKey, is_insecure, job_key
from .refusals import Refusals

ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
ZAP_DOMAIN: Final = b"shadowsync"

log = logging.getLogger(__name__)


def listen_with_key(socket: zmq.Socket[bytes] | Any, address: str) -> None:
    """Have a socket that will be bound to `address` accept only who has the job's key, if there is one."""
    if address.startswith("tcp://") and (key := job_key()) is not None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.server.secret)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        # Without a gate nobody is admitted, instead of everybody who knows the public key.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def connect_with_key(socket: zmq.Socket[bytes] | Any, endpoint: str) -> None:
    """Have a socket that will connect to `endpoint` use the job's key, if there is one."""
    if endpoint.startswith("tcp://") and (key := job_key()) is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.public)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, key.client.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.client.secret)


def require_key(address: str) -> None:
    """Check that nobody else can reach a socket at `address` without a key.

    Raises JobFileError for one off loopback, where no key is set and nothing says that this is wanted.
    """
    if is_open(address) and not is_insecure():
        raise JobFileError(
            "whoever reaches this address could read the data and end the job, as there is no key",
            where=address,
            remedy=f"give all nodes of the job --key FILE ({HOW_TO_MAKE}),"
            " or --insecure on a network you trust",
        )


def insecurity(address: str) -> list[str]:
    """Return what a report has to warn of, for a job whose coordinator listens there."""
    if not is_open(address):
        return []
    return [
        f"Nothing was authenticated or encrypted, and {address} was open to whoever reaches it (--insecure)."
    ]


def is_open(address: str) -> bool:
    """Return whether other machines reach `address`, and need no key."""
    return address.startswith("tcp://") and not is_loopback(address) and job_key() is None


def is_loopback(address: str) -> bool:
    """Return whether only this machine reaches `tcp://HOST:PORT`."""
    return is_loopback_host(host_of(address))


class KeyGate:
    """Admits connections to the sockets of one context: those of the client pair of the job's key.

    The handshake waits for it, so nothing of a stranger's messages is ever held. Belongs to one loop; make it
    before anything listens.

    Attributes:
        refusals: of connections.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], key: JobKey) -> None:
        self._admitted = z85.decode(key.client.public)
        self._socket: zmq.asyncio.Socket = zmq.asyncio.Context(context).socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ZAP_ENDPOINT)
        self.refusals = Refusals(log)

    async def serve(self) -> None:
        """Answer until cancelled, then close."""
        try:
            while True:
                version, request, _, address, _, mechanism, *credentials = await self._socket.recv_multipart()
                admitted = mechanism == b"CURVE" and credentials == [self._admitted]
                if not admitted:
                    self.refusals.add("refused a connection from %s: it has another key", address.decode())
                status = (b"200", b"OK") if admitted else (b"400", b"another key")
                await self._socket.send_multipart([version, request, *status, b"", b""])
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket, also where `serve` was never begun; a second call does nothing."""
        self._socket.close()


def open_gate(
    context: zmq.Context[zmq.Socket[bytes]], start: Callable[[Coroutine[Any, Any, None]], object]
) -> KeyGate | None:
    """Make the gate of a node's context, on its loop, and `start` to serve; None without a key."""
    if (key := job_key()) is None:
        return None
    gate = KeyGate(context, key)
    start(gate.serve())
    return gate
