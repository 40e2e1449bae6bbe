"""Admission of the trainers that wait while another one goes through the start of the job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from ....pipeline.text.format import count, counted
from ....pipeline.wire.control.orders import ConnectPeers, MemberInfo, SyncReplaced
from ...control.divergence import CHUNK_ELEMENTS
from ...control.introduction import AdmissionFailed, announce, copy_replica, tell_losses
from ...control.membership import Member
from ...control.server import REQUEST_SECONDS
from ..state.changes import GroupFormed
from .admission import TrainerAdmission


class StartAdmission(TrainerAdmission):
    """Admission of the trainers that were ready when the job started, all at once after its start.

    They are introduced as late ones are, and get the weights and the optimizer of the trainer that went
    through the start (`LoneStart`). If it leaves meanwhile, one of them goes on with these; if it dies, with
    what is left of its weights.
    """

    def admit_waiting(self) -> None:
        """Admit them when their time comes; call it once training has begun."""
        if self._state.lone_start.waiting():
            self._server.spawn(self._admit_waiting())

    async def _admit_waiting(self) -> None:
        state = self._state
        while state.lifecycle.is_training and state.lone_start.waiting():
            await self._server.wait_for(lambda: not (state.lifecycle.is_training and state.lone_start.holds))
            await self._await_whole()
            async with self._admitting:
                # While it waited for the lock, another one may have gone on.
                if state.lifecycle.is_training and not state.lone_start.holds:
                    await self._take_in_some()

    async def _take_in_some(self) -> None:
        """Admit all that wait, or the first of them if the start is not over."""
        waiting, state = self._state.lone_start.waiting(), self._state
        alone = state.lone_start.is_on or not state.members.alive("trainer")
        nodes = waiting[:1] if alone else waiting
        connect = ConnectPeers(tuple(self._infos(*nodes)), state.group.view, late=True)
        if not (said := await self._introduce_all(nodes, connect)) or not state.lifecycle.is_training:
            return
        began = await self._begin_all([node for node in nodes if node.alive], connect.members)
        if alone and began:
            self._server.event(began[0].info.name, f"goes on alone with the start of the job{said}")
        elif began:
            # One event for all: a healthy start is no news for each of many.
            who = began[0].info.name if len(began) == 1 else counted(len(began), "trainer")
            trained = count(state.ledger.examples_so_far)
            self._server.event("coordinator", f"{who} joined after the start of {trained} examples{said}")
        await self._server.notify()

    async def _introduce_all(self, nodes: Sequence[Member], connect: ConnectPeers) -> str:
        """Connect the nodes and the others, and give them weights; return a text for the event.

        Nodes with which that fails are declared dead; "" if it fails with all.
        """

        async def connect_one(node: Member) -> None:
            self._require_whole()
            await announce(self._server, node, self._acquaintances(node))
            await self._connect(node, connect)

        nodes = await self._each(nodes, connect_one)
        said = await self._copy_weights(nodes)
        return said if said or self._state.members.alive("trainer") else await self._go_on(nodes)

    async def _copy_weights(self, nodes: Sequence[Member]) -> str:
        """Give nodes the weights and the optimizer of a trainer; return a text for the event, "" without any.

        Declares nodes dead that have only a part of them.
        """
        server, torn = self._server, False
        for source in self._state.members.alive("trainer") if nodes else ():
            elements, state = nodes[0].facts.dense_elements, nodes[0].facts.optimizer_state
            failed = await copy_replica(server, source, nodes, (("", elements),))
            if source in failed:
                torn |= elements > CHUNK_ELEMENTS
                continue
            name = source.info.name
            nodes = [node for node in nodes if node not in failed]
            self._declare_dead(failed, f"could not take the weights of {name}")
            failed = await copy_replica(server, source, nodes, state)
            if source in failed:
                return f", with the weights of {name} and a part of its optimizer, as far as it could be read"
            self._declare_dead(failed, f"could not take the weights of {name}")
            return f", with the weights and the optimizer of {name}"
        if torn or self._state.members.alive("trainer"):
            self._declare_dead(nodes, "got the weights of no other trainer whole")
        return ""

    async def _go_on(self, nodes: Sequence[Member]) -> str:
        """Have nodes go on for a trainer that died; return a text for the event, "" if none can."""
        said = list[str]()

        async def go_on(node: Member) -> None:
            # It may have died before it had seeded the center; a slice that has its first value keeps it.
            for sync in self._state.members.alive("sync"):
                replaced = SyncReplaced(self._state.vacancies.slices[sync.info.token], sync.info)
                await self._server.call(node, replaced, REQUEST_SECONDS)
            said.append(await self._take_center(node))

        nodes = [node for node in nodes if node.alive]
        if nodes and not self._state.center_has_model():
            return ", with the weights that it was ready with: those of the trainer that died are lost"
        await self._each(nodes, go_on)
        return said[0] if said else ""

    def _declare_dead(self, nodes: Sequence[Member], why: str) -> None:
        for node in nodes:
            self._server.mark_dead(node.info.token, why)

    async def _begin_all(self, nodes: Sequence[Member], known: Sequence[MemberInfo]) -> list[Member]:
        """Have the nodes begin, in one new group with the others; return those that did.

        `known` are the members that they were told of.
        """
        server, state = self._server, self._state
        for node in nodes:
            await self._record_begin(node)
        nodes = await self._each(nodes, lambda node: tell_losses(server, node, known))
        if nodes and nodes[0].facts.needs_peers:
            # Before they begin: each of them would end the rounds of the others once more.
            view = state.group.form({*state.group.view.members, *(node.info.index for node in nodes)})
            server.journal.decided(GroupFormed(view))
            server.broadcast_group(view)
        return await self._each(nodes, self._begin)

    async def _each(self, nodes: Sequence[Member], step: Callable[[Member], Awaitable[None]]) -> list[Member]:
        """Take a step with all nodes at once; declare those dead with which it fails, return the others."""

        async def take_step(node: Member) -> None:
            try:
                await step(node)
            except AdmissionFailed as error:
                self._server.mark_dead(node.info.token, str(error))

        await asyncio.gather(*map(take_step, nodes))
        return [node for node in nodes if node.alive]
