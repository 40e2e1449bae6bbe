"""Changes of the number of readers or trainers while the job trains."""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import uuid4

from ....pipeline.errors import ClusterError
from ....pipeline.text.format import counted
from ....pipeline.wire.control.messages import Scale, ScaleReply
from ....pipeline.wire.control.orders import StartNode
from ....pipeline.wire.rpc.channel import ConnectionLost, RemoteError
from ...control.membership import Member
from ...control.server import REQUEST_SECONDS
from ..server import CoordinatorServer
from .departure import Departures
from .supervisor_reports import SupervisorReports

SCALABLE: Final = ("reader", "trainer")


class Scaling:
    """Change the number of nodes of a role. Runs on the coordinator's loop.

    The supervisor starts missing nodes; the nodes that joined last leave first.

    Args:
        reports: say which processes have ended.
    """

    def __init__(self, server: CoordinatorServer, departures: Departures, reports: SupervisorReports) -> None:
        self._server = server
        self._state = server.state
        self._departures = departures
        self._reports = reports
        self._turn = asyncio.Lock()

    async def scale(self, request: Scale) -> ScaleReply:
        """Carry out one request at a time.

        Raises ClusterError for an impossible request, before it changes anything, and for a node that does
        not join.
        """
        async with self._turn:
            role, count = request.role, request.count
            self._check(role, count)
            if role == "trainer":
                await self._await_start()
            joined, left = await self._change(role, count)
            return ScaleReply(tuple(joined), tuple(left), len(self._staying(role)))

    async def _await_start(self) -> None:
        """Wait until all trainers of the beginning take part; raises ClusterError after too long."""
        state = self._state

        def is_through() -> bool:
            waits = state.lone_start.is_on or state.lone_start.waiting()
            return not waits or not state.lifecycle.is_training

        seconds = state.job.run.start_timeout_seconds
        if not await self._server.wait_for(is_through, seconds):
            raise ClusterError(
                f"one trainer still goes through the start of {state.job.start_examples:,} examples alone",
                remedy="scale the trainers when the others have joined; readers can be scaled now",
            )

    async def _change(self, role: str, count: int) -> tuple[list[str], list[str]]:
        """Return the names of the nodes that joined and left."""
        staying = self._staying(role)
        if count > len(staying):
            return await self._start(role, count - len(staying)), []
        if count < len(staying):
            return [], await self._release(staying[count:])
        return [], []

    def _staying(self, role: str) -> list[Member]:
        """Return a role's living nodes that were not told to leave."""
        return [member for member in self._state.members.everyone(role) if member.alive and not member.leaves]

    def _check(self, role: str, count: int) -> None:
        state = self._state
        if role not in SCALABLE:
            raise ClusterError(
                f"a running job keeps its {role} nodes", remedy="readers and trainers can join and leave"
            )
        if count < 1:
            raise ClusterError(f"{role}={count} given; the job needs one", remedy="give at least 1")
        if not state.lifecycle.is_training:
            raise ClusterError(
                f"the job does not train (it is {state.lifecycle.phase.value})",
                remedy="scale a job while it trains",
            )

    async def _start(self, role: str, missing: int) -> list[str]:
        """Have nodes started; return the names of those that joined."""
        state, server = self._state, self._server
        if not state.can_join(role):
            raise ClusterError(
                f"the job cannot take another {role} now",
                remedy='"Joining a running job" in docs/guarantees.md says when it can',
            )
        if not server.settings.supervisor:
            raise ClusterError(
                "no supervisor is there that could start processes",
                remedy=f"start each yourself: shadowsync {role} RUN/job.json --join ADDRESS",
            )
        tokens = [uuid4().hex for _ in range(missing)]
        for token in tokens:
            await self._order(StartNode(role, token))

        def is_decided(token: str) -> bool:
            member = state.members.find(token)
            joined = member is not None and (member.begun or not member.alive)
            return joined or self._reports.has_ended(token)

        patience = state.job.run.start_timeout_seconds
        await server.wait_for(
            lambda: not state.lifecycle.is_training or all(map(is_decided, tokens)), patience
        )
        members = [member for token in tokens if (member := state.members.find(token)) is not None]
        joined_members = [member for member in members if member.begun and member.alive]
        joined = [
            member.info.name
            for member in sorted(joined_members, key=lambda joined_member: joined_member.info.index)
        ]
        if len(joined) < missing:
            raise ClusterError(
                f"{counted(missing - len(joined), role)} of {missing} did not join",
                remedy="the events of the job (shadowsync top) and the output of its processes say why",
            )
        return joined

    async def _order(self, order: StartNode) -> None:
        supervisor = self._server.settings.supervisor.encode()
        sessions = self._server.sessions

        def is_there() -> bool:
            return sessions.of(supervisor) is not None or not self._state.lifecycle.is_training

        await self._server.wait_for(is_there, REQUEST_SECONDS)
        session = sessions.of(supervisor)
        if session is None:
            raise ClusterError("the supervisor is not connected", remedy="try it again in some seconds")
        try:
            await session.call(order, timeout_seconds=REQUEST_SECONDS)
        except (ConnectionLost, RemoteError) as error:
            remedy = error.remedy if isinstance(error, RemoteError) else ""
            raise ClusterError(f"no process could be started: {error.what}", remedy=remedy) from error

    async def _release(self, members: list[Member]) -> list[str]:
        """Let nodes leave, the last one first; return the names of those that left."""
        for member in members:
            if not self._state.can_leave(member):
                raise ClusterError(
                    f"{member.info.name} cannot leave now",
                    remedy='"Leaving a running job" in docs/guarantees.md says when it can',
                )
        return [leaving.info.name for leaving in reversed(members) if await self._departures.release(leaving)]
