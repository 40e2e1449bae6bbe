"""The coordinator's server: its socket, sessions with nodes and watchers, heartbeats, deaths.

Imports no torch. Training continues without it, up to the readers' retention.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.text.format import duration
from ...pipeline.wire.control.base import Reply, Request
from ...pipeline.wire.control.orders import (
    GroupView,
)
from ...pipeline.wire.field_checks import Counts
from ...pipeline.wire.messages import HeartbeatReply
from ...pipeline.wire.rpc.channel import RemoteError
from ...pipeline.wire.rpc.retransmission import REISSUE
from ...pipeline.wire.tasks import race
from ..control.late_trainers import LateTrainers
from ..control.membership import LEFT, SILENT, Member
from ..control.server import REQUEST_SECONDS, ControlServer
from ..control.sessions import REQUESTS_OF_ONE
from ..runtime.health import Health, coordinator_health
from ..runtime.process import ProcessHooks
from ..runtime.role import GONE_TIMEOUTS
from ..runtime.settings import NodeSettings
from .audit import lost_batches
from .checkpoint_calls import CheckpointCalls
from .journal import JobJournal
from .ledger.store import LedgerStore, LedgerWriter
from .merge_claims import MergeClaims
from .state.changes import GroupFormed, NodeDied, NodeHasLeft, StopRequested
from .state.job import JobState
from .state.outcome import FOLDER_REMOVED, Stop
from .state.phases import JobPhase

log = logging.getLogger(__name__)

T = TypeVar("T")

# Limits for a node's last counts, and for these or any reply after an interrupt.
DRAIN_SECONDS = 8.0
HURRY_SECONDS = 2.5
FOLDER_SECONDS = 2.0

HandleMemberRequest = Callable[[str, Request[Any], int], Awaitable[Reply]]


class CoordinatorServer(ControlServer):
    """The socket of a job's coordinator, and its sessions with nodes and watchers.

    The server applies what happens to the job's state; the controller decides the order of the phases. All of
    it runs on one asyncio loop.
    """

    def __init__(
        self,
        settings: NodeSettings,
        state: JobState,
        store: LedgerWriter,
        process: ProcessHooks | None = None,
    ) -> None:
        super().__init__(settings, process)
        self.state: JobState = state
        self.store = store
        self.checkpoint_calls = CheckpointCalls(state.checkpoints)
        self.journal = JobJournal(state, store, self._failed)
        self._claims = MergeClaims(self, state)
        self._late = LateTrainers()
        self._handle: HandleMemberRequest | None = None
        self._died: Callable[[Member], None] | None = None
        self._took_over_at = 0.0
        self._interrupted = asyncio.Event()

    def start(
        self,
        handle: HandleMemberRequest,
        died: Callable[[Member], None],
        replies: Mapping[str, Mapping[int, Reply]] | None = None,
    ) -> None:
        """Begin to receive, to watch heartbeats, and to handle signals.

        `handle` answers requests; `died` is called with each dead node. `replies` are those of a dead
        coordinator, by token and number; its living nodes have GONE_TIMEOUTS node timeouts to send a message.
        """
        self._handle, self._died = handle, died
        if self.state.lifecycle.stop is not None:
            # The dead coordinator was about to stop the job.
            self._stopped.set()
        loop = asyncio.get_running_loop()
        self.journal.take_over(replies or {})
        self._took_over_at = loop.time()
        for token, before in (replies or {}).items():
            self.sessions.begin(token.encode(), self._new_session(token.encode(), token, before))
            self.sessions.record_seen(token.encode(), self._took_over_at)
        interrupted = Stop("interrupted", "interrupted", ExitCode.INTERRUPTED)
        self.serve(lambda: self.request_stop(interrupted))
        self.spawn(self._watch_folder())
        if self.settings.supervised:
            self._process.on_orphaned(loop, lambda: self.request_stop(interrupted))

    def health(self) -> Health:
        state = self.state
        waiting = state.lone_start.waiting()
        present = {
            role: len(state.members.alive(role)) + (len(waiting) if role == "trainer" else 0)
            for role in state.job.expected
        }
        examples = state.training.metrics.examples
        return coordinator_health(state.lifecycle.phase.value, examples, state.job.expected, present)

    @property
    def outcome(self) -> str:
        return self.state.lifecycle.outcome

    @property
    def examples_so_far(self) -> int:
        return self.state.ledger.examples_so_far

    async def answer(self, token: str, request: Request[Any], number: int) -> Reply:
        assert self._handle is not None
        member = self.state.members.find(token)
        if member is not None and member.was_silent:
            # Before the refusal, so that the node knows that it is dead and does not take this for a failure.
            self._send(token.encode(), HeartbeatReply(self.examples_so_far, member.lost_because))
        return await self._handle(token, request, number)

    @property
    def first_number(self) -> int:
        """See `ControlServer`: above those of the coordinators before."""
        return self.state.lifecycle.takeovers * REQUESTS_OF_ONE + 1

    def request_stop(self, stop: Stop) -> None:
        """Stop the job; the first reason counts."""
        if self.state.lifecycle.request_stop(stop):
            log.info("stopping: %s", stop.text)
            if stop.kind == "interrupted":
                self.checkpoint_calls.hurry()
                self._interrupted.set()
            self.journal.decided(StopRequested(stop))
            self._stopped.set()

    async def unless_interrupted(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the coroutine's result; None if an interrupt of the job cancels it."""
        return await race(work, self._interrupted.wait())

    def event(self, node: str, what: str, level: int = logging.WARNING) -> float:
        """Record an event in log, status and ledger; return when."""
        seconds = super().event(node, what, level)
        self.store.event(seconds, node, what)
        return seconds

    async def call_until_answered(
        self, member: Member, request: Request[Any], unable: str, still_needed: Callable[[], bool]
    ) -> None:
        """Repeat a request until a node replies or dies, while it is `still_needed`.

        A node without a session gets it when it is back. One that refuses is declared dead: it was `unable`.
        """
        while member.alive and still_needed():
            try:
                await self.call_or_raise(member, request, REQUEST_SECONDS)
                return
            except ClusterError as error:
                log.warning("%s", error)
                if isinstance(error.__cause__, RemoteError):
                    self.mark_dead(member.info.token, unable)
            await asyncio.sleep(REISSUE.interval_seconds)

    def mark_dead(self, token: str, why: str) -> None:
        """Mark a node as dead: end its session and notify the others.

        Readers then return its batches.
        """
        death = self.state.mark_dead(token, why)
        if self.state.lifecycle.over or death is not None:
            self.sessions.end(token.encode(), why)
        if death is None:
            return
        info = death.member.info
        written = self.journal.decided(NodeDied(token, why, dict(death.member.metrics)))
        self.event(info.name, why)
        if death.stop is not None:
            self.request_stop(death.stop)
        self.tell_loss(death.member, death.group, written)

    async def dismiss(self, member: Member, counts: Counts) -> None:
        """Dismiss a leaving node, with its last counts."""
        death = self.state.leave(member, counts)
        written = self.journal.decided(NodeHasLeft(member.info.token, counts))
        self.event(member.info.name, "left the job as requested")
        self.tell_loss(member, death.group, written)
        await self.finish(member, REQUEST_SECONDS)
        self.sessions.end(member.info.token.encode(), LEFT)

    def recover_dead(self) -> None:
        """Repeat the notices of all deaths, and begin the recoveries that are unfinished."""
        members = self.state.members
        dead = members.gone()
        for other, member in itertools.product(members.alive(), dead):
            self.spawn(self._notice(other, member))
        self.broadcast_group(self.state.group.view)
        for member in dead:
            if self._died is not None and self.state.has_to_recover(member):
                self._died(member)

    def on_loss(self, gone: Member) -> None:
        if self._died is not None:
            self._died(gone)

    def take_counts(self, member: Member, counts: Counts) -> None:
        if member.info.role == "sync":
            self._claims.heard(counts)
        if member.info.role in ("sync", "trainer") and self.state.lifecycle.phase is JobPhase.TRAINING:
            living = [trainer.info.name for trainer in self.state.members.alive("trainer")]
            late = self._late.heard(member.info.name, counts, living, self.state.seconds())
            for name, what in late.items():
                self.event(name, what)
        self.state.heartbeat(member, counts)

    def group_formed(self, view: GroupView) -> None:
        self.journal.decided(GroupFormed(view))

    def group_with(self, member: Member) -> GroupView | None:
        comes_back = self.state.lifecycle.phase is JobPhase.TRAINING and not member.leaves
        view = self.state.group.admit(member.info.index) if comes_back else None
        if view is not None:
            self.group_formed(view)
            self.event(member.info.name, "rejoined the synchronization")
        return view or self.state.group.view

    def patience_seconds(self, member: Member, seen_at: float) -> float:
        if not member.ready:
            # Much work may keep it from sending.
            return math.inf
        # One that was not heard since the takeover may still be connecting.
        waits = GONE_TIMEOUTS if seen_at == self._took_over_at else 1
        return waits * self.state.job.run.node_timeout_seconds

    async def run_periodic_checks(self, now: float) -> None:
        """See `ControlServer`: nodes that do not get ready, and batches that are lost."""
        start = self.state.job.run.start_timeout_seconds
        for member in self.state.members.joining() if self.state.lifecycle.is_training else ():
            if not member.ready and now - member.joined_at > start:
                self.mark_dead(member.info.token, f"was not ready within {duration(start)}")
        self._require_no_lost_batches()

    async def _watch_folder(self) -> None:
        """Have an event say once that somebody removed the run's folder."""
        while True:
            await asyncio.sleep(FOLDER_SECONDS)
            if not await self.store.run(LedgerStore.is_in_place):
                break
        self.state.folder_removed()
        self.event("coordinator", f"{self.state.folder}: {FOLDER_REMOVED}")

    def give_way(self, role: str) -> None:
        """Declare dead the silent nodes of a role that still prepare.

        Call it while another node waits for a place. Unless one waits, a node may be silent while it
        prepares: much work may keep it from sending.
        """
        limit = self.state.job.run.node_timeout_seconds
        for member in self.state.members.preparing(role):
            if self.silence_of(member) > limit:
                self.mark_dead(member.info.token, f"{SILENT} {duration(limit)}, and not ready")

    def silence_of(self, member: Member) -> float:
        """Return the seconds since a node's last message; 0 before the first."""
        now = asyncio.get_running_loop().time()
        return now - (self.sessions.seen_at(member.info.token) or now)

    def _require_no_lost_batches(self) -> None:
        state = self.state
        if state.lifecycle.phase is not JobPhase.TRAINING:
            return
        if lost := lost_batches(state.ledger, state.members.alive("reader")):
            where = "see the ledger in report.md"
            text = f"batches delivered, but neither trained nor in flight: {lost}; {where}"
            self.request_stop(Stop("failed", text, ExitCode.LEDGER))

    def _failed(self, error: BaseException) -> None:
        if self.state.lifecycle.stop is None:
            log.error("the coordinator failed", exc_info=error)
        text, code = f"the coordinator failed: {type(error).__name__}: {error}", ExitCode.INTERNAL
        self.request_stop(Stop("failed", text, getattr(error, "exit_code", code)))
