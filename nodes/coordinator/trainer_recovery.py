"""Admission of trainers to a running job: each begins with the weights and the optimizer of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from ...pipeline.data.span import to_runs
from ...pipeline.wire.control_orders import (
    Begin,
    ConnectPeers,
    MemberInfo,
    NodeLost,
    ReadReplica,
    TrainerJoined,
    WriteReplica,
)
from .divergence import CHUNK_ELEMENTS
from .membership import Member
from .outcome import REQUEST_SECONDS
from .server import CoordinatorServer


class TrainerRecovery:
    """Admit trainers to a running job. Runs on the coordinator's loop.

    Args:
        admitting: held while a node is admitted, so that the next one is told of it.
    """

    def __init__(self, server: CoordinatorServer, admitting: asyncio.Lock) -> None:
        self._server = server
        self._admitting = admitting

    def admit(self, trainer: Member) -> None:
        """Introduce a trainer that is ready to the others, and have it train."""
        self._server.spawn(self._admit(trainer))

    async def _admit(self, trainer: Member) -> None:
        async with self._admitting:
            failure = await self._failure(trainer)
        if failure:
            self._server.mark_dead(trainer.info.token, failure)

    async def _failure(self, trainer: Member) -> str:
        """Admit a trainer; return why that is not possible, or an empty text."""
        server, state = self._server, self._server.state
        others = [one for one in state.members.alive() if one.info.role != "trainer" and one.ready]
        # They accept nothing of a trainer that they have not been told of.
        told = await server.call_all(others, TrainerJoined(trainer.info), REQUEST_SECONDS)
        if silent := [one.info.name for one in others if one.alive and one.info.name not in told]:
            return f"{', '.join(silent)} could not be told of it"
        infos = tuple(self._infos())
        connect = ConnectPeers(infos, state.group.view, late=True)
        if await server.call(trainer, connect, REQUEST_SECONDS) is None:
            return "did not connect to the others"
        donor = await self._copy_state(trainer)
        if not donor:
            return "no other trainer could give it its weights"
        progressive = tuple((start, stop) for start, stop in to_runs(state.input.progressive))
        begin = Begin(state.ledger.examples_so_far, progressive)
        if await server.call(trainer, begin, REQUEST_SECONDS) is None:
            return "did not begin to train"
        # Of those that died meanwhile it may have been told before it knew of them.
        for info in infos:
            member = state.members.find(info.token)
            if member is not None and not member.alive:
                await server.call(trainer, NodeLost(info.token, info.role, info.name), REQUEST_SECONDS)
        server.event(
            trainer.info.name, f"joined the running job, with the weights and the optimizer of {donor}"
        )
        return ""

    def _infos(self) -> Iterable[MemberInfo]:
        """Return the living members, sync nodes in the order of their slices."""
        state = self._server.state
        for member in state.members.alive():
            info = member.info
            yield replace(info, index=state.slices[info.token]) if info.role == "sync" else info

    async def _copy_state(self, trainer: Member) -> str:
        """Copy another trainer's weights and optimizer; return whose, or an empty text."""
        first = trainer.facts.weights_digest
        for donor in self._server.state.members.alive("trainer"):
            fits = donor is not trainer and donor.ready and donor.facts.weights_digest == first
            if fits and await self._copied(donor, trainer):
                return donor.info.name
        return ""

    async def _copied(self, donor: Member, trainer: Member) -> bool:
        facts = trainer.facts
        for name, elements in (("", facts.dense_elements), *facts.optimizer_state):
            for start in range(0, elements, CHUNK_ELEMENTS):
                read = ReadReplica(start, min(start + CHUNK_ELEMENTS, elements), name)
                found = await self._server.call(donor, read, REQUEST_SECONDS)
                if found is None:
                    return False
                write = WriteReplica(start, found.values, name)
                if await self._server.call(trainer, write, REQUEST_SECONDS) is None:
                    return False
        return True
