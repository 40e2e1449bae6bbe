"""A server of control links: socket, sessions, heartbeats, silence, requests to members.

A coordinator serves a job with it, a hub the loops of users. Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, ClassVar, Final

import zmq
import zmq.asyncio

from ...pipeline.errors import ClusterError, ExitCode, ProtocolError, ShadowSyncError
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Done, Reply, ReplyType, Request
from ...pipeline.wire.control.messages import RejoinGroup, ReportSlowPeer
from ...pipeline.wire.control.orders import Finish, FinishReply, GroupView, JobEnded, SetGroup
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.endpoints import AUTO, advertised, own_address
from ...pipeline.wire.field_checks import Counts
from ...pipeline.wire.frames import decode, encode
from ...pipeline.wire.keys.arrivals import Arrivals
from ...pipeline.wire.keys.curve import ZapAuthenticator, close_listening, start_authenticator
from ...pipeline.wire.messages import IMPOSSIBLE, Failure, Heartbeat, HeartbeatReply, RequestMessage
from ...pipeline.wire.refusals import UNSENT, CountedLog, Refusals
from ...pipeline.wire.rpc_channel import ConnectionLost, ImpossibleReply, RemoteError, RpcChannel
from ...pipeline.wire.schema import Message
from ...pipeline.wire.sockets import bind, configure_socket, send_now
from ...pipeline.wire.tasks import TaskSet
from ..runtime.health import Health, serve_health
from ..runtime.largest_messages import LARGEST_HEADER_BYTES
from ..runtime.process import ProcessHooks
from ..runtime.settings import NodeSettings
from ..runtime.tracing import TRACER
from .cluster_state import ClusterState
from .membership import SILENT, Member
from .sessions import END_NOTICE_SECONDS, JobWaits, SessionRegistry

# Time limit of a member for a reply.
REQUEST_SECONDS: Final = 60.0
# Of one node: what it sends while the loop does other work.
HELD_BYTES: Final = 64 << 20

log = logging.getLogger(__name__)


class ControlServer(JobWaits, ABC):
    """The socket that nodes and watchers connect to, and their sessions.

    All of it runs on one asyncio loop.

    Attributes:
        no_member: what a heartbeat of one that is no member is answered; "" for nothing.
        state: set by the subclass.
        bound: the address, set by `listen`.
        unmet: why a node refused its last request, by its name; others only read it.
    """

    no_member: ClassVar[str] = ""
    state: ClusterState

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
    def mark_dead(self, token: str, why: str) -> None:
        """Mark a node as dead: end its session and tell the others."""

    @abstractmethod
    def take_counts(self, member: Member, counts: Counts) -> None:
        """Take the counts of a member's heartbeat."""

    @abstractmethod
    def patience_seconds(self, member: Member, seen_at: float) -> float:
        """Return how long a member may be silent; `seen_at` is when it last sent a message."""

    @abstractmethod
    def on_loss(self, gone: Member) -> None:
        """Act on a death or departure, of which the others are being told."""

    @abstractmethod
    def group_formed(self, view: GroupView) -> None:
        """Record a new group before its members are told."""

    @abstractmethod
    def group_with(self, member: Member) -> GroupView | None:
        """Return the group with a member that asks to return; None for no answer."""

    @abstractmethod
    async def look(self, now: float) -> None:
        """Look after the members beside their silence; called about twice a second."""

    @abstractmethod
    def health(self) -> Health:
        """Return what the socket of `nodes/runtime/health.py` answers."""

    @property
    @abstractmethod
    def outcome(self) -> str:
        """How it ended, for watchers."""

    @abstractmethod
    def _failed(self, error: BaseException) -> None:
        """Take the error that ended a task."""

    @property
    def first_number(self) -> int:
        """Number of the first request of a session; see `RpcChannel`."""
        return 1

    @property
    def examples_so_far(self) -> int:
        """Number of examples that the members have trained, which each learns."""
        return 0

    def listen(self, bound: str = "") -> str:
        """Bind, and return the endpoint that nodes join at; raises ClusterError.

        `bound` is the address of a dead coordinator, where its nodes look for the new one.
        """
        self._context = self._process.zmq_context(self.settings.job)
        self._authenticator = start_authenticator(self._context, self.state.count_refused_connection)
        self._socket = socket = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        configure_socket(socket)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.bound = bound = bind(socket, bound or self.settings.listen_at(), self._arrivals)
        host = own_address() if self.settings.advertise == AUTO else self.settings.advertise
        return advertised(bound, self.settings.bind, host)

    def serve(self, interrupted: Callable[[], None]) -> None:
        """Begin to receive, and to watch heartbeats; an interrupt calls `interrupted`."""
        self.spawn(self._receive())
        self.spawn(self._watch())
        if (path := self._process.health_path(supervised=False)) is not None:
            self.spawn(serve_health(path, self.health))
        self._process.on_interrupt(asyncio.get_running_loop(), interrupted)

    def has_place(self, token: str) -> bool:
        """Return whether a sender is, or was, a member."""
        return self.state.members.find(token) is not None

    def event(self, node: str, what: str, level: int = logging.WARNING) -> float:
        """Record what happened to a member, in log and status; return when."""
        log.log(level, "%s: %s", node, what)
        return self.state.add_event(node, what)

    async def close(self) -> None:
        """Tell watchers that it has ended; end the tasks and the socket."""
        try:
            watchers = self.sessions.watchers(asyncio.get_running_loop().time())
            ended = JobEnded(self.outcome)
            notices = [one.call(ended, timeout_seconds=END_NOTICE_SECONDS) for one in watchers]
            await asyncio.gather(*notices, return_exceptions=True)
        finally:
            await self._close()

    async def _close(self) -> None:
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
                self._beat(identity, token, message)
                continue
            session = self.sessions.of(identity)
            if session is None:
                if not isinstance(message, RequestMessage):
                    continue
                session = self._new_session(identity, token, {})
                self.sessions.begin(identity, session)
                self.spawn(self.notify())
            session.receive(message)

    def _beat(self, identity: bytes, token: str, message: Heartbeat) -> None:
        """Take a heartbeat, and reply to it."""
        member, why = self.state.members.known(token), self.no_member
        if member is not None:
            # One that leaves is being told to end, as long as it has a session.
            leaves = member.left and self.sessions.of(identity) is not None
            why = "" if member.alive or leaves else member.lost_because
        self._send(identity, HeartbeatReply(self.examples_so_far, why))
        # While it prepares it has nothing to count.
        if member is not None and member.alive and member.ready:
            self.take_counts(member, message.counts)

    async def _watch(self) -> None:
        limit = self.state.job.run.node_timeout_seconds
        while True:
            await asyncio.sleep(min(0.5, limit / 4))
            # The loop's clock: if this process was paused, messages sent meanwhile are still to be received.
            now = asyncio.get_running_loop().time()
            self.end_silent(now)
            await self.look(now)

    def end_silent(self, now: float) -> None:
        """Declare dead who has been silent for too long; forget other senders."""
        members = self.state.members
        for member in members.living():
            seen_at = self.sessions.seen_at(member.info.token)
            if seen_at is None:
                continue
            patience = self.patience_seconds(member, seen_at)
            if now - seen_at > patience:
                self.mark_dead(member.info.token, f"{SILENT} {duration(patience)}")
        self.sessions.forget_silent(now, lambda token: members.find(token) is not None)

    def tell_loss(self, gone: Member, view: GroupView | None, *written: asyncio.Future[None]) -> None:
        """Tell the others of a death or departure, once it is written, and of the group without it."""
        for other in self.state.members.alive():
            # One that still prepares knows no other yet.
            if other.ready:
                self.spawn(self._notice(other, gone, *written))
        self.broadcast_group(view)
        self.on_loss(gone)
        self.spawn(self.notify())

    async def _notice(self, other: Member, gone: Member, *written: asyncio.Future[None]) -> None:
        if written:
            # Recorded first: a coordinator that takes over must know it, too.
            await asyncio.wait(written)
        await self.call(other, gone.notice, REQUEST_SECONDS)

    def broadcast_group(self, view: GroupView | None) -> None:
        """Send a new generation to all trainers, including those that are not in it."""
        if view is not None and self.state.members.started:
            for trainer in self.state.members.alive("trainer"):
                self.spawn(self.call(trainer, SetGroup(view), REQUEST_SECONDS))

    async def report_slow_peer(self, member: Member, request: ReportSlowPeer) -> Done:
        """Remove a trainer from the group that another one waits for."""
        group = self.state.group
        view = group.late(request.generation, request.index, reported_by=member.info.index)
        if view is not None:
            self.group_formed(view)
            trainers = self.state.members.everyone("trainer")
            slow = next(one.info.name for one in trainers if one.info.index == request.index)
            self.event(slow, f"was removed from the group: {member.info.name} waited for it without success")
        # Also without a change: the reporter does not know the current view.
        self.broadcast_group(view or group.view)
        await self.notify()
        return Done()

    async def rejoin_group(self, member: Member, request: RejoinGroup) -> Done:  # noqa: ARG002
        """Let a trainer return to the group."""
        self.broadcast_group(self.group_with(member))
        await self.notify()
        return Done()

    async def finish(self, member: Member, seconds: float) -> FinishReply | None:
        """Tell a leaving member to end; return its last counts, None without a reply."""
        session = self.sessions.of(member.info.token.encode())
        try:
            if session is not None:
                return await session.call(Finish(ExitCode.OK, ""), timeout_seconds=seconds)
        except (ConnectionLost, RemoteError) as error:
            log.warning("%s did not confirm its end: %s", member.info.name, error)
        return None

    def fail_soon(self, member: Member, what: str) -> None:
        """Declare a member dead that says that it failed, once it has the reply.

        It ends then. If the reply is lost and the member repeats its request, the next reply says that it was
        declared dead.
        """
        loop = asyncio.get_running_loop()
        loop.call_soon(self.mark_dead, member.info.token, f"failed: {what}")

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
        if not send_now(self._socket, [identity, *encode(message)]):
            self._unsent.add(UNSENT, message.KIND, identity)


def _without_token(error: ConnectionLost | RemoteError, session: RpcChannel) -> str:
    """Return the text of an error without the token of its node."""
    return error.what if error.where == session.peer else str(error)
