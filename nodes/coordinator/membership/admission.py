"""Admission of nodes to a running job."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

from ....pipeline.data.span import to_runs
from ....pipeline.errors import ClusterError
from ....pipeline.text.format import counted
from ....pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    MemberInfo,
    ReaderJoined,
    SyncReplaced,
    TakeCenter,
)
from ...control.introduction import AdmissionFailed, announce, copy_replica, tell_losses
from ...control.membership import Member, require_same_plan
from ...control.server import REQUEST_SECONDS
from ..server import CoordinatorServer
from ..state.changes import GroupFormed, NodeBegan


class Admission(ABC):
    """Admission of nodes of one role. Runs on the coordinator's loop.

    Args:
        admitting: lock held while a node is admitted, so that the next one is told of it.

    Attributes:
        begins_after_training: whether a node begins even if training ended during its introduction.
    """

    begins_after_training: ClassVar[bool] = False

    def __init__(self, server: CoordinatorServer, admitting: asyncio.Lock) -> None:
        self._server = server
        self._state = server.state
        self._admitting = admitting

    def admit(self, node: Member) -> None:
        """Admit a ready node; declare it dead if that fails.

        If training has ended, the node waits for the end of the job.
        """
        self._server.spawn(self._admit(node))

    @abstractmethod
    async def _introduce(self, node: Member, connect: ConnectPeers) -> str:
        """Connect the node and the others; return a text for the event.

        `connect` is the order that names the others. Raises AdmissionFailed.
        """

    async def _admit(self, node: Member) -> None:
        try:
            while not await self._take_turn(node):
                pass
        except AdmissionFailed as error:
            self._server.mark_dead(node.info.token, str(error))

    async def _take_turn(self, node: Member) -> bool:
        """Admit a node once nothing keeps it; return whether it was its turn."""
        await self._await_others(node)
        async with self._admitting:
            # A node that was admitted meanwhile may be a new reason to wait.
            if self._has_to_wait(node):
                return False
            await self._take_in(node)
            return True

    def _has_to_wait(self, node: Member) -> bool:  # noqa: ARG002
        """Return whether something keeps a node that will end by itself; a hook."""
        return False

    async def _await_others(self, node: Member) -> None:  # noqa: B027
        """Wait for preconditions; most roles have none."""

    async def _take_in(self, node: Member) -> None:
        server, state = self._server, self._state
        if not node.alive or not state.lifecycle.is_training:
            return
        infos = tuple(self._infos(node))
        connect = ConnectPeers(infos, state.group.view, late=True)
        said = await self._introduce(node, connect)
        if not node.alive or not (state.lifecycle.is_training or self.begins_after_training):
            return
        await self._record_begin(node)
        # Before it begins, so that it accepts nothing from dead nodes.
        await tell_losses(server, node, infos)
        await self._begin(node)
        server.event(node.info.name, f"joined the running job{said}")
        self._joined(node)

    async def _record_begin(self, node: Member) -> None:
        node.begin()
        # Recorded before it acts: a coordinator that takes over must know that it takes part.
        await self._server.journal.decided(NodeBegan(node.info.token))

    async def _begin(self, node: Member) -> None:
        state = self._state
        begin = Begin(state.ledger.examples_so_far, tuple(to_runs(state.training.input.progressive)))
        if await self._server.call(node, begin, REQUEST_SECONDS) is None:
            raise AdmissionFailed("did not begin")

    def _joined(self, node: Member) -> None:  # noqa: B027
        """Run after the node becomes active; a hook."""

    async def _connect(self, node: Member, connect: ConnectPeers) -> None:
        if await self._server.call(node, connect, REQUEST_SECONDS) is None:
            raise AdmissionFailed("did not connect to the others")

    def _infos(self, *nodes: Member) -> Iterator[MemberInfo]:
        """Return the active nodes and these, with slice numbers for sync nodes."""
        for member in [*self._state.members.alive(), *nodes]:
            info = member.info
            number = self._state.vacancies.slices.get(info.token)
            yield info if number is None else replace(info, index=number)


class ReaderAdmission(Admission):
    """Admission of readers: trainers connect to them."""

    async def _introduce(self, node: Member, connect: ConnectPeers) -> str:
        # The reader first: it accepts nothing from a trainer that it does not know.
        await self._connect(node, connect)
        trainers = self._state.members.alive("trainer")
        await self._server.call_all(trainers, ReaderJoined(node.info), REQUEST_SECONDS)
        return ""


class SyncAdmission(Admission):
    """Admission of a replacement sync node, or of one that comes back."""

    # Trainers already exchange with it.
    begins_after_training = True

    async def _introduce(self, node: Member, connect: ConnectPeers) -> str:
        await self._connect(node, connect)
        replaced = SyncReplaced(self._state.vacancies.slices[node.info.token], node.info)
        # Do not wait for a trainer that cannot send its slice in time.
        patience = REQUEST_SECONDS + self._state.job.sync.timeout_seconds
        trainers = self._state.members.alive("trainer")
        count = len(await self._server.call_all(trainers, replaced, patience))
        if node.former:
            return ": it was declared dead and lives, and has its slice of the center"
        return f"; its slice of the center is the mean of {counted(count, 'replica')}"


class ShardAdmission(Admission):
    """Admission of a replacement embedding node."""

    def __init__(
        self, server: CoordinatorServer, admitting: asyncio.Lock, replaced: Callable[[Member], None]
    ) -> None:
        super().__init__(server, admitting)
        self._replaced = replaced

    async def _introduce(self, node: Member, connect: ConnectPeers) -> str:
        try:
            require_same_plan(self._state.placement.plan, [node])
        except ClusterError as error:
            raise AdmissionFailed(str(error)) from error
        await self._connect(node, connect)
        restored = node.facts.restored_batches
        if node.former:
            has = counted(restored, "batch", "batches")
            return f": it was declared dead and lives, and has its rows, with {has} applied to them"
        if not restored:
            return " with newly initialized rows"
        return f" with the rows of a checkpoint after {counted(restored, 'batch', 'batches')}"

    def _joined(self, node: Member) -> None:
        # Only now: what trainers have pushed is confirmed first, and that may need another node to join.
        self._replaced(node)


class TrainerAdmission(Admission):
    """Admission of trainers, with another trainer's weights and optimizer.

    If no other one lives, with the weights of the center. While one trainer goes through the start of the
    job, the others wait.
    """

    def _has_to_wait(self, node: Member) -> bool:
        state = self._state
        return node.alive and state.lifecycle.is_training and state.lone_start.holds

    async def _await_others(self, node: Member) -> None:
        """Wait for the end of the start, then for replacements of dead nodes."""
        await self._server.wait_for(lambda: not self._has_to_wait(node))
        await self._await_whole(lambda: not node.alive)

    async def _await_whole(self, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until no place of a dead node is free."""
        state = self._state

        def is_whole() -> bool:
            lost = state.vacancies.empty_slices() or state.vacancies.empty_shards()
            return not lost or unless() or not state.lifecycle.is_training

        await self._server.wait_for(is_whole, state.job.run.rejoin_seconds)

    async def _introduce(self, node: Member, connect: ConnectPeers) -> str:
        self._require_whole()
        await announce(self._server, node, self._acquaintances(node))
        await self._connect(node, connect)
        parts = (("", node.facts.dense_elements), *node.facts.optimizer_state)
        for source in self._state.members.alive("trainer"):
            fits = source.facts.weights_digest == node.facts.weights_digest
            if fits and not await copy_replica(self._server, source, [node], parts):
                return f", with the weights and the optimizer of {source.info.name}"
        if self._state.members.alive("trainer"):
            raise AdmissionFailed("got the weights from no other trainer")
        return await self._take_center(node)

    def _require_whole(self) -> None:
        """Raise AdmissionFailed while a place of a dead node is free."""
        if self._state.vacancies.empty_slices():
            raise AdmissionFailed("joined while a slice of the center was missing")
        if self._state.vacancies.empty_shards():
            raise AdmissionFailed("joined while a shard of the tables was missing")

    def _acquaintances(self, node: Member) -> list[Member]:
        """Return the active nodes that are to know a trainer."""
        members, meets_peers = self._state.members.alive(), node.facts.needs_peers
        return [member for member in members if meets_peers or member.info.role != "trainer"]

    async def _take_center(self, node: Member) -> str:
        """Have the node take the center's weights; return a text for the event."""
        before = [
            trainer.facts.weights_digest
            for trainer in self._state.members.everyone("trainer")
            if trainer.begun
        ]
        if set(before) != {node.facts.weights_digest}:
            raise AdmissionFailed("has another model than the dead trainers")
        if not self._state.center_has_model():
            raise AdmissionFailed("found no other trainer alive, and no whole center")
        taken = await self._server.call(node, TakeCenter(), REQUEST_SECONDS)
        if taken is None:
            raise AdmissionFailed("could not take the weights of the center")
        optimizer = f" and {taken.optimizer}" if taken.optimizer else ""
        return f", with the weights of the center{optimizer}"

    def _joined(self, node: Member) -> None:
        # From here on the others wait for it in their rounds.
        if node.facts.needs_peers and (view := self._state.group.admit(node.info.index)) is not None:
            self._server.journal.decided(GroupFormed(view))
            self._server.broadcast_group(view)
