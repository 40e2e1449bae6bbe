"""A coordinator's server with a real state, whose nodes answer without a socket."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.control.progress import Origin
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.server import CoordinatorServer
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.nodes.runtime.settings import NodeSettings
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import ShadowSyncError
from shadowsync.pipeline.wire.control.base import Reply, ReplyType, Request
from shadowsync.pipeline.wire.control.messages import NodeFacts
from shadowsync.pipeline.wire.control.orders import (
    ComposeModel,
    MemberInfo,
    WriteCheckpoint,
    WriteCheckpointReply,
)

from ..data.batches import batch_id
from ..data.plain_job import plain_job

ELEMENTS = 50


def member(role: str, index: int, **facts: Any) -> Member:
    """A node that is ready."""
    info = MemberInfo(f"{role}-{index}", role, index, f"token-{role}-{index}", "")
    return Member(info, ready=True, facts=NodeFacts(**facts))


def state_of(
    folder: Path,
    members: Sequence[Member],
    *,
    clock: Callable[[], float] = lambda: 0.0,
    origin: Origin | None = None,
    **sections: Any,
) -> JobState:
    """The state of a job with these nodes, given by role in the order of their indices; its time stands
    still. One trained batch of 10 examples is in the ledger."""
    counts = {role: sum(m.info.role == role for m in members) for role in ("reader", "trainer", "embedding")}
    given = {
        "data": {"readers": max(1, counts["reader"])},
        "model": {"table_rows": 10, "embedding_dim": 4},
        "trainer": {"count": counts["trainer"]},
        "embedding": {"nodes": max(1, counts["embedding"])},
    }
    job = plain_job(1, 1, **(given | sections))
    ledger = LedgerState([Span(0, "x", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
    ledger.grant("reader-0")
    ledger.acknowledge("trainer-0", batch_id(0), 10)
    state = JobState(job, folder, ledger, TablePlacement.by_rows(job), clock=clock, origin=origin)
    for node in members:
        joined = state.join(node.info.role, node.info.token, job.digest, "", "here", 1)
        assert joined.info.name == node.info.name
        joined.get_ready(node.facts)
    state.group.form(m.info.index for m in state.members.alive("trainer"))
    return state


class FakeServer(CoordinatorServer):
    """Made on a running loop. Its ledger is stored beside `folder`.

    Attributes:
        requested: (node, request, seconds) of each.
        answer: called with each request to a node; what it raises is the node's refusal.
    """

    def __init__(self, folder: Path, members: Sequence[Member], **options: Any) -> None:
        state = state_of(folder, members, **options)
        own = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        super().__init__(NodeSettings(job=state.job), state, LedgerWriter(LedgerStore(own / "ledger.sqlite")))
        self.requested: list[tuple[str, Request[Any], float]] = []
        self.reply: Callable[[Member, Request[Any]], Reply] = self.written

    @property
    def reports(self) -> list[tuple[str, str]]:
        """The events: (node, text)."""
        return [(node, what) for _, node, what in self.state.events]

    async def call_or_raise(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType:
        """What a node answers; its refusal is raised."""
        self.requested.append((member.info.name, request, seconds))
        # The test's answers are of the right types.
        return cast(ReplyType, await asyncio.to_thread(self.reply, member, request))

    async def call(self, member: Member, request: Request[ReplyType], seconds: float) -> ReplyType | None:
        """What a node answers; None if it refuses."""
        try:
            return await self.call_or_raise(member, request, seconds)
        except ShadowSyncError as error:
            self.unmet[member.info.name] = error
            return None

    def written(self, node: Member, request: Request[Any]) -> WriteCheckpointReply:
        """Each node writes one file for each request."""
        assert isinstance(request, WriteCheckpoint | ComposeModel)
        name = f"{node.info.name}-{type(request).__name__}"
        files = write_tensors(Path(request.directory), name, {"t": np.ones(ELEMENTS, np.float32)}, {})
        return WriteCheckpointReply(tuple(files))
