"""Departure of nodes from a running job."""

from __future__ import annotations

import asyncio

from ....pipeline.errors import ExitCode
from ....pipeline.wire.control.orders import Drain, Finalize
from ...control.membership import Member
from ...control.server import REQUEST_SECONDS
from ..server import DRAIN_SECONDS, CoordinatorServer
from ..state.changes import GroupFormed, NodeLeaves
from ..state.outcome import Stop
from ..state.phases import JobPhase


class Departures:
    """Let nodes leave, one at a time. Runs on the coordinator's loop.

    Args:
        admitting: lock held while a node is admitted, so that no joining node copies from the leaving one.
    """

    def __init__(self, server: CoordinatorServer, admitting: asyncio.Lock) -> None:
        self._server = server
        self._state = server.state
        self._admitting = admitting

    def request(self, member: Member) -> None:
        """Let a node leave, or interrupt the job if it cannot continue."""
        if member.leaves:
            return
        if self._is_starting and member.info.role in ("reader", "trainer"):
            self._server.spawn(self._leave_once_started(member))
        elif self._state.lifecycle.is_training and member in self._state.lone_start.waiting():
            self._server.spawn(self._leave_waiting(member))
        elif self._state.lifecycle.is_training and not member.begun:
            self._server.mark_dead(member.info.token, "was stopped before it became active")
        elif self._state.can_leave(member):
            self._prepare(member)
            self._server.spawn(self._leave(member))
        else:
            self._interrupt(member)

    async def release(self, member: Member) -> bool:
        """Let a node leave if the job can spare it; return whether it left."""
        async with self._admitting:
            if member.leaves or not member.alive or not self._state.can_leave(member):
                return False
            self._prepare(member)
            await self._dismiss(member)
            return member.left

    @property
    def _is_starting(self) -> bool:
        lifecycle = self._state.lifecycle
        return lifecycle.phase is JobPhase.STARTING and lifecycle.stop is None

    async def _leave_once_started(self, member: Member) -> None:
        """Let a node leave that was told to as the job began: others may train already, and can go on."""
        await self._server.wait_for(lambda: not (member.alive and self._is_starting))
        if member.alive:
            self.request(member)

    def _prepare(self, member: Member) -> None:
        member.prepare_to_leave()
        self._server.journal.decided(NodeLeaves(member.info.token))

    def _interrupt(self, member: Member) -> None:
        text = f"{member.info.name} was interrupted, and the job cannot continue without it"
        self._server.request_stop(Stop("interrupted", text, ExitCode.INTERRUPTED))

    async def _leave_waiting(self, member: Member) -> None:
        """Let a trainer leave that waits for the end of the start, and has trained nothing."""
        async with self._admitting:
            waits = member.alive and not member.begun and self._state.lifecycle.is_training
            if waits:
                await self._server.dismiss(member, {"in_flight": 0})
        if not waits and member.alive:
            # It has just joined.
            self.request(member)

    async def _leave(self, member: Member) -> None:
        if member.info.role == "trainer":
            await self._await_another(member)
        async with self._admitting:
            # Meanwhile it may have died, or the job ended.
            if not member.alive or not self._state.lifecycle.is_training:
                return
            if not self._state.can_leave(member):
                self._interrupt(member)
            else:
                await self._dismiss(member)

    async def _await_another(self, trainer: Member) -> None:
        """Wait until another trainer takes part: one that waits for the end of the start takes over first."""
        state = self._state

        def is_decided() -> bool:
            others = len(state.members.alive("trainer")) > 1 or not state.lone_start.waiting()
            return others or not (trainer.alive and state.lifecycle.is_training)

        await self._server.wait_for(is_decided)

    async def _dismiss(self, member: Member) -> None:
        if member.info.role == "reader":
            # Trainers keep the batches that it has sent; the rest is read again.
            await self._server.dismiss(member, {})
        else:
            await self._leave_as_trainer(member)

    async def _leave_as_trainer(self, trainer: Member) -> None:
        """Drain a leaving trainer and synchronize it once more."""
        server, run, sync = self._server, self._state.job.run, self._state.job.sync
        group = self._state.group
        if trainer.facts.needs_peers and (view := group.lose(trainer.info.index)) is not None:
            # The others synchronize without it.
            server.journal.decided(GroupFormed(view))
            server.broadcast_group(view)
        patience = run.node_timeout_seconds + sync.timeout_seconds + DRAIN_SECONDS
        drained = await server.call(trainer, Drain({}, leaving=True), patience)
        if not self._state.lifecycle.is_training:
            # The job ended first, and drains this trainer like the others.
            return
        # If a shard is dead, this trainer may have pushed only part of a batch.
        if drained is None or not trainer.alive or not self._state.ledger.owed.has_all_shards:
            server.mark_dead(trainer.info.token, "could not leave in time")
            return
        counts = drained.counts
        if trainer.facts.needs_center and not trainer.facts.needs_peers:
            patience = 3 * sync.timeout_seconds + REQUEST_SECONDS
            last = await server.call(trainer, Finalize(closing_round=True), patience)
            counts |= last.counts if last is not None else {}
        # Readers give its untrained batches to others, so none stays in flight.
        if trainer.alive and self._state.lifecycle.is_training:
            await server.dismiss(trainer, counts | {"in_flight": 0})
