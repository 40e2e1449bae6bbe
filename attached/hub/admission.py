"""Admission of sync nodes and loops to a hub."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ...nodes.control.divergence import CHUNK_ELEMENTS
from ...nodes.control.introduction import AdmissionFailed, announce, copy_replica, tell_losses
from ...nodes.control.membership import Member
from ...nodes.control.server import REQUEST_SECONDS, ControlServer
from ...pipeline.text.format import duration
from ...pipeline.types import Float32Array
from ...pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    SetGroup,
    TrainerJoined,
    WriteReplica,
)
from .members import CLIENT, LOOP, SYNC
from .state import HubState


class HubAdmission:
    """Admission of members, one after the other; runs on the hub's loop.

    The first loop gives the center its first value. A later one takes the center's weights, or another
    loop's where there is no center.

    Args:
        others: what admits a member of another role than loop and sync node.
    """

    def __init__(
        self,
        server: ControlServer,
        state: HubState,
        others: Mapping[str, Callable[[Member], Awaitable[None]]],
    ) -> None:
        self._server = server
        self._state = state
        self._admitters = {LOOP: self._admit_loop, SYNC: self._admit_sync, **others}
        self._admitting = asyncio.Lock()
        # Whether the sync nodes wait for the replicas whose mean the center is to be.
        self._collects_seeds = False

    async def admit(self, member: Member) -> None:
        """Admit a ready member; declare it dead if that fails."""
        state = self._state
        await self._server.notify()
        try:
            if member.info.role == LOOP:
                await self._server.wait_for(
                    lambda: (state.has_sync_nodes and not state.awaits_return) or not member.alive
                )
            async with self._admitting:
                # Those that came back together are admitted at once.
                if member.alive and not member.begun:
                    await self._admitters[member.info.role](member)
        except AdmissionFailed as error:
            self._server.mark_dead(member.info.token, str(error))
        await self._server.notify()

    async def admit_returned(self, seconds: float) -> None:
        """Admit the loops of a dead hub together, after `seconds` at most.

        The center is made again from the mean of their replicas. Who has not come back is dead.
        """
        state = self._state

        def ready() -> list[Member]:
            return [member for member in state.members.returned() if member.ready]

        def all_are_ready() -> bool:
            back = state.members.returned()
            return state.has_sync_nodes and not state.members.away() and 0 < len(back) == len(ready())

        await self._server.wait_for(all_are_ready, seconds)
        for member in state.members.away():
            self._server.mark_dead(member.info.token, f"did not come back within {duration(seconds)}")
        async with self._admitting:
            loops = [loop for loop in ready() if loop.facts.needs_center]
            if loops and state.has_sync_nodes:
                await self._admit_together(loops)
            state.end_return()
        await self._server.notify()

    async def await_modules(self, seconds: float) -> None:
        """Wait for a dead hub's modules; those that do not come are dead.

        They need not wait for each other.
        """
        members = self._state.members
        await self._server.wait_for(lambda: not members.away(CLIENT), seconds)
        for member in members.away(CLIENT):
            self._server.mark_dead(member.info.token, f"did not come back within {duration(seconds)}")

    async def _admit_together(self, loops: list[Member]) -> None:
        """Admit loops that all keep their weights, whose mean is the center."""
        state = self._state
        if loops[0].facts.needs_peers:
            state.group.form([loop.info.index for loop in loops])
        for loop in loops:
            await self._server.call_all(state.members.alive(SYNC), TrainerJoined(loop.info), REQUEST_SECONDS)
        infos = tuple(other.info for other in (*state.members.alive(SYNC), *loops))
        connect = ConnectPeers(infos, state.group.view)
        met = await self._server.call_all(loops, connect, REQUEST_SECONDS)
        for loop in loops:
            if loop.info.name not in met:
                self._server.mark_dead(loop.info.token, "could not connect to the others")
        present = [loop for loop in loops if loop.alive]
        if not present:
            return
        await self._make_center()
        begun = await self._server.call_all(present, Begin(), REQUEST_SECONDS)
        for loop in present:
            if loop.info.name in begun:
                state.begin(loop)
                self._server.event(loop.info.name, "came back", logging.INFO)
            else:
                self._server.mark_dead(loop.info.token, "did not begin")

    async def _make_center(self) -> None:
        """Let the center begin, from the mean of the loops' replicas."""
        if self._collects_seeds:
            self._collects_seeds = False
            await self._server.call_all(self._state.members.alive(SYNC), Begin(), REQUEST_SECONDS)
        self._state.seeded = True

    async def _admit_sync(self, member: Member) -> None:
        self._collects_seeds = self._state.awaits_return
        connect = ConnectPeers((member.info,), self._state.group.view, late=self._collects_seeds)
        await self._order(member, connect, "did not get ready")
        self._state.begin(member)

    async def _admit_loop(self, member: Member) -> None:
        state, facts = self._state, member.facts
        first = state.is_first(member)
        others = [*state.members.alive(SYNC), *(state.loops if facts.needs_peers else ())]
        await announce(self._server, member, others)
        if first and facts.needs_peers:
            state.group.form([member.info.index])
        infos = tuple(other.info for other in (*state.members.alive(SYNC), *state.loops, member))
        if first and state.first_model is not None:
            await self._give_first_model(member, state.first_model)
            state.first_model = None
        connect = ConnectPeers(infos, state.group.view, late=not first)
        await self._order(member, connect, "could not connect to the others")
        if first and facts.needs_center:
            await self._make_center()
        came_back = member in state.members.returned()
        if not first and not facts.needs_center and not came_back:
            # Without a center only another loop has the weights.
            await self._copy_weights(member)
        await tell_losses(self._server, member, infos)
        await self._order(member, Begin(), "did not begin")
        if not first and facts.needs_peers:
            # All have the group before anyone counts on the new loop.
            group = SetGroup(state.return_to_group(member))
            await self._server.call_all([*state.loops, member], group, REQUEST_SECONDS)
        state.begin(member)
        self._server.event(
            member.info.name, "came back" if came_back else "joined" if first else "joined late", logging.INFO
        )

    async def _give_first_model(self, member: Member, values: Float32Array) -> None:
        """Give the first loop the values of a checkpoint, before it meets the others."""
        for start in range(0, len(values), CHUNK_ELEMENTS):
            part = WriteReplica(start, values[start : start + CHUNK_ELEMENTS].tobytes())
            await self._order(member, part, "could not take the weights of the checkpoint")

    async def _copy_weights(self, member: Member) -> None:
        """Copy the weights of another loop.

        If all others leave meanwhile, the member keeps its own, as one does that comes after them.
        """
        parts = (("", member.facts.dense_elements),)
        loops = self._state.loops
        for source in loops:
            failed = await copy_replica(self._server, source, [member], parts)
            if member in failed:
                raise self._failure(member, "could not take the weights")
            if not failed:
                return
        await self._server.wait_for(lambda: not any(loop.alive and loop.leaves for loop in loops))
        if self._state.loops:
            raise AdmissionFailed("got the weights from no other loop")

    async def _order(self, member: Member, order: ConnectPeers | Begin | WriteReplica, failure: str) -> None:
        if await self._server.call(member, order, REQUEST_SECONDS) is None:
            raise self._failure(member, failure)

    def _failure(self, member: Member, text: str) -> AdmissionFailed:
        why = self._server.unmet.get(member.info.name)
        return AdmissionFailed(f"{text}: {why.what}" if why is not None else text)
