"""Admission of sync nodes and loops to a hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ...nodes.coordinator.control.divergence import CHUNK_ELEMENTS
from ...nodes.coordinator.control_server import ControlServer
from ...nodes.coordinator.state.membership import Member
from ...pipeline.wire.control.orders import (
    Begin,
    ConnectPeers,
    MemberInfo,
    NodeLost,
    ReadReplica,
    SetGroup,
    TrainerJoined,
    WriteReplica,
)
from .state import LOOP, SYNC, HubState

REQUEST_SECONDS = 60.0


class AdmissionFailed(Exception):
    """A member cannot take part; the text says why."""


class HubAdmission:
    """Admission of members, one after the other; runs on the hub's loop.

    The first loop gives the center its first value. A later one takes the center's weights, or another
    loop's where there is no center.

    Args:
        mark_dead: called with the token of a member that cannot take part, and why.
        event: called with the name of a loop, and what happened to it.
    """

    def __init__(
        self,
        server: ControlServer,
        state: HubState,
        mark_dead: Callable[[str, str], None],
        event: Callable[[str, str], None],
    ) -> None:
        self._server = server
        self._state = state
        self._mark_dead = mark_dead
        self._event = event
        self._admitting = asyncio.Lock()

    async def admit(self, member: Member) -> None:
        """Admit a ready member; declare it dead if that fails."""
        try:
            if member.info.role == LOOP:
                await self._server.wait_for(lambda: self._state.has_sync_nodes or not member.alive)
            async with self._admitting:
                if member.alive:
                    await (self._admit_loop if member.info.role == LOOP else self._admit_sync)(member)
        except AdmissionFailed as error:
            self._mark_dead(member.info.token, str(error))
        await self._server.notify()

    async def _admit_sync(self, member: Member) -> None:
        await self._order(member, ConnectPeers((member.info,), self._state.group.view), "did not get ready")
        self._state.begin(member)

    async def _admit_loop(self, member: Member) -> None:
        state, facts = self._state, member.facts
        first = state.is_first(member)
        others = [*state.members.alive(SYNC), *(state.loops if facts.needs_peers else ())]
        # They accept nothing from a loop that they do not know.
        joined = TrainerJoined(member.info)
        known = await self._server.call_all(others, joined, REQUEST_SECONDS)
        if silent := [one.info.name for one in others if one.alive and one.info.name not in known]:
            raise AdmissionFailed(f"could not be announced to {', '.join(silent)}")
        if first and facts.needs_peers:
            state.group.form([member.info.index])
        infos = tuple(one.info for one in (*state.members.alive(SYNC), *state.loops, member))
        connect = ConnectPeers(infos, state.group.view, late=not first)
        await self._order(member, connect, "could not connect to the others")
        state.seeded = state.seeded or facts.needs_center
        if not first and not facts.needs_center:
            # Without a center only another loop has the weights.
            await self._copy_weights(member)
        for info in infos:
            await self._tell_if_lost(member, info)
        await self._order(member, Begin(), "did not begin")
        if not first and facts.needs_peers:
            # All have the group before anyone counts on the new loop.
            group = SetGroup(state.return_to_group(member))
            await self._server.call_all([*state.loops, member], group, REQUEST_SECONDS)
        state.begin(member)
        self._event(member.info.name, "joined" if first else "joined late")

    async def _copy_weights(self, member: Member) -> None:
        """Copy the weights of another loop."""
        elements = member.facts.dense_elements
        for source in self._state.loops:
            for start in range(0, elements, CHUNK_ELEMENTS):
                read = ReadReplica(start, min(start + CHUNK_ELEMENTS, elements))
                found = await self._server.call(source, read, REQUEST_SECONDS)
                if found is None:
                    break
                await self._order(member, WriteReplica(start, found.values), "could not take the weights")
            else:
                return
        raise AdmissionFailed("no other loop could give it the weights")

    async def _tell_if_lost(self, member: Member, info: MemberInfo) -> None:
        known = self._state.members.find(info.token)
        if known is not None and not known.alive:
            await self._server.call(member, NodeLost(info.token, info.role, info.name), REQUEST_SECONDS)

    async def _order(self, member: Member, order: ConnectPeers | Begin | WriteReplica, failure: str) -> None:
        if await self._server.call(member, order, REQUEST_SECONDS) is None:
            why = self._server.unmet.get(member.info.name)
            raise AdmissionFailed(f"{failure}: {why.what}" if why is not None else failure)
