"""ZeroMQ sockets of messages: `Connection` (DEALER) and `Listener` (ROUTER).

`Waker` wakes a thread that waits in a poller. Each socket is owned by one thread.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from ..errors import ClusterError, ProtocolError
from ..open_files import too_many_files
from .frames import MAX_TENSOR_BYTES, decode, encode
from .keys.arrivals import Arrivals
from .keys.curve import close_listening, connect_with_key, listen_with_key
from .messages import Failure
from .refusals import Refusals
from .schema import Message
from .socket_events import has_message

# Two tensors of the largest size; no message has more that are large.
MAX_MESSAGE_BYTES = 2 * MAX_TENSOR_BYTES
HIGH_WATER_MESSAGES = 4096
LINGER_MILLISECONDS = 500
# A host that is gone answers nothing, and the system's own limit is two minutes.
CONNECT_MILLISECONDS = 3000
SERVED_AT_ONCE = 256
ROOT = 0

log = logging.getLogger(__name__)


def configure_socket(socket: zmq.Socket[bytes] | Any) -> None:
    """Set the options of every socket: all queues, frames and waits are bounded."""
    socket.setsockopt(zmq.LINGER, LINGER_MILLISECONDS)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_TENSOR_BYTES)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MILLISECONDS)
    socket.setsockopt(zmq.RECONNECT_IVL, 50)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)


def bind(socket: zmq.Socket[bytes] | Any, address: str, arrivals: Arrivals | None = None) -> str:
    """Bind to `tcp://HOST:PORT` or `ipc://NAME`; return the actual endpoint.

    Port `*` or 0 means any free port. If the job has a key, only peers with the key can connect over TCP.
    Only processes of this user and root can connect to `ipc`; this is checked because a name in Linux's
    abstract namespace has no permissions. `arrivals` bounds what connections over TCP may hold.

    Raises:
        ClusterError: the address is in use, is not of this host, or is invalid.
    """
    try:
        if sys.platform == "linux" and address.startswith("ipc://"):
            for user in (os.getuid(), ROOT):
                socket.setsockopt(zmq.IPC_FILTER_UID, user)
        listen_with_key(socket, address, arrivals)
        if arrivals is not None and arrivals.is_watched:
            # Of a frame ZeroMQ makes room for at once, also before it knows who sends it.
            socket.setsockopt(zmq.MAXMSGSIZE, min(arrivals.largest, MAX_TENSOR_BYTES))
        socket.bind(address[:-2] + ":*" if address.endswith(":0") else address)
    except zmq.ZMQError as error:
        raise too_many_files(error) or ClusterError(
            f"cannot listen there ({zmq.strerror(error.errno or 0)})",
            where=address,
            remedy="choose a free port and an address of this host with --bind",
        ) from error
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))


def connect(socket: zmq.Socket[bytes] | Any, endpoint: str) -> None:
    """Connect to a TCP or IPC endpoint, with the job's key.

    Raises ZMQError for an invalid endpoint.
    """
    connect_with_key(socket, endpoint)
    socket.connect(endpoint)


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    identity: str,
    most_queued: int = HIGH_WATER_MESSAGES,
) -> zmq.Socket[bytes]:
    """Connect a new DEALER to an endpoint; it queues at most so many messages to send.

    If this raises, no socket is left open, with which the context could not be terminated. Raises ZMQError.
    """
    socket = context.socket(zmq.DEALER)
    try:
        configure_socket(socket)
        socket.setsockopt(zmq.SNDHWM, most_queued)
        socket.setsockopt_string(zmq.IDENTITY, identity)
        connect(socket, endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def send_frames(socket: zmq.Socket[bytes], frames: list[Any], flags: int) -> None:
    """Send frames as one message.

    Large frames are sent without a copy; ZeroMQ refers to them until they are sent.
    """
    last = len(frames) - 1
    # Plain numbers: an operation on two flags of the enum takes longer than all the rest of a small frame.
    flags = int(flags)
    not_last = int(zmq.SNDMORE) | flags
    for number, frame in enumerate(frames):
        how = not_last if number < last else flags
        if isinstance(frame, bytes) or frame.nbytes < zmq.COPY_THRESHOLD:
            socket.send(frame, how)
        else:
            socket.send(frame, how, copy=False)


def send_or_drop(socket: zmq.Socket[bytes], frames: list[Any]) -> bool:
    """Queue a message if there is room; return whether it was queued.

    If the queue is full or the peer is gone, the message is dropped. This loses nothing, because a request is
    sent again until its reply comes.
    """
    try:
        send_frames(socket, frames, zmq.NOBLOCK)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
            raise
        return False
    return True


class Connection:
    """A DEALER socket to one endpoint.

    Only the thread that made the connection may use it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, identity: str) -> None:
        self.endpoint = endpoint
        self.socket = open_dealer(context, endpoint, identity)
        self.sent_bytes = 0
        self.received_bytes = 0
        self.refusals = Refusals(log)
        self.unsent_messages = 0

    def send(self, message: Message) -> None:
        """Queue a message; its tensors must not change from now on.

        If the queue is full, the message is dropped and counted, see `send_or_drop`.
        """
        frames = encode(message)
        if send_or_drop(self.socket, frames):
            self.sent_bytes += sum(memoryview(frame).nbytes for frame in frames)
        else:
            self.unsent_messages += 1

    def receive(self) -> Message | None:
        """Return the next message that has arrived, or None; does not wait.

        Invalid messages are counted, logged and skipped.
        """
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            buffers = [part.buffer for part in parts]
            self.received_bytes += sum(buffer.nbytes for buffer in buffers)
            try:
                return decode(buffers)
            except ProtocolError as error:
                self.refusals.add("refused a message from %s: %s", self.endpoint, error)

    def close(self) -> None:
        """Close the socket; queued messages have LINGER_MILLISECONDS to be sent."""
        self.socket.close()


class Listener:
    """A ROUTER socket at one endpoint.

    Only the thread that made the listener may use it, except for `admit`.

    Args:
        largest: bytes of the largest message that peers send. With a key over TCP larger frames are refused.
        of_unadmitted: bytes that all peers that are not admitted may have it hold, see `Arrivals`.

    Attributes:
        refusals: messages refused by this socket or by its handler.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        largest: int = MAX_MESSAGE_BYTES,
        of_unadmitted: int | None = None,
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        try:
            configure_socket(self.socket)
            self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
            self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
            self._arrivals = Arrivals(largest, MAX_MESSAGE_BYTES, of_unadmitted)
            self.endpoint = bind(self.socket, address, self._arrivals)
        except BaseException:
            # Also if too many files are open: a context with an open socket cannot be terminated.
            close_listening(self.socket)
            raise
        self.sent_bytes = 0
        self.received_bytes = 0
        self.refusals = Refusals(log)
        self.unreachable_messages = 0
        self._admitted: frozenset[bytes] | None = None

    def admit(self, tokens: Iterable[str]) -> None:
        """Accept only messages of peers with these tokens; at first all are accepted.

        Any thread may call. A peer's identity is its token, or begins with the token and a slash.
        """
        self._admitted = frozenset(token.encode() for token in tokens)

    def admit_also(self, token: str) -> None:
        """Accept also messages of peers with this token."""
        self._admitted = (self._admitted or frozenset()) | {token.encode()}

    def send(self, identity: bytes, message: Message) -> None:
        """Queue a message for a peer.

        If the peer is gone or its queue is full, the message is dropped and counted, see `send_or_drop`.
        """
        frames = encode(message)
        if send_or_drop(self.socket, [identity, *frames]):
            self.sent_bytes += sum(memoryview(frame).nbytes for frame in frames)
        else:
            self.unreachable_messages += 1

    def receive(self) -> tuple[bytes, Message] | None:
        """Receive one message without waiting; None if there is none or it is refused.

        A message that is invalid, or whose sender is not admitted, is counted, logged with its sender, and
        answered with a `Failure`. After None, `has_message` tells whether more messages wait.
        """
        try:
            parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        identity = parts[0].bytes
        buffers = [part.buffer for part in parts[1:]]
        sizes = [buffer.nbytes for buffer in buffers]
        self.received_bytes += sum(sizes)
        is_admitted = self._is_admitted(identity)
        self._arrivals.take(parts, sizes, has_place=is_admitted)
        try:
            if not is_admitted:
                raise ProtocolError("the sender is not one of this job's trainers")
            return identity, decode(buffers)
        except ProtocolError as error:
            self.refusals.add("refused a message from %r: %s", identity, error)
            self.send(identity, Failure(request=0, what=str(error)))
            return None

    def _is_admitted(self, identity: bytes) -> bool:
        return self._admitted is None or identity.partition(b"/")[0] in self._admitted

    def serve(
        self, handle: Callable[[bytes, Message], None], takes_more: Callable[[], bool] = lambda: True
    ) -> None:
        """Pass messages that have arrived to `handle`, while `takes_more()` is true.

        At most SERVED_AT_ONCE messages are taken, including refused ones, so that the thread also gets to its
        other work under load.
        """
        for _ in range(SERVED_AT_ONCE):
            if not takes_more() or not has_message(self.socket):
                return
            if (received := self.receive()) is not None:
                handle(*received)

    def close(self) -> None:
        """Close the socket; queued messages have LINGER_MILLISECONDS to be sent."""
        close_listening(self.socket)


class Waker:
    """A socket pair that wakes a thread waiting in a poller.

    Any thread may call `wake`; only the waiting thread may call `fileno` and `clear`. One that nobody closes,
    since its thread could not be started, is closed when it is garbage.
    """

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        weakref.finalize(self, _close_all, self._reader, self._writer)
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to register with a poller for reading."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Make the descriptor readable."""
        try:
            self._writer.send(b"\0")
        except (BlockingIOError, OSError):
            return

    def clear(self) -> None:
        """Make the descriptor unreadable again, until the next `wake`."""
        try:
            while self._reader.recv(4096):
                continue
        except (BlockingIOError, OSError):
            return

    def close(self) -> None:
        """Close both ends."""
        _close_all(self._reader, self._writer)


def _close_all(*sockets: socket.socket) -> None:
    for end in sockets:
        end.close()
