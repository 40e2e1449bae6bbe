"""The sockets between trainers: one listener, and one sender per peer."""

from __future__ import annotations

import logging

import zmq

from ...pipeline.errors import ProtocolError
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.messages import Failure
from ...pipeline.wire.peer_messages import PeerChunk, PeerResult
from ...pipeline.wire.refusals import Refusals
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import Listener, open_dealer
from ..runtime.largest_messages import LARGEST_CHUNK_BYTES, largest_of_chunks
from ..runtime.members import Traffic
from ..runtime.process import tune_malloc

QUEUED_CHUNKS = 64
IDENTITY_SUFFIX = "/peer"

log = logging.getLogger(__name__)


class PeerListener:
    """The socket that a trainer's peers send to.

    The node binds the socket, then gives it to the thread that makes the `AllReduceTransport`, which owns it
    from then on.

    Args:
        chunk_bytes: size of the largest chunk of parameters that they send.

    Raises:
        ClusterError: the address cannot be listened on.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        chunk_bytes: int = LARGEST_CHUNK_BYTES,
    ) -> None:
        tune_malloc()
        self.listener = Listener(context, address, largest_of_chunks(chunk_bytes))
        self.endpoint = self.listener.endpoint

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self.listener.close()


class PeerSender:
    """A DEALER to one other trainer; it sends, and receives only refusals.

    Args:
        token: that of this trainer's node.
        traffic: counts what is sent, to all other trainers.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], member: MemberInfo, token: str, traffic: Traffic
    ) -> None:
        self.member = member
        self.socket = open_dealer(context, member.endpoint, token + IDENTITY_SUFFIX, QUEUED_CHUNKS)
        self._traffic = traffic
        self.sent_bytes = 0
        self.refusals = Refusals(log)

    @property
    def has_room(self) -> bool:
        """Whether a message can be queued; a precondition of `send`."""
        return bool(int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)

    def send(self, message: Message) -> None:
        """Queue a message; large tensors are not copied."""
        frames = encode(message)
        self.socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        size = sum(memoryview(frame).nbytes for frame in frames)
        self.sent_bytes += size
        self._traffic.sent += size
        if isinstance(message, PeerChunk):
            self._traffic.went_up(size, message.elements)
        elif isinstance(message, PeerResult):
            self._traffic.went_down(size, message.elements)

    def log_refusals(self) -> None:
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            try:
                reply = decode(frames)
                what = reply.what if isinstance(reply, Failure) else f"a {reply.KIND}"
            except ProtocolError as error:
                what = str(error)
            self.refusals.add("%s refused a message: %s", self.member.name, what)

    def close(self) -> None:
        self.socket.close()
