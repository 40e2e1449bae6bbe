"""The hub's server: sessions with loops, sync nodes and watchers, heartbeats, deaths.

Imports no torch. Loops go on training without it, but do not synchronize.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from ...nodes.control.membership import Member
from ...nodes.control.replica_sampler import ReplicaSampler
from ...nodes.control.server import ControlServer
from ...nodes.runtime.health import Health
from ...nodes.runtime.process import ProcessHooks
from ...nodes.runtime.settings import NodeSettings
from ...pipeline.config.job import Job
from ...pipeline.config.model import EmbeddingSection
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError
from ...pipeline.text.format import counted
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.loops import (
    EndSamples,
    GetLoops,
    JoinLoops,
    JoinLoopsReply,
    JoinTables,
    PauseLoop,
    TakeSamples,
)
from ...pipeline.wire.control.messages import (
    GetStatus,
    Hello,
    HelloReply,
    Interrupt,
    Leave,
    NodeFailed,
    Ready,
    RejoinGroup,
    ReportSlowPeer,
    StatusReply,
)
from ...pipeline.wire.control.orders import Finish, GroupView
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ...pipeline.wire.field_checks import Counts
from ...pipeline.wire.messages import HeartbeatReply
from ..errors import AttachError
from ..job import require_settings
from .admission import HubAdmission
from .expected_members import ExpectedMembers
from .ledger import ENDED, HubLedger
from .members import CLIENT, COUNTED, EMBEDDING, LOOP, SYNC
from .shutdown import HubShutdown
from .state import HubState
from .status import hub_status
from .tables import HubTables

FINISH_SECONDS = 5.0
# Node timeouts within which the loops of a dead hub come back; they look for one about every second.
RETURN_TIMEOUTS = 3

log = logging.getLogger(__name__)


class HubServer(ControlServer):
    """The socket of a hub; runs on one asyncio loop.

    Args:
        expected: with it, the hub ends when that is over.
        ledger: where it records what another hub needs to take its place; None for nowhere.
        saved: what the ledger of a dead hub has, whose place this one takes.
    """

    no_member: ClassVar = "belongs to a hub that was here before"

    def __init__(
        self,
        settings: NodeSettings,
        *,
        expected: ExpectedMembers | None = None,
        process: ProcessHooks | None = None,
        ledger: HubLedger | None = None,
        saved: Mapping[str, Any] | None = None,
    ) -> None:
        job = _without_tables(settings.job)
        super().__init__(replace(settings, job=job), process)
        self._ledger = ledger
        self.state: HubState = HubState(job, settings.folder)
        self.tables = HubTables(self, self.state, settings)
        self._shutdown = HubShutdown(self.state, expected, self._stopped.set, self.event)
        self._takes_loops = False
        self._admission = HubAdmission(
            self,
            self.state,
            {CLIENT: self.tables.admit_client, EMBEDDING: self.tables.admit_node},
        )
        self._plan = TablePlan.make(job.tables, job.embedding.nodes).to_body()
        if saved:
            self.state.restore(saved)
        # Called before the last loops end, which alone may have the model.
        self.checkpoint: Callable[[], Awaitable[object]] | None = None
        self._last_saving = asyncio.Lock()
        # The tokens of the loops that left as the last such checkpoint was begun.
        self._saved_with: set[str] = set()
        self._sampling: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Begin to receive and to watch heartbeats; an interrupt ends the hub."""
        self.serve(self._stopped.set)
        if self.state.awaits_anyone:
            self.spawn(self._take_back())

    def take_loops(self, job: Job) -> None:
        """Take loops from now on, which synchronize what this job says."""
        hub_job = _without_tables(job)
        self.settings = replace(self.settings, job=hub_job)
        self.state.take_loops(hub_job)
        self._takes_loops = True
        self.spawn(self.notify())

    async def over(self) -> None:
        """Return when the hub is to end; raises the error that ended it."""
        await self._stopped.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stopped.set()

    async def end_all(self) -> None:
        """Tell every member to end, and take the last counts."""
        # A center outlives loops that died.
        if self.checkpoint is not None and not all(m.left for m in self.state.members.everyone(LOOP)):
            await self.checkpoint()
        members = self.state.members.living()
        # Modules wait for a hub that takes the place of one that failed.
        end = (ExitCode.OK, "the hub ended") if self._error is None else (ExitCode.CLUSTER, "the hub failed")
        replies = await self.call_all(members, Finish(*end), FINISH_SECONDS)
        for member in members:
            if (reply := replies.get(member.info.name)) is not None:
                self.state.heartbeat(member, reply.counts)
                self.state.lose(member, "")
        for member in self.state.members.away(None):
            self.state.lose(member, "had not come back when the hub ended")
        # After an error another hub may take its place.
        await self.save({ENDED: self._error is None})

    async def save(self, more: Mapping[str, Any] | None = None) -> None:
        """Record what another hub needs to take this one's place."""
        if self._ledger is not None:
            await self._ledger.write(self.state.saved() | dict(more or {}))

    @property
    def outcome(self) -> str:
        return self.state.outcome

    def health(self) -> Health:
        state, loops = self.state, counted(len(self.state.loops), "loop")
        missing = state.job.sync_nodes - len(state.members.alive(SYNC))
        lacking = f", without {counted(missing, 'sync node')}" if missing else ""
        return Health(not missing, f"hub: {loops}{lacking}", {"loops": len(state.loops)})

    async def answer(self, token: str, request: Request[Any], number: int) -> Reply:  # noqa: ARG002
        if isinstance(request, Hello):
            return self._hello(token, request)
        if isinstance(request, GetLoops):
            return self.state.book()
        if isinstance(request, GetStatus):
            if request.subscribe_end:
                self.sessions.watches(token)
            status = hub_status(self.state, request.curves, request.incidents)
            return StatusReply(status.model_dump(mode="json"))
        handlers: dict[type[Request[Any]], Callable[[Member, Any], Awaitable[Reply]]] = {
            JoinLoops: self._join_loops,
            JoinTables: self.tables.join,
            Ready: self._ready,
            Leave: self._leave,
            Interrupt: self._leave,
            NodeFailed: self._node_failed,
            PauseLoop: self._pause_loop,
            ReportSlowPeer: self.report_slow_peer,
            RejoinGroup: self.rejoin_group,
            TakeSamples: self._take_samples,
            EndSamples: self._end_samples,
        }
        if type(request) not in handlers:
            raise ProtocolError(f"a hub does not answer {CONTROL_VERBS.name_of(request)!r}")
        members = self.state.members
        if members.known(token) is None:
            # A loop of the hub that was here before.
            self._send(token.encode(), HeartbeatReply(0, self.no_member))
        return await handlers[type(request)](members.require(token), request)

    def take_counts(self, member: Member, counts: Counts) -> None:
        self.state.heartbeat(member, counts)

    def on_loss(self, gone: Member) -> None:  # noqa: ARG002
        self._shutdown.check()

    def group_formed(self, view: GroupView) -> None:
        """See `ControlServer`: another hub begins with a group of its own."""

    def group_with(self, member: Member) -> GroupView | None:
        may_return = member.begun and not member.leaves and not self.state.is_paused(member)
        return self.state.return_to_group(member) if may_return else None

    def patience_seconds(self, member: Member, seen_at: float) -> float:  # noqa: ARG002
        run = self.state.job.run
        # It may be silent while it prepares.
        return run.node_timeout_seconds if member.ready else run.start_timeout_seconds

    async def run_periodic_checks(self, now: float) -> None:  # noqa: ARG002
        await self.save()
        self._shutdown.check()

    def mark_dead(self, token: str, why: str) -> None:
        """Mark a member as dead: end its session and tell the others."""
        member = self.state.members.find(token)
        self.sessions.end(token.encode(), why)
        if member is None or not member.alive:
            return
        self.event(member.info.name, why)
        self.tell_loss(member, self.state.lose(member, why))
        if member.info.role in (SYNC, EMBEDDING) and not self.tables.fails_to_start(member, why):
            self._failed(ClusterError(f"{member.info.name}: {why}"))

    async def _take_back(self) -> None:
        """Go on with the loops and modules of the dead hub that come back."""
        members, seconds = self.state.members, RETURN_TIMEOUTS * self.state.job.run.node_timeout_seconds
        away = " and ".join(counted(len(members.away(role)), what) for role, what in COUNTED.items())
        self.event("hub", f"took the place of a dead hub; {away} may come back")
        returns = self._admission.admit_returned(seconds), self._admission.await_modules(seconds)
        await asyncio.gather(*returns)
        self._shutdown.check()

    def _hello(self, token: str, hello: Hello) -> HelloReply:
        self.require_own_token(token, hello)
        if hello.role == EMBEDDING:
            self.tables.require_own(token)
        member = self.state.members.join(hello)
        self.state.places[token] = hello.host, hello.pid
        self.greet(member)
        plan = self.tables.plan if hello.role == EMBEDDING else self._plan
        return HelloReply(member.info.name, member.info.index, "", plan)

    async def _join_loops(self, member: Member, request: JoinLoops) -> JoinLoopsReply:
        if not await self.wait_for(lambda: self._takes_loops):
            raise ClusterError("the hub ends")
        try:
            require_settings(self.state.job, request.settings)
        except AttachError as error:
            raise ClusterError(error.what, where=error.where, remedy=error.remedy) from error
        self.state.offer(member, request.parameters)
        return JoinLoopsReply(self.state.job.model_dump(mode="json"))

    async def _ready(self, member: Member, request: Ready) -> Done:
        self.state.get_ready(member, request.facts)
        # Before it trains: another hub has to know it.
        await self.save()
        self.spawn(self._admission.admit(member))
        if self._sampling is None and member.info.role == LOOP and request.facts.dense_elements:
            sampler = ReplicaSampler(self)
            self._sampling = self.spawn(sampler.run(request.facts.dense_elements))
        return Done()

    async def _leave(self, member: Member, request: Leave | Interrupt) -> Done:  # noqa: ARG002
        if not member.leaves:
            member.prepare_to_leave()
            self.spawn(self._dismiss(member))
        return Done()

    async def _dismiss(self, member: Member) -> None:
        """End a loop that leaves, with its last counts."""
        await self._save_last(member)
        if (reply := await self.finish(member, FINISH_SECONDS)) is not None:
            self.state.heartbeat(member, reply.counts)
        if member.alive:
            self.event(member.info.name, "left", logging.INFO)
            self.tell_loss(member, self.state.lose(member, ""))
        self.sessions.end(member.info.token.encode(), "left")

    async def _save_last(self, member: Member) -> None:
        """Take a checkpoint if this loop leaves, and no other stays; those that leave together share it."""
        loops = self.state.loops
        if self.checkpoint is None or member not in loops or not all(loop.leaves for loop in loops):
            return
        async with self._last_saving:
            if member.info.token not in self._saved_with:
                self._saved_with = {loop.info.token for loop in self.state.loops if loop.leaves}
                await self.checkpoint()

    async def _node_failed(self, member: Member, request: NodeFailed) -> Done:
        self.fail_soon(member, request.what)
        return Done()

    async def _pause_loop(self, member: Member, request: PauseLoop) -> Done:
        self.broadcast_group(self.state.pause(member, paused=request.paused))
        return Done()

    async def _take_samples(self, member: Member, request: TakeSamples) -> Reply:
        reply = self.state.take_samples(member, request)
        # Recorded first: no example may be granted twice, or be lost, because the hub dies.
        await self.save()
        return reply

    async def _end_samples(self, member: Member, request: EndSamples) -> Done:
        self.state.end_samples(member, request)
        return Done()

    def _failed(self, error: BaseException) -> None:
        log.error("the hub failed", exc_info=error)
        self._error = self._error or error
        self._stopped.set()


def _without_tables(job: Job) -> Job:
    """Return the job of the hub itself: [embedding] holds for the modules' tables."""
    return job.model_copy(update={"embedding": EmbeddingSection()})
