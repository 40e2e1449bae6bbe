"""The requests of nodes, supervisors and watchers, and the coordinator's replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ...pipeline.data.span import to_runs
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import (
    ChildExited,
    ChildExitedReply,
    GetStatus,
    Hello,
    HelloReply,
    Interrupt,
    Leave,
    LeftOutBatch,
    NextSpan,
    NextSpanReply,
    NodeFailed,
    Ready,
    RejoinGroup,
    ReportSlowPeer,
    ReturnBatches,
    ReturnBatchesReply,
    SpanGrant,
    SpanRead,
    StatusReply,
    TrainedBatches,
)
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from .admission import Admission, ReaderAdmission, ShardAdmission, SyncAdmission, TrainerAdmission
from .departure import Departures
from .monitoring.status import answer_status
from .outcome import Stop
from .recovery.readers import ReaderRecovery
from .recovery.shards import ShardRecovery
from .recovery.successors import Successors
from .server import CoordinatorServer
from .state.job import JobPhase
from .state.membership import Member

log = logging.getLogger(__name__)


class RequestHandler:
    """Handle every request to the coordinator. Runs on its loop."""

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state
        self._store = server.store
        # What was replied to the supervisor, by token: it repeats what was not answered in time.
        self._exits: dict[str, ChildExitedReply] = {}
        # Tokens of readers that were told that there are no more spans.
        self._idle_readers: set[str] = set()
        admitting = asyncio.Lock()
        self._successors = {"reader": Successors(), "embedding": Successors()}
        readers = ReaderRecovery(server, self._successors["reader"])
        shards = ShardRecovery(server, self._successors["embedding"])
        self._recoveries: dict[str, Callable[[Member], None]] = {
            "reader": readers.lost,
            "embedding": shards.lost,
        }
        self._departures = Departures(server, admitting)
        self._admissions: dict[str, Admission] = {
            "reader": ReaderAdmission(server, admitting),
            "sync": SyncAdmission(server, admitting),
            "trainer": TrainerAdmission(server, admitting),
            "embedding": ShardAdmission(server, admitting, shards.replaced),
        }
        self._of_members: dict[type[Request[Any]], Callable[[Member, Any], Awaitable[Reply]]] = {
            Ready: self._ready,
            NodeFailed: self._failed,
            Interrupt: self._interrupt,
            Leave: self._leave,
            NextSpan: self._next_span,
            SpanRead: self._span_read,
            TrainedBatches: self._trained,
            ReturnBatches: self._return_batches,
            ReportSlowPeer: self._report_slow_peer,
            RejoinGroup: self._rejoin_group,
        }

    async def handle(self, token: str, request: Request[Any]) -> Reply:
        """Return the reply to one request; raises ShadowSyncError for what cannot be done."""
        if isinstance(request, Hello):
            return self._hello(token, request)
        if isinstance(request, ChildExited):
            return self._exited(token, request)
        if isinstance(request, GetStatus):
            return self._status(token, request)
        verb = CONTROL_VERBS.name_of(request)
        if type(request) not in self._of_members:
            raise ProtocolError(f"a coordinator does not answer {verb!r}")
        member = self._state.members.require(token)
        if member.info.role not in CONTROL_VERBS.verbs[verb].askers:
            raise ProtocolError(f"a {member.info.role} may not send {verb!r}")
        try:
            return await self._of_members[type(request)](member, request)
        except ValueError as error:
            raise ProtocolError(f"{verb}: {error}") from error

    def died(self, node: Member) -> None:
        """Begin to recover from the death of a node."""
        if node.info.role in self._recoveries and node.begun and self._state.is_training:
            self._recoveries[node.info.role](node)

    def _hello(self, token: str, hello: Hello) -> HelloReply:
        if hello.token != token:
            raise ClusterError("the token differs from the connection's")
        if self._state.over:
            # The coordinator would never tell it to end.
            raise ClusterError("the job has ended", remedy="start its nodes again")
        self._end_predecessor(token, hello.endpoint)
        member = self._state.join(hello.role, token, hello.digest, hello.endpoint, hello.host, hello.pid)
        info = member.info
        if not member.begun and not member.joined_at:
            member.say_hello(asyncio.get_running_loop().time())
            self._server.spawn(self._server.notify())
        if info.role in self._successors:
            self._successors[info.role].arrived(token)
        log.info("%s joined (%s)", info.name, info.endpoint or "connects only")
        plan = self._state.placement.plan.to_body()
        folder = str(self._state.folder.resolve())
        return HelloReply(info.name, info.index, folder, plan, late=not member.begun)

    def _end_predecessor(self, token: str, endpoint: str) -> None:
        """Declare a node dead at whose address another one listens now."""
        members = self._state.members
        for member in [*members.alive(), *members.joining()] if endpoint and members.started else ():
            if member.info.endpoint == endpoint and member.info.token != token:
                self._server.mark_dead(member.info.token, "is gone: another node listens at its address")

    def _exited(self, sender: str, request: ChildExited) -> ChildExitedReply:
        if not sender or sender != self._server.settings.supervisor:
            raise ProtocolError("only this job's supervisor may say that a process has ended")
        state = self._state
        if (before := self._exits.get(request.token)) is not None:
            return before
        member = state.members.find(request.token)
        known = member is not None
        if known:
            self._server.mark_dead(request.token, f"died ({request.how})")
        has_use = state.can_join(request.role) and not (member is not None and member.left)
        replace = has_use and bool(request.successor)
        if not known and not state.over and not state.members.started:
            text = f"a {request.role} ended before it joined ({request.how})"
            # Also one that ended well has ended the job early.
            code = request.code if request.code is not ExitCode.OK else ExitCode.STOPPED_BY_DEATH
            self._server.request_stop(Stop("death", text, code))
        elif not known and not state.over:
            self._server.event(request.role, f"a process ended before it joined ({request.how})")
        if request.role in self._successors:
            self._successors[request.role].exited(request.token, request.successor if replace else "")
            self._server.spawn(self._server.notify())
        reply = self._exits[request.token] = ChildExitedReply(replace)
        return reply

    def _status(self, token: str, request: GetStatus) -> StatusReply:
        if request.tell_end:
            self._server.sessions.watches(token)
        is_supervisor = bool(token) and token == self._server.settings.supervisor
        everyone = self._state.members.everyone()
        dead = [member.info.token for member in everyone if not member.alive and not member.left]
        return StatusReply(answer_status(self._state, request), tuple(dead) if is_supervisor else ())

    async def _ready(self, member: Member, request: Ready) -> Done:
        member.get_ready(request.facts)
        if not member.begun:
            self._admissions[member.info.role].admit(member)
        await self._server.notify()
        return Done()

    async def _failed(self, member: Member, request: NodeFailed) -> Done:
        if request.exit_code is ExitCode.OK:
            raise ProtocolError("a failure has an exit code, and not 0")
        # A node whose part has died is only dead itself, and one that joins and fails too; other failures end
        # the job.
        if request.exit_code is not ExitCode.STOPPED_BY_DEATH and member.begun:
            text = f"{member.info.name}: {request.what}"
            self._server.request_stop(Stop("failed", text, request.exit_code))
        # It ends once it has the reply, so no one should wait for it. The reply is sent before this runs. If
        # that is lost and the node repeats the request, the reply says that it was declared dead.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._server.mark_dead, member.info.token, f"failed: {request.what}")
        return Done()

    async def _interrupt(self, member: Member, request: Interrupt) -> Done:  # noqa: ARG002
        text = f"{member.info.name} was interrupted"
        self._server.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))
        return Done()

    async def _leave(self, member: Member, request: Leave) -> Done:  # noqa: ARG002
        self._departures.request(member)
        return Done()

    async def _next_span(self, member: Member, request: NextSpan) -> NextSpanReply:  # noqa: ARG002
        if (replay := self._state.ledger.grant_replay(member.info.name)) is not None:
            grant = SpanGrant(replay.epoch, replay.span, tuple(to_runs(replay.skip)), replay=True)
            return NextSpanReply(grant)
        granted = self._state.ledger.grant(member.info.name)
        if granted is None:
            self._idle_readers.add(member.info.token)
            return NextSpanReply(None)
        epoch, span = granted
        reader = member.info.name
        await self._store.run(lambda store: store.grant(epoch, span, reader))
        await self._server.notify()
        skip = tuple(to_runs(self._state.ledger.skip_of(epoch, span.number)))
        return NextSpanReply(SpanGrant(epoch, span, skip))

    async def _span_read(self, member: Member, read: SpanRead) -> Done:
        state = self._state
        if read.replay:
            state.ledger.replay_read(member.info.name, read.epoch, read.span)
            self._wake_readers()
            return Done()
        counts = {"batches": read.batches, "examples": read.examples, "bad_rows": read.bad_rows}
        state.ledger.span_read(read.epoch, read.span, **counts)
        written = self._store.run(lambda store: store.span_read(read.epoch, read.span, **counts))
        state.input.size.span_read(read.span, read.examples, read.bad_rows)
        bad_rows, limit = state.ledger.totals.bad_rows, state.job.data.max_bad_rows
        if bad_rows > limit:
            text = f"{bad_rows} malformed rows over all readers; the limit data.max_bad_rows is {limit}"
            self._server.request_stop(Stop("failed", text, ExitCode.DATA))
        await written
        self._wake_readers()
        await self._server.notify()
        return Done()

    async def _trained(self, member: Member, request: TrainedBatches) -> Done:
        rows = self._state.acknowledge(member, request.batches, request.synced_iterations)
        await self._store.run(lambda store: store.acknowledge(rows))
        if request.left_out:
            await self._left_out(member.info.name, request.left_out)
        self._wake_readers()
        await self._server.notify()
        return Done()

    def _wake_readers(self) -> None:
        """Tell idle readers of owed batches that can be handed out now."""
        if self._idle_readers and self._state.ledger.has_replays:
            self._idle_readers.clear()
            self._server.spawn(self._server.offer_spans())

    async def _left_out(self, trainer: str, batches: tuple[LeftOutBatch, ...]) -> None:
        bad, ledger = self._state.bad_batches, self._state.ledger
        first = not bad.count
        rows = []
        for batch in batches:
            rows.append(ledger.leave_out(trainer, batch.id, batch.examples, batch.why))
            bad.add(rows[-1], ledger.path_of)
        await self._store.run(lambda store: store.left_out(rows))
        if first:
            self._server.event(trainer, bad.event())
        if (stop := bad.too_many()) is not None:
            self._server.request_stop(stop)

    async def _return_batches(self, member: Member, request: ReturnBatches) -> ReturnBatchesReply:
        dead = self._state.members.find(request.token)
        if dead is None or dead.alive:
            raise ProtocolError("only a dead trainer's batches can be returned")
        sizes = {batch.id: batch.examples for batch in request.batches}
        replays = {batch.id for batch in request.batches if batch.replay}
        reader = member.info.name
        again = self._state.ledger.return_batches(dead.info.name, sizes.items(), replays, reader)
        rows = [(b.epoch, b.span, b.number, sizes[b], dead.info.name) for b in again]
        await self._store.run(lambda store: store.returned(rows))
        await self._server.notify()
        return ReturnBatchesReply(tuple(again))

    async def _report_slow_peer(self, member: Member, request: ReportSlowPeer) -> Done:
        index = request.index
        view = self._state.group.late(request.generation, index, reported_by=member.info.index)
        if view is not None:
            text = f"left the synchronization: {member.info.name} waited for it in vain"
            self._server.event(f"trainer-{index}", text)
        # Without a change, too: the reporter does not know the current view.
        self._server.broadcast_group(view or self._state.group.view)
        await self._server.notify()
        return Done()

    async def _rejoin_group(self, member: Member, request: RejoinGroup) -> Done:  # noqa: ARG002
        training = self._state.phase is JobPhase.TRAINING
        comes_back = training and not self._departures.is_leaving(member)
        view = self._state.group.admit(member.info.index) if comes_back else None
        if view is not None:
            self._server.event(member.info.name, "rejoined the synchronization")
        self._server.broadcast_group(view or self._state.group.view)
        await self._server.notify()
        return Done()
