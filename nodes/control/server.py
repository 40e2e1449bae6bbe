"""A server of control links: heartbeats, silence, losses, groups, and requests to members.

A coordinator serves a job with it, a hub the loops of users. Imports no torch.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import ClassVar, Final

from ...pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Done, ReplyType, Request
from ...pipeline.wire.control.messages import Hello, RejoinGroup, ReportSlowPeer
from ...pipeline.wire.control.orders import Finish, FinishReply, GroupView, JobEnded, SetGroup
from ...pipeline.wire.field_checks import Counts
from ...pipeline.wire.messages import IMPOSSIBLE, Heartbeat, HeartbeatReply
from ...pipeline.wire.rpc.channel import ConnectionLost, ImpossibleReply, RemoteError, RpcChannel
from ..runtime.health import Health, serve_health
from ..runtime.process import ProcessHooks
from ..runtime.settings import NodeSettings
from .control_socket import ControlSocket
from .membership import SILENT, Member
from .sessions import END_NOTICE_SECONDS

# Time limit of a member for a reply.
REQUEST_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class ControlServer(ControlSocket):
    """What a control server does for its members: heartbeats, silence, losses, groups, requests.

    Attributes:
        no_member: what a heartbeat of one that is no member is answered; "" for nothing.
        unmet: why a node refused its last request, by its name; others only read it.
    """

    no_member: ClassVar[str] = ""

    def __init__(self, settings: NodeSettings, process: ProcessHooks | None = None) -> None:
        super().__init__(settings, process)
        self.unmet: dict[str, ShadowSyncError] = {}

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
    async def run_periodic_checks(self, now: float) -> None:
        """Check everything but the members' silence; called about twice a second with the loop's time."""

    @abstractmethod
    def health(self) -> Health:
        """Return what the socket of `nodes/runtime/health.py` answers."""

    @property
    @abstractmethod
    def outcome(self) -> str:
        """How it ended, for watchers."""

    @property
    def examples_so_far(self) -> int:
        """Number of examples that the members have trained, which each learns."""
        return 0

    def serve(self, interrupted: Callable[[], None]) -> None:
        """Begin to receive, and to watch heartbeats; an interrupt calls `interrupted`."""
        self._begin_receiving()
        self.spawn(self._watch())
        if (path := self._process.health_path(supervised=False)) is not None:
            self.spawn(serve_health(path, self.health))
        self._process.on_interrupt(asyncio.get_running_loop(), interrupted)

    def event(self, node: str, what: str, level: int = logging.WARNING) -> float:
        """Record what happened to a member, in log and status; return when."""
        log.log(level, "%s: %s", node, what)
        return self.state.add_event(node, what)

    async def close(self) -> None:
        """Tell watchers that it has ended; end the tasks and the socket."""
        try:
            watchers = self.sessions.watchers(asyncio.get_running_loop().time())
            ended = JobEnded(self.outcome)
            notices = [watcher.call(ended, timeout_seconds=END_NOTICE_SECONDS) for watcher in watchers]
            await asyncio.gather(*notices, return_exceptions=True)
        finally:
            await super().close()

    def require_own_token(self, token: str, hello: Hello) -> None:
        """Raise ClusterError for a hello with another token than its connection's."""
        if hello.token != token:
            raise ClusterError("the token differs from the connection's")

    def greet(self, member: Member) -> None:
        """Record when a new member said hello, and let those see it who wait for members."""
        member.say_hello(asyncio.get_running_loop().time())
        self.spawn(self.notify())

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
            # Of one that left as it was told to, nothing more is wanted.
            level = logging.INFO if member.left else logging.WARNING
            log.log(level, "%s did not complete %s: %s", member.info.name, type(request).__name__, what)
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

    def beat(self, identity: bytes, token: str, message: Heartbeat) -> None:
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
            await self.run_periodic_checks(now)

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
            slow = next(trainer.info.name for trainer in trainers if trainer.info.index == request.index)
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


def _without_token(error: ConnectionLost | RemoteError, session: RpcChannel) -> str:
    """Return the text of an error without the token of its node."""
    return error.what if error.where == session.peer else str(error)
