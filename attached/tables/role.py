"""The control side of a module with tables, on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Mapping
from typing import Any, ClassVar

import zmq

from ...nodes.runtime.role import JOIN_SECONDS, NodeContext, Role, unexpected_request
from ...nodes.worker.embedding_client import LookupRefused
from ...pipeline.config.job import Job
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ClusterError
from ...pipeline.jobfile.load import validate_saved_job
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.loops import JoinTables
from ...pipeline.wire.control.messages import Leave, NodeFacts
from ...pipeline.wire.control.orders import Begin, ConnectPeers, NodeLost
from ...pipeline.wire.rpc.channel import ConnectionLost, RemoteError
from ...pipeline.wire.tasks import post
from .row_client import RowClient

LEAVE_SECONDS = 5.0
# Counts that a role does not add to those of the role before.
_NOT_SUMS = ("passes", "pending_pushes")


class TablesRole(Role):
    """A module with tables as a member of a hub.

    All methods belong to the control thread.

    Args:
        tables: the settings that the hub must have, by table; None for those that are there.
        timeout_seconds: how long the embedding nodes may take to start.
        max_pending: see `RowClient`.
        before: the role that had this place before, and has ended: counts and tables go on.

    Attributes:
        begun: done when rows can be asked for; it has the error if that failed.
        job, plan: the tables and their split, once begun.
        lost: passes that are not in the rows, of those that the roles before had made.
        is_refused: whether the hub refuses it for good.
    """

    name: ClassVar[str] = "client"
    host: ClassVar[str] = "hub"

    def __init__(
        self,
        tables: Mapping[str, Any] | None,
        timeout_seconds: float,
        max_pending: int,
        before: TablesRole | None = None,
    ) -> None:
        self._tables, self._timeout_seconds, self._max_pending = tables, timeout_seconds, max_pending
        self._returns, self._plan_before = before is not None, before.plan if before is not None else None
        self._counts_before = before.metrics() if before is not None else {}
        self.lost: int = before.lost if before is not None else 0
        self.is_refused = False
        self._node: NodeContext | None = None
        self._rows: RowClient | None = None
        # Kept, since a loop does not keep its tasks.
        self._refused: asyncio.Task[None] | None = None
        self.job: Job | None = None
        self.plan: TablePlan | None = None
        self.begun: concurrent.futures.Future[None] = concurrent.futures.Future()

    @property
    def rows(self) -> RowClient:
        """The connections to the embedding nodes, once begun."""
        assert self._rows is not None
        return self._rows

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:  # noqa: ARG002
        """See `Role`: it only connects."""
        return ""

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Ask the hub for the tables.

        It starts its embedding nodes if this is the first module.
        """
        self._node = node
        tables = None if self._tables is None else dict(self._tables)
        request = JoinTables(tables, self.passes if self._returns else None)
        try:
            reply = await node.coordinator.call(request, timeout_seconds=self._timeout_seconds)
        except ConnectionLost as error:
            raise ClusterError(f"the hub did not give the tables: {error}") from error
        except RemoteError:
            self.is_refused = True
            raise
        self.job = validate_saved_job(reply.job, where="the hub's tables")
        self.plan = TablePlan.from_body(self.job.tables, self.job.embedding.nodes, reply.plan)
        self.lost = reply.lost
        if self._plan_before not in (None, self.plan):
            self.is_refused = True
            raise ClusterError(
                "the hub there splits the rows over its nodes in another way", remedy="make a new module"
            )
        return NodeFacts(plan_digest=self.plan.digest)

    @property
    def passes(self) -> int:
        """Backward passes whose gradients were sent, by the roles before, too."""
        if self._rows is not None:
            return self._rows.passes
        return int(self._counts_before.get("passes", 0))

    async def handle(self, request: Request[Any]) -> Reply:
        """Reply to ConnectPeers, Begin and NodeLost."""
        node = self._node
        assert node is not None
        if isinstance(request, ConnectPeers):
            assert self.job is not None
            loop = asyncio.get_running_loop()
            self._rows = RowClient(
                node.zmq_context,
                request.members,
                node.token,
                node.index,
                self.job,
                lambda error: post(loop, lambda: self._fail(error)),
                self._max_pending,
                self.passes,
            )
            self._rows.start()
        elif isinstance(request, Begin):
            self.begun.set_result(None)
        elif isinstance(request, NodeLost):
            if request.role == "embedding":
                node.fail(ClusterError(f"{request.name} is lost, and its rows with it"))
        else:
            raise unexpected_request(self.name, request)
        return Done()

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far, those of the roles before among them."""
        if self._rows is None:
            return self._counts_before
        now, before = self._rows.metrics(), self._counts_before
        return {
            name: value if name in _NOT_SUMS else value + before.get(name, 0.0) for name, value in now.items()
        }

    def _fail(self, error: BaseException) -> None:
        """End the node for an error of the thread of the rows."""
        assert self._node is not None
        if isinstance(error, LookupRefused):
            self._refused = asyncio.get_running_loop().create_task(self._ask_why(error))
        else:
            self._node.fail(error)

    async def _ask_why(self, error: LookupRefused) -> None:
        """End the node after a refusal, or if the hub declared it dead.

        Embedding nodes refuse what comes from a module that was.
        """
        node = self._node
        assert node is not None
        try:
            await node.coordinator.call(JoinTables(None), timeout_seconds=LEAVE_SECONDS)
        except (ConnectionLost, RemoteError) as why:
            node.fail(ClusterError(f"the hub takes this module for dead: {why}"))
        else:
            node.fail(error)

    async def leave(self) -> None:
        """Leave the hub; its answer ends the node."""
        node = self._node
        assert node is not None
        try:
            await node.coordinator.call(Leave(), timeout_seconds=LEAVE_SECONDS)
        except (ConnectionLost, RemoteError) as error:
            node.fail(ClusterError(f"the hub did not answer: {error}"))

    async def close(self) -> None:
        """End the thread of the rows."""
        if self._rows is not None:
            self._rows.stop()
            with contextlib.suppress(TimeoutError):
                await asyncio.to_thread(self._rows.join, JOIN_SECONDS)
