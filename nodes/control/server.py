"""A server of control links: its socket, the sessions, and requests to members.

A coordinator serves a job with it, a hub the loops of users. Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

import zmq
import zmq.asyncio

from ...pipeline.errors import ClusterError, ProtocolError, ShadowSyncError
from ...pipeline.wire.control.base import Reply, ReplyType, Request
from ...pipeline.wire.control.orders import JobEnded
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.endpoints import AUTO, advertised, own_address
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.keys.arrivals import Arrivals
from ...pipeline.wire.keys.curve import ZapAuthenticator, close_listening, start_authenticator
from ...pipeline.wire.messages import IMPOSSIBLE, Failure, Heartbeat, RequestMessage
from ...pipeline.wire.refusals import UNSENT, CountedLog, Refusals
from ...pipeline.wire.rpc_channel import ConnectionLost, ImpossibleReply, RemoteError, RpcChannel
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import bind, configure_socket, send_now
from ...pipeline.wire.tasks import TaskSet
from ..runtime.largest_messages import LARGEST_HEADER_BYTES
from ..runtime.process import ProcessHooks
from ..runtime.settings import NodeSettings
from ..runtime.tracing import TRACER
from .membership import Member
from .sessions import END_NOTICE_SECONDS, JobWaits, SessionRegistry

# Of one node: what it sends while the loop does other work.
HELD_BYTES: Final = 64 << 20

log = logging.getLogger(__name__)


class Members(Protocol):
    """The members of a job or of a hub."""

    def find(self, token: str) -> Member | None:
        """Return the member with this token, dead or alive."""


class HasMembers(Protocol):
    """What the state of a job and that of a hub have in common."""

    @property
    def members(self) -> Members:
        """Who takes part."""


class ControlServer(JobWaits, ABC):
    """The socket that nodes and watchers connect to, and their sessions.

    All of it runs on one asyncio loop.

    Attributes:
        state: set by the subclass.
        bound: the address, set by `listen`.
        unmet: why a node refused its last request, by its name; others only read it.
    """

    state: HasMembers

    def __init__(self, settings: NodeSettings, process: ProcessHooks | None = None) -> None:
        super().__init__()
        self.settings = settings
        self._process = process or ProcessHooks()
        self.sessions = SessionRegistry()
        self.unmet: dict[str, ShadowSyncError] = {}
        self._refusals = Refusals(log)
        self._unsent = CountedLog(log)
        self._tasks = TaskSet(self._failed)
        self.bound = ""
        self._socket: zmq.asyncio.Socket | None = None
        self._authenticator: ZapAuthenticator | None = None
        # Who joins or watches says little.
        self._arrivals = Arrivals(LARGEST_HEADER_BYTES, HELD_BYTES, LARGEST_HEADER_BYTES)

    @abstractmethod
    async def answer(self, token: str, request: Request[Any], number: int) -> Reply:
        """Answer the request of this number of a node or a watcher."""

    @abstractmethod
    def beat(self, identity: bytes, token: str, message: Heartbeat) -> None:
        """Take the heartbeat of a node, and reply to it."""

    @abstractmethod
    def mark_dead(self, token: str, why: str) -> None:
        """Mark a node as dead: end its session and tell the others."""

    @abstractmethod
    def count_refused(self, token: str) -> None:
        """Count a message of this sender that was refused."""

    @abstractmethod
    def count_refused_connection(self) -> None:
        """Count a connection without the job's key, or with too much unfinished."""

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
        self._authenticator = start_authenticator(self._context, self.count_refused_connection)
        self._socket = socket = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        configure_socket(socket)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.bound = bound = bind(socket, bound or self.settings.listen_at(), self._arrivals)
        host = own_address() if self.settings.advertise == AUTO else self.settings.advertise
        return advertised(bound, self.settings.bind, host)

    def has_place(self, token: str) -> bool:
        """Return whether a sender is, or was, a member."""
        return self.state.members.find(token) is not None

    async def tell_watchers(self, outcome: str) -> None:
        """Tell those who watch that it has ended."""
        watchers = self.sessions.watchers(asyncio.get_running_loop().time())
        notices = [one.call(JobEnded(outcome), timeout_seconds=END_NOTICE_SECONDS) for one in watchers]
        await asyncio.gather(*notices, return_exceptions=True)

    async def close(self) -> None:
        """End the tasks and the socket."""
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

    async def call(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType | None:
        """Send one node a request; return None if it is lost or refuses.

        An answer that cannot be counts as its death.
        """
        session = self.sessions.of(member.info.token.encode())
        if session is None or not member.alive:
            return None
        self.unmet.pop(member.info.name, None)
        try:
            return await session.call(request, timeout_seconds=seconds)
        except (ConnectionLost, RemoteError) as error:
            what = _without_token(error, session)
            log.warning("%s did not complete %s: %s", member.info.name, type(request).__name__, what)
            if isinstance(error, ImpossibleReply):
                self.expel(member, error.what)
            if isinstance(error, RemoteError):
                self.unmet[member.info.name] = error
            return None

    async def call_or_raise(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType:
        """Send a request that must be answered.

        Raises ClusterError with the reason if it is not.
        """
        session = self.sessions.of(member.info.token.encode())
        if session is None or not member.alive:
            raise ClusterError(f"{member.info.name} is lost")
        try:
            return await session.call(request, timeout_seconds=seconds)
        except (ConnectionLost, RemoteError) as error:
            if isinstance(error, ImpossibleReply):
                self.expel(member, error.what)
            unmet = ClusterError(f"{member.info.name}: {_without_token(error, session)}")
            unmet.exit_code = error.exit_code if isinstance(error, RemoteError) else unmet.exit_code
            raise unmet from error

    def expel(self, member: Member, why: str) -> None:
        """Declare a node dead that sent what cannot be."""
        self.mark_dead(member.info.token, f"{IMPOSSIBLE}: {why}")

    async def call_all(
        self, members: Iterable[Member], request: Request[ReplyType], seconds: float
    ) -> dict[str, ReplyType]:
        """Send several nodes a request at once; return the replies by name."""
        targets = list(members)
        replies = await asyncio.gather(*(self.call(member, request, seconds) for member in targets))
        return {m.info.name: a for m, a in zip(targets, replies, strict=True) if a is not None}

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine in the background; its exception goes to `_failed`."""
        return self._tasks.start(work)

    async def _receive(self) -> None:
        while True:
            assert self._socket is not None
            parts = await self._socket.recv_multipart(copy=False)
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
                continue
            self.sessions.record_seen(identity, asyncio.get_running_loop().time())
            if isinstance(message, Heartbeat):
                self.beat(identity, token, message)
                continue
            session = self.sessions.of(identity)
            if session is None:
                if not isinstance(message, RequestMessage):
                    continue
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
        self.count_refused(token)
        self._refusals.add("refused a message from %r: %s", token, why)

    def _send(self, identity: bytes, message: Message) -> None:
        assert self._socket is not None
        if not send_now(self._socket, [identity, *encode(message)]):
            self._unsent.add(UNSENT, message.KIND, identity)


def _without_token(error: ConnectionLost | RemoteError, session: RpcChannel) -> str:
    """Return the text of an error without the token of its node."""
    return error.what if error.where == session.peer else str(error)
