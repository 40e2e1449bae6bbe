"""Connection to the coordinator for programs that are not nodes.

These programs are the supervisor, watchers and `shadowsync scale`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import zmq

from ...errors import ClusterError, ProtocolError
from ...open_files import require_files
from ..control.base import Reply, Request
from ..control.verbs import CONTROL_VERBS
from ..frames import decode, encode
from ..keys.job_key import job_key
from ..refusals import UNSENT, CountedLog
from ..schema import Message
from ..socket_events import SocketTurns
from ..sockets import SERVED_AT_ONCE, configure_socket, connect, send_or_drop
from .channel import HandleRequest, RpcChannel

log = logging.getLogger(__name__)


async def refuse_requests(request: Request[Any], number: int) -> Reply:  # noqa: ARG001
    """Refuse every request of the coordinator."""
    raise ProtocolError(f"a watcher does not answer {CONTROL_VERBS.name_of(request)!r}")


@asynccontextmanager
async def open_channel(
    address: str,
    handle: HandleRequest = refuse_requests,
    *,
    identity: str = "",
    refused: Callable[[ProtocolError], None] | None = None,
) -> AsyncIterator[RpcChannel]:
    """Open a connection to the coordinator at `address`; `handle` answers its requests.

    Nothing needs to listen there yet. By default `identity` is that of a new watcher. `refused` is called
    with the error of an invalid message; by default such a message closes the channel.

    Raises ClusterError for an address that cannot be used, JobFileError for a key that cannot be used.
    """
    # An error of the key must be raised before anything is open.
    job_key()
    require_files()
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    configure_socket(socket)
    socket.setsockopt_string(zmq.IDENTITY, identity or f"watcher-{uuid4().hex}")
    try:
        connect(socket, address)
    except zmq.ZMQError as error:
        socket.close()
        context.term()
        raise ClusterError(
            f"is not an address ({zmq.strerror(error.errno or 0)})",
            where=address,
            remedy="write tcp://HOST:PORT, as the coordinator printed it",
        ) from error

    unsent = CountedLog(log)

    def send(message: Message) -> None:
        if not send_or_drop(socket, encode(message)):
            unsent.add(UNSENT, message.KIND, address)
        turns.wake()

    def receive() -> None:
        try:
            channel.receive(decode([part.buffer for part in socket.recv_multipart(copy=False)]))
        except ProtocolError as error:
            if refused is None:
                channel.close(str(error))
                turns.close()
            else:
                refused(error)

    channel = RpcChannel("the coordinator", send, handle)
    turns = SocketTurns(lambda: turns.receive(socket, receive, SERVED_AT_ONCE), socket)
    try:
        yield channel
    finally:
        channel.close("the connection was closed")
        turns.close()
        socket.close(linger=0)
        context.term()
