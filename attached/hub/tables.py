"""The tables of a hub: its embedding nodes, and the modules that use them.

Imports no torch, but the embedding nodes do, which start with the first module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...nodes.control.introduction import AdmissionFailed
from ...nodes.control.membership import Member
from ...nodes.control.server import REQUEST_SECONDS, ControlServer
from ...nodes.runtime.role import Role
from ...nodes.runtime.settings import NodeSettings
from ...pipeline.config.job import Job
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.wire.control.loops import JoinTables, JoinTablesReply
from ...pipeline.wire.control.orders import Begin, ConnectPeers, FindLacking, Finish, TrainerJoined
from ..node_thread import NodeThread
from ..tables_job import EPOCH, require_tables, tables_job
from .checkpoint import TABLES
from .hosted import END_SECONDS, end_hosted, hosted_node
from .members import CLIENT, EMBEDDING
from .state import PASSES, HubState

log = logging.getLogger(__name__)


class HubTables:
    """The embedding nodes of a hub; runs on the hub's loop.

    They start when the first module says which tables there are, and stay until the hub ends: modules may
    come and go. If they cannot start, because the rows do not fit into memory, that module is refused, and
    another may ask for other tables.

    Args:
        settings: the hub's, whose job has the [embedding] of the nodes.
    """

    def __init__(self, server: ControlServer, state: HubState, settings: NodeSettings) -> None:
        self._server, self._state, self._settings = server, state, settings
        self._declaring = asyncio.Lock()
        self._job: Job | None = None
        self._saved: tuple[Job, dict[str, Any], Path, bool] | None = None
        # Modules of a dead hub that had written no checkpoint.
        self._without_rows: set[str] = set()
        self._plan: dict[str, Any] = {}
        self._first = ""
        self._begun = False
        self._failure = ""
        self._nodes: dict[str, NodeThread[Role]] = {}

    @property
    def job(self) -> Job | None:
        """The job of the tables, once they are there."""
        return self._job

    @property
    def plan(self) -> dict[str, Any]:
        """The plan of the tables, for embedding nodes."""
        return self._plan

    def resume(self, job: Job, tables: dict[str, Any], folder: Path, *, goes_on: bool = False) -> None:
        """Begin with the rows of a checkpoint, once the first module comes.

        Args:
            job: the job of the nodes that wrote it.
            tables: the settings of its tables, by table.
            folder: where it is.
            goes_on: whether it is of the hub whose place this one takes, with the same modules.
        """
        self._saved = job, tables, folder, goes_on

    def lose_rows(self, modules: Iterable[str]) -> None:
        """Let these modules not come back: their hub died without a checkpoint."""
        self._without_rows.update(modules)

    def require_own(self, token: str) -> None:
        """Raise ClusterError for an embedding node that the hub did not start."""
        if token not in self._nodes:
            raise ClusterError(
                "a hub starts its embedding nodes itself", remedy="give the hub --embedding-nodes N"
            )

    async def join(self, member: Member, request: JoinTables) -> JoinTablesReply:
        """Tell a module the tables; start the nodes if it is the first.

        Raises JobFileError, AttachError or ClusterError if it cannot have its tables, or not again.
        """
        async with self._declaring:
            first = self._first_job(request.settings) if self._job is None else None
            if self._job is not None and request.settings is not None:
                require_tables(self._job, request.settings, self._first)
            if request.passes is not None:
                self._require_return(member, request.passes)
            if first is not None:
                await self._start(member, first)
        assert self._job is not None
        lost = await self._count_lost(member, self._job, request.passes or 0)
        return JoinTablesReply(self._job.model_dump(mode="json"), self._plan, lost)

    async def admit_node(self, member: Member) -> None:
        """Admit an embedding node, which accepts no module yet."""
        connect = ConnectPeers((member.info,), self._state.group.view)
        if await self._server.call(member, connect, REQUEST_SECONDS) is None:
            raise AdmissionFailed("did not get ready")
        self._state.begin(member)

    async def admit_client(self, member: Member) -> None:
        """Connect a module to the embedding nodes."""
        nodes = self._state.members.alive(EMBEDDING)
        joined = TrainerJoined(member.info)
        if len(await self._server.call_all(nodes, joined, REQUEST_SECONDS)) < len(nodes):
            raise AdmissionFailed("could not be announced to the embedding nodes")
        infos = (*(node.info for node in nodes), member.info)
        for order in (ConnectPeers(infos, self._state.group.view), Begin()):
            if await self._server.call(member, order, REQUEST_SECONDS) is None:
                raise AdmissionFailed("could not connect to the embedding nodes")
        self._state.begin(member)
        self._tell(member)

    def fails_to_start(self, member: Member, why: str) -> bool:
        """Record the death of a node; return whether it was still starting.

        Then only the tables cannot be. Otherwise rows are lost, and the hub with them.
        """
        if member.info.role != EMBEDDING or self._begun:
            return False
        self._failure = self._failure or why
        return True

    async def close(self) -> None:
        """Wait for the nodes, which have been told to end unless they had not joined yet."""
        await end_hosted(self._nodes.values())

    def _require_return(self, member: Member, passes: int) -> None:
        """Raise ClusterError unless this hub has the rows of a module that comes back."""
        if member not in self._state.members.returned(CLIENT):
            raise ClusterError(
                "the hub there is another one than that of the module's tables",
                remedy="bring that hub back with shadowsync hub --recover DIR, or make a new module",
            )
        # More recent than its last heartbeat.
        self._state.heartbeat(member, {PASSES: passes})
        if member.info.name in self._without_rows:
            self._state.lost_passes[member.info.name] = passes
            raise ClusterError(
                f"the rows of {member.info.name} died with the hub, which had written no checkpoint of its"
                " tables",
                where=str(self._state.folder / TABLES),
                remedy="make a new module, which begins with new rows; next time give the hub"
                " --checkpoint-every SECONDS",
            )

    async def _count_lost(self, member: Member, job: Job, passes: int) -> int:
        """Return how many of a module's passes not all nodes have, and record it."""
        if not passes:
            return 0
        nodes = self._state.members.alive(EMBEDDING)
        asked = FindLacking(((EPOCH, member.info.index, 0, passes),))
        replies = await self._server.call_all(nodes, asked, REQUEST_SECONDS)
        if len(replies) < job.embedding.nodes or not all(reply.examined for reply in replies.values()):
            raise ClusterError("the embedding nodes did not say which passes they have")
        lacking = [(start, stop) for reply in replies.values() for _, _, start, stop in reply.ranges]
        lost = self._state.lost_passes[member.info.name] = covered(lacking)
        return lost

    def _tell(self, member: Member) -> None:
        """Record that a module joined or came back, and what it lost."""
        name, lost = member.info.name, self._state.lost_passes.get(member.info.name, 0)
        what = "came back" if member in self._state.members.returned(CLIENT) else "joined"
        if lost:
            what += f"; lost: {lost:,} of its passes"
        self._server.event(name, what, logging.WARNING if lost else logging.INFO)

    def _first_job(self, tables: dict[str, Any] | None) -> Job:
        """Return the job of the tables that the first module, or a checkpoint, says."""
        if self._saved is not None:
            job, saved, folder, goes_on = self._saved
            if tables is not None:
                require_tables(job, tables, "the checkpoint")
            return tables_job(self._settings.job, saved, folder, goes_on=goes_on)
        if tables is None:
            raise ClusterError("there are no tables yet", remedy="give tables={NAME: ROWS, ...}")
        return tables_job(self._settings.job, tables)

    async def _start(self, member: Member, job: Job) -> None:
        """Start the embedding nodes; raises ClusterError with the reason if one cannot."""
        plan = TablePlan.make(job.tables, job.embedding.nodes)
        settings = replace(self._settings, job=job)
        self._plan, self._failure = plan.to_body(), ""
        for index in range(plan.nodes):
            token = uuid4().hex
            node = self._nodes[token] = hosted_node("embedding", settings, self._server.bound, index, token)
            await asyncio.to_thread(node.start)
        alive = self._state.members.alive
        await self._server.wait_for(lambda: len(alive(EMBEDDING)) == plan.nodes or self._failure != "")
        if len(alive(EMBEDDING)) < plan.nodes:
            await self._give_up()
            raise ClusterError(self._failure or "the hub ends", where="the tables")
        self._job, self._first, self._begun = job, member.info.name, True
        rows = ", ".join(f"{table.name} ({table.rows:,} rows of {table.dim})" for table in job.tables)
        log.info("tables of %s: %s, on %d embedding nodes", member.info.name, rows, plan.nodes)

    async def _give_up(self) -> None:
        """End the nodes that did start."""
        living = [member for member in self._state.members.living() if member.info.role == EMBEDDING]
        await self._server.call_all(living, Finish(ExitCode.OK, "the tables cannot be"), END_SECONDS)
        for member in living:
            self._state.lose(member, "ended before the tables were there")
        await self.close()
        self._nodes = {}


def covered(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many numbers are in at least one of the ranges [start, stop)."""
    total = end = 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
