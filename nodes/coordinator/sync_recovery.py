"""Recovery from the death of a sync node: another one takes its slice, made of the mean of the replicas."""

from __future__ import annotations

import asyncio

from ...pipeline.wire.control_orders import Begin, ConnectPeers, SyncReplaced
from .membership import Member
from .outcome import REQUEST_SECONDS
from .server import CoordinatorServer


class SyncRecovery:
    """Admit sync nodes to a running job, in the place of dead ones. Runs on the coordinator's loop.

    Args:
        admitting: held while a node is admitted, so that the next one is told of it.
    """

    def __init__(self, server: CoordinatorServer, admitting: asyncio.Lock) -> None:
        self._server = server
        self._admitting = admitting

    def admit(self, node: Member) -> None:
        """Introduce a sync node that is ready to the trainers, which send it their slices."""
        self._server.spawn(self._admit(node))

    async def _admit(self, node: Member) -> None:
        async with self._admitting:
            await self._introduce(node)

    async def _introduce(self, node: Member) -> None:
        server, state = self._server, self._server.state
        infos = tuple(member.info for member in state.members.alive())
        # The node first: it accepts nothing of a trainer that it has not been told of.
        connect = ConnectPeers(infos, state.group.view, late=True)
        if await server.call(node, connect, REQUEST_SECONDS) is None:
            server.mark_dead(node.info.token, "did not connect to the others")
            return
        replaced = SyncReplaced(state.slices[node.info.token], node.info)
        # A trainer that cannot send its slice in time is not waited for.
        patience = REQUEST_SECONDS + state.job.sync.timeout_seconds
        replicas = await server.call_all(state.members.alive("trainer"), replaced, patience)
        if await server.call(node, Begin(), REQUEST_SECONDS) is None:
            server.mark_dead(node.info.token, "has no first value of its slice")
            return
        number = f"{len(replicas)} replica{'s' * (len(replicas) != 1)}"
        text = f"joined the running job; its slice of the center is the mean of {number}"
        server.event(node.info.name, text)
