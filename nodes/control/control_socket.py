"""The socket of a control server, and its sessions with members and watchers. Imports no torch."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import zmq

from ...pipeline.errors import ProtocolError
from ...pipeline.wire.control.base import Reply, Request
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.endpoints import AUTO, advertised, own_address
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.keys.arrivals import Arrivals
from ...pipeline.wire.keys.curve import ZapAuthenticator, close_listening, start_authenticator
from ...pipeline.wire.messages import Failure, Heartbeat, RequestMessage
from ...pipeline.wire.refusals import UNSENT, CountedLog, Refusals
from ...pipeline.wire.rpc.channel import RpcChannel
from ...pipeline.wire.schema import Message
from ...pipeline.wire.socket_events import SocketTurns
from ...pipeline.wire.sockets import bind, configure_socket, send_or_drop
from ...pipeline.wire.tasks import TaskSet
from ..runtime.largest_messages import LARGEST_HEADER_BYTES
from ..runtime.process import ProcessHooks
from ..runtime.settings import NodeSettings
from ..runtime.tracing import TRACER
from .cluster_state import ClusterState
from .sessions import JobWaits, SessionRegistry

# What one node may send while the loop does other work.
HELD_BYTES: Final = 64 << 20
# After so many messages, some 10 ms, the loop does its other work even if more have come.
RECEIVED_AT_ONCE: Final = 64

log = logging.getLogger(__name__)


class ControlSocket(JobWaits, ABC):
    """The socket that nodes and watchers connect to, and their sessions.

    All of it runs on one asyncio loop.

    Attributes:
        state: set by the subclass.
        bound: the address, set by `listen`.
    """

    state: ClusterState

    def __init__(self, settings: NodeSettings, process: ProcessHooks | None = None) -> None:
        super().__init__()
        self.settings = settings
        self._process = process or ProcessHooks()
        self.sessions = SessionRegistry()
        self._refusals = Refusals(log)
        self._unsent = CountedLog(log)
        self._tasks = TaskSet(self._failed)
        self.bound = ""
        self._socket: zmq.Socket[bytes] | None = None
        self._turns: SocketTurns | None = None
        self._authenticator: ZapAuthenticator | None = None
        # Those who only join or watch send small messages.
        self._arrivals = Arrivals(LARGEST_HEADER_BYTES, HELD_BYTES, LARGEST_HEADER_BYTES)

    @abstractmethod
    async def answer(self, token: str, request: Request[Any], number: int) -> Reply:
        """Answer the request of this number of a node or a watcher."""

    @abstractmethod
    def beat(self, identity: bytes, token: str, message: Heartbeat) -> None:
        """Take a heartbeat, and reply to it."""

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """Take the error that ended a task."""

    @property
    def first_number(self) -> int:
        """Number of the first request of a session; see `RpcChannel`."""
        return 1

    def listen(self, bound: str = "") -> str:
        """Bind, and return the endpoint that nodes join at; raises ClusterError.

        `bound` is the address of a dead coordinator, where its nodes look for the new one.
        """
        self._context = self._process.zmq_context(self.settings.job)
        self._authenticator = start_authenticator(self._context, self.state.count_refused_connection)
        self._socket = socket = self._context.socket(zmq.ROUTER)
        configure_socket(socket)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.bound = bound = bind(socket, bound or self.settings.listen_at(), self._arrivals)
        host = own_address() if self.settings.advertise == AUTO else self.settings.advertise
        return advertised(bound, self.settings.bind, host)

    def has_place(self, token: str) -> bool:
        """Return whether a sender is, or was, a member."""
        return self.state.members.find(token) is not None

    async def close(self) -> None:
        """End the tasks and the socket."""
        if self._turns is not None:
            self._turns.close()
        try:
            await self._tasks.close()
        finally:
            # Even if cancelled meanwhile: a context with an open socket cannot be terminated.
            if self._socket is not None:
                close_listening(self._socket)
            if self._authenticator is not None:
                self._authenticator.close()
            if self._socket is not None:
                self._context.term()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background; its exception goes to `_failed`."""
        return self._tasks.start(work)

    def _begin_receiving(self) -> None:
        assert self._socket is not None
        self._turns = SocketTurns(self._take_turn, self._socket)

    def _take_turn(self) -> None:
        assert self._socket is not None
        assert self._turns is not None
        try:
            self._turns.receive(self._socket, self._receive, RECEIVED_AT_ONCE)
        except Exception as error:  # noqa: BLE001 - whatever it is, the job fails with it
            self._failed(error)

    def _receive(self) -> None:
        assert self._socket is not None
        parts = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        identity = parts[0].bytes
        token = identity.decode("ascii", "replace")
        buffers = [part.buffer for part in parts[1:]]
        sizes = [buffer.nbytes for buffer in buffers]
        self._arrivals.take(parts, sizes, has_place=self.has_place(token))
        try:
            message = decode(buffers)
        except ProtocolError as error:
            self.refuse(token, str(error))
            self._send(identity, Failure(request=0, what=str(error)))
            return
        self.sessions.record_seen(identity, asyncio.get_running_loop().time())
        if isinstance(message, Heartbeat):
            self.beat(identity, token, message)
            return
        session = self.sessions.of(identity)
        if session is None:
            if not isinstance(message, RequestMessage):
                return
            session = self._new_session(identity, token, {})
            self.sessions.begin(identity, session)
            self.spawn(self.notify())
        session.receive(message)

    def _new_session(self, identity: bytes, token: str, replies: Mapping[int, Reply]) -> RpcChannel:
        async def handle(request: Request[Any], number: int) -> Reply:
            began = time.monotonic()
            try:
                return await self.answer(token, request, number)
            finally:
                if TRACER.on:
                    TRACER.note(CONTROL_VERBS.name_of(request), began, time.monotonic() - began)

        def send(message: Message) -> None:
            self._send(identity, message)

        return RpcChannel(
            token,
            send,
            handle,
            refused=lambda why: self.refuse(token, why),
            first_number=self.first_number,
            replies=replies,
        )

    def refuse(self, token: str, why: str) -> None:
        """Count and log a refused message."""
        self.state.count_refused(token)
        self._refusals.add("refused a message from %r: %s", token, why)

    def _send(self, identity: bytes, message: Message) -> None:
        assert self._socket is not None
        if not send_or_drop(self._socket, [identity, *encode(message)]):
            self._unsent.add(UNSENT, message.KIND, identity)
        if self._turns is not None:
            self._turns.wake()
