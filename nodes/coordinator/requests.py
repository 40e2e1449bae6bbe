"""The requests of nodes, supervisors and watchers, and the coordinator's replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ...pipeline.data.bad_rows import too_many_bad_rows
from ...pipeline.errors import ClusterError, ExitCode, ProtocolError
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import (
    UNKNOWN_DELIVERY,
    ChildExited,
    EndInput,
    GetStatus,
    Hello,
    Interrupt,
    Leave,
    NextSpan,
    NextSpanReply,
    NodeFailed,
    Ready,
    RejoinGroup,
    ReportEvent,
    ReportReader,
    ReportSlowPeer,
    Scale,
    SpanRead,
    StatusReply,
    TrainedBatches,
)
from ...pipeline.wire.control.verbs import CONTROL_VERBS
from ..control.membership import Member
from .membership.admission import Admission, ReaderAdmission, ShardAdmission, SyncAdmission, TrainerAdmission
from .membership.departure import Departures
from .membership.scaling import Scaling
from .membership.start_admission import StartAdmission
from .membership.supervisor_reports import SupervisorReports
from .monitoring.status import status_body
from .recovery.deaths import ReaderRecovery, ShardRecovery, Successors, TrainerRecovery, offer_spans
from .server import CoordinatorServer
from .state.changes import REQUESTS, InputEnded
from .state.outcome import Stop
from .state.phases import JobPhase

log = logging.getLogger(__name__)

# Between two checks of which nodes are silent, while another node waits for a place.
HEARD_SECONDS = 0.25


class RequestHandler:
    """Handle every request to the coordinator. Runs on its loop.

    Attributes:
        start: admits the trainers that wait while one goes through the start of the job.
    """

    def __init__(self, server: CoordinatorServer) -> None:
        self._server = server
        self._state = server.state
        # Tokens of readers that know that there are no more spans.
        self._idle_readers: set[str] = set()
        # The reader that each trainer has reported, by the trainer's token.
        self._reported: dict[str, str] = {}
        admitting = asyncio.Lock()
        self._successors = {role: Successors() for role in ("reader", "trainer", "embedding")}
        readers = ReaderRecovery(server, self._successors["reader"])
        self._shards = shards = ShardRecovery(server, self._successors["embedding"])
        self._recoveries: dict[str, Callable[[Member], None]] = {
            "reader": readers.lost,
            "trainer": TrainerRecovery(server, self._successors["trainer"]).lost,
            "embedding": shards.lost,
        }
        self._departures = Departures(server, admitting)
        reports = SupervisorReports(server, self._successors)
        scaling = Scaling(server, self._departures, reports)
        self._admissions: dict[str, Admission] = {
            "reader": ReaderAdmission(server, admitting),
            "sync": SyncAdmission(server, admitting),
            "trainer": TrainerAdmission(server, admitting),
            "embedding": ShardAdmission(server, admitting, shards.replaced),
        }
        self.start = StartAdmission(server, admitting)
        # Requests of senders that need not be members: answered with the token and the request's number.
        self._of_anyone: dict[type[Request[Any]], Callable[[str, Any, int], Awaitable[Reply]]] = {
            Hello: self._hello,
            ChildExited: lambda token, request, _: reports.answer(token, request),
            GetStatus: lambda token, request, _: self._status(token, request),
            Scale: lambda _, request, __: scaling.scale(request),
            EndInput: lambda *_: self._end_input(),
        }
        self._of_members: dict[type[Request[Any]], Callable[[Member, Any], Awaitable[Reply]]] = {
            NodeFailed: self._failed,
            Interrupt: self._interrupt,
            Leave: self._leave,
            ReportSlowPeer: server.report_slow_peer,
            ReportEvent: self._report_event,
            ReportReader: self._report_reader,
            RejoinGroup: server.rejoin_group,
        }
        # Called after the journal has applied a request.
        self._after: dict[type[Request[Any]], Callable[[Member, Any, Any], None]] = {
            Ready: self._after_ready,
            NextSpan: self._after_next_span,
            SpanRead: self._after_span_read,
            TrainedBatches: self._after_trained,
        }

    def take_over(self) -> None:
        """Continue the recoveries and departures of a dead coordinator, once training has begun."""
        state, server = self._state, self._server
        if not state.lifecycle.is_training:
            # The job stops. Readers still return the batches of dead trainers.
            server.recover_dead()
            return
        untouched = state.lone_start.untouched()
        for node in state.members.joining():
            if node not in untouched:
                server.mark_dead(node.info.token, "joined when the coordinator died")
        for node in state.members.alive():
            if node.leaves:
                server.mark_dead(node.info.token, "was leaving when the coordinator died")
        server.recover_dead()
        for shard in state.members.alive("embedding"):
            if shard.info.index in state.ledger.owed.missing_shards:
                self._shards.replaced(shard)
        server.spawn(offer_spans(server))
        self.start.admit_waiting()

    async def handle(self, token: str, request: Request[Any], number: int) -> Reply:
        """Return the reply to one request.

        `number` is the request's number; its sender may repeat it to a coordinator that takes over. Raises
        ShadowSyncError for an impossible request.
        """
        if type(request) in self._of_anyone:
            return await self._of_anyone[type(request)](token, request, number)
        verb = CONTROL_VERBS.name_of(request)
        if type(request) not in self._of_members and type(request) not in REQUESTS:
            raise ProtocolError(f"a coordinator does not answer {verb!r}")
        member = self._require(token, request)
        if member.info.role not in CONTROL_VERBS.verbs[verb].requesters:
            raise ProtocolError(f"a {member.info.role} may not send {verb!r}")
        try:
            if type(request) not in REQUESTS:
                return await self._of_members[type(request)](member, request)
            reply, written = self._server.journal.apply(token, number, request)
            if type(request) in self._after:
                self._after[type(request)](member, request, reply)
            await written
            await self._server.notify()
            return reply
        except ValueError as error:
            refusal = ProtocolError(f"{verb}: {error}")
            # Such a request ends its sender, not the job: others do its work.
            refusal.exit_code = ExitCode.STOPPED_BY_DEATH
            raise refusal from error

    def _require(self, token: str, request: Request[Any]) -> Member:
        """Return the living member; count what others would change."""
        try:
            return self._state.members.require(token)
        except ClusterError as error:
            if type(request) in REQUESTS:
                self._server.refuse(token, f"{CONTROL_VERBS.name_of(request)}: {error.what}")
            raise

    def died(self, node: Member) -> None:
        """Begin to recover from the death of a node."""
        if node.info.role in self._recoveries and node.begun and self._state.lifecycle.is_training:
            self._recoveries[node.info.role](node)

    async def _hello(self, token: str, hello: Hello, number: int) -> Reply:
        self._server.require_own_token(token, hello)
        self._require_unended()
        # Check first: a node of another job must not end a member.
        self._state.members.require_job(hello.role, hello.digest)
        if hello.former and self._state.job.network.slow is not None:
            raise ClusterError("the emulated network has no link for another node")
        self._end_predecessor(token, hello.endpoint)
        if not hello.former:
            await self._await_place(token, hello.role)
        self._require_unended()
        reply, written = self._server.journal.apply(token, number, hello)
        member = self._state.members.require(token)
        info = member.info
        if not member.begun and not member.joined_at:
            self._server.greet(member)
        if info.role in self._successors:
            self._successors[info.role].arrived(token)
        log.info("%s joined (%s)", info.name, info.endpoint or "connects only")
        await written
        return reply

    def _require_unended(self) -> None:
        if self._state.lifecycle.over:
            # The coordinator would never tell it to end.
            raise ClusterError("the job has ended", remedy="start the job again")

    async def _await_place(self, token: str, role: str) -> None:
        """Wait for a place while a dead node of the role may be undeclared.

        An engine that starts a killed node again does so before its silence is noticed. Once all that hold a
        place have been heard of again, there is none.
        """
        state, sessions = self._state, self._server.sessions
        arrived = asyncio.get_running_loop().time()

        def may_free_itself() -> bool:
            members = state.members
            holders = [*members.alive(role), *members.joining(role)]
            seen = [sessions.seen_at(holder.info.token) for holder in holders]
            return any(seen_at is not None and seen_at <= arrived for seen_at in seen)

        def is_decided() -> bool:
            members = state.members
            has_place = state.can_join(role) if members.started else members.has_free_index(role)
            if has_place or state.lifecycle.over or members.find(token) is not None:
                return True
            return state.lifecycle.phase is not JobPhase.STARTING and not may_free_itself()

        # Heartbeats wake no wait.
        while not await self._server.wait_for(is_decided, HEARD_SECONDS) and state.lifecycle.stop is None:
            self._server.give_way(role)

    def _end_predecessor(self, token: str, endpoint: str) -> None:
        """Declare dead the node that had this address before."""
        members = self._state.members
        for member in [*members.alive(), *members.joining()] if endpoint else ():
            if member.info.endpoint == endpoint and member.info.token != token:
                self._server.mark_dead(member.info.token, "was replaced: another node listens at its address")

    async def _status(self, token: str, request: GetStatus) -> StatusReply:
        if request.subscribe_end:
            self._server.sessions.watches(token)
        is_supervisor = bool(token) and token == self._server.settings.supervisor
        dead = tuple(self._state.members.dead_tokens()) if is_supervisor else ()
        return StatusReply(status_body(self._state, request), dead)

    async def _end_input(self) -> Done:
        state = self._state
        if not state.job.data.follow:
            raise ClusterError(
                "the job reads a fixed input, and ends by itself",
                remedy="Ctrl-C in its terminal interrupts it; shadowsync resume continues it",
            )
        if state.ledger.queue.follows:
            state.ledger.queue.end()
            await self._server.journal.decided(InputEnded())
            self._server.event("coordinator", "the input was ended as requested")
            await self._server.notify()
        return Done()

    async def _failed(self, member: Member, request: NodeFailed) -> Done:
        if member.info.role == "reader":
            self._state.training.reader_failed(request.bad_rows)
        if request.exit_code is ExitCode.OK:
            raise ProtocolError("a failure needs an exit code other than 0")
        # A node that stopped because a part of it died, or that failed to join, is only dead itself; other
        # failures end the job.
        if request.exit_code is not ExitCode.STOPPED_BY_DEATH and member.begun:
            text = f"{member.info.name}: {request.what}"
            self._server.request_stop(Stop("failed", text, request.exit_code))
        self._server.fail_soon(member, request.what)
        return Done()

    async def _interrupt(self, member: Member, request: Interrupt) -> Done:  # noqa: ARG002
        text = f"{member.info.name} was interrupted"
        self._server.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))
        return Done()

    async def _leave(self, member: Member, request: Leave) -> Done:  # noqa: ARG002
        self._departures.request(member)
        return Done()

    def _after_ready(self, member: Member, request: Ready, reply: Reply) -> None:  # noqa: ARG002
        if not member.begun:
            self._admissions[member.info.role].admit(member)

    def _after_next_span(self, member: Member, request: NextSpan, reply: NextSpanReply) -> None:  # noqa: ARG002
        if reply.grant is None:
            self._idle_readers.add(member.info.token)

    def _after_span_read(self, member: Member, request: SpanRead, reply: Reply) -> None:  # noqa: ARG002
        totals, data = self._state.ledger.totals, self._state.job.data
        # Also examples that the resumed run had trained, since all malformed rows of the spans are counted.
        examples = totals.parsed_examples + totals.restored_of_read_spans
        rows = examples + totals.bad_rows + totals.dropped_negatives
        whole = self._state.ledger.all_read
        text = too_many_bad_rows(totals.bad_rows, rows, data, request.epoch + 1, whole=whole)
        if text:
            remedy = "correct the rows or the job file's [data], or allow more"
            said = f"{text}; the first is {request.first_bad_row}; {remedy}"
            self._server.request_stop(Stop("failed", said, ExitCode.DATA))
        self._wake_readers()

    def _after_trained(self, member: Member, request: TrainedBatches, reply: Reply) -> None:  # noqa: ARG002
        bad = self._state.training.bad_batches
        if request.left_out and bad.count == len(request.left_out):
            self._server.event(member.info.name, bad.event())
        if request.left_out and (stop := bad.too_many()) is not None:
            self._server.request_stop(stop)
        if UNKNOWN_DELIVERY in request.deliveries:
            self._server.expel(member, "an acknowledgement that names no delivery")
        for wrong in self._state.ledger.take_wrong_deliveries():
            trainers = self._state.members.everyone("trainer")
            accuser = next(trainer for trainer in trainers if trainer.info.name == wrong.trainer)
            self._accuse(accuser, wrong.reader, wrong.why)
        self._wake_readers()

    def _wake_readers(self) -> None:
        """Tell idle readers that owed batches can be handed out now."""
        if self._idle_readers and self._state.ledger.has_replays:
            self._idle_readers.clear()
            self._server.spawn(offer_spans(self._server))

    async def _report_event(self, member: Member, request: ReportEvent) -> Done:
        self._server.event(member.info.name, request.what)
        return Done()

    async def _report_reader(self, member: Member, request: ReportReader) -> Done:
        self._accuse(member, request.reader, request.why)
        return Done()

    def _accuse(self, member: Member, name: str, why: str) -> None:
        """Declare a reader dead on one trainer's word, and the trainer that reports a second one.

        So a trainer that lies costs one reader and itself.
        """
        readers = self._state.members.everyone("reader")
        reader = next((other for other in readers if other.info.name == name), None)
        before = self._reported.setdefault(member.info.token, name)
        if reader is None:
            self._server.expel(member, f"a report of {name!r}, which is no reader")
        elif before != name:
            self._server.expel(member, f"reports of two readers, {before} and {name}")
        elif reader.alive:
            self._server.expel(reader, f"a delivery to {member.info.name}: {why}")
