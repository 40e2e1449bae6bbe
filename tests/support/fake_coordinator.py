"""What the coordinator is to those that keep checkpoints: a folder, a ledger, and nodes that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.nodes.ledger_state import LedgerState
from shadowsync.nodes.membership_state import Member
from shadowsync.nodes.role import MemberInfo
from shadowsync.nodes.stop import Stop
from shadowsync.nodes.sync_group import SyncGroup
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.spans import Span
from shadowsync.pipeline.errors import ShadowSyncError

from .batches import batch_id

ELEMENTS = 50


def member(role: str, index: int, **facts: Any) -> Member:
    """A node that is ready."""
    info = MemberInfo(f"{role}-{index}", role, index, f"token-{role}-{index}", "")
    return Member(info, ready=True, facts=facts)


class FakeMembers:
    """Those of a list that live."""

    def __init__(self, members: list[Member]) -> None:
        self.all = members

    def alive(self, role: str = "") -> list[Member]:
        """Of one role, or all."""
        return [m for m in self.all if m.alive and role in ("", m.info.role)]


class FakeCoordinator:
    """Made on a running loop. One trained batch of 10 examples is in the ledger.

    Attributes:
        asked: (node, verb, body, seconds) of each question.
        events: (node, text).
        looks: how often somebody asked for the time.
        answer: called with each question that a node is asked; what it raises is the node's refusal.
    """

    def __init__(self, folder: Path, members: list[Member], **sections: Any) -> None:
        self.folder = folder
        self.job = Job.model_validate(
            {
                "data": {"format": "parquet", "path": ["x"], "dense_features": 1, "categorical_features": 1},
                "model": {"table_rows": 10, "embedding_dim": 4},
                **sections,
            }
        )
        self.ledger = LedgerState([Span(0, "x", "bytes", 0, 100)], epochs=1, seed=1, shuffled=False)
        self.ledger.grant("reader-0")
        self.ledger.acknowledge("trainer-0", batch_id(0), 10)
        self.members = FakeMembers(members)
        self.group = SyncGroup()
        self.group.form(m.info.index for m in self.members.alive("trainer"))
        self.asked: list[tuple[str, str, dict[str, Any], float]] = []
        self.events: list[tuple[str, str]] = []
        self.refusals: dict[str, ShadowSyncError] = {}
        self.validation_points: list[tuple[int, float]] = []
        self.id_classes: dict[str, str] = {}
        self.phase = ""
        self.looks = 0
        self.answer: Callable[[Member, str, dict[str, Any]], dict[str, Any]] = self.written
        self.stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()

    def seconds(self) -> float:
        """No clock; counts how often it is looked at."""
        self.looks += 1
        return 0.0

    def event(self, node: str, what: str) -> None:
        """Notes it."""
        self.events.append((node, what))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of it."""
        return asyncio.ensure_future(work)

    async def notify(self) -> None:
        """Nobody waits."""

    async def demand(self, node: Member, verb: str, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        """What a node answers; its refusal is raised."""
        self.asked.append((node.info.name, verb, body, seconds))
        return await asyncio.to_thread(self.answer, node, verb, body)

    async def ask(
        self, node: Member, verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, Any] | None:
        """What a node answers; None if it refuses."""
        try:
            return await self.demand(node, verb, body, seconds)
        except ShadowSyncError as error:
            self.refusals[node.info.name] = error
            return None

    async def ask_all(
        self, nodes: Iterable[Member], verb: str, body: dict[str, Any], seconds: float
    ) -> dict[str, dict[str, Any]]:
        """The answers by name."""
        found = {node.info.name: await self.ask(node, verb, body, seconds) for node in nodes}
        return {name: answer for name, answer in found.items() if answer is not None}

    def written(self, node: Member, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Each node writes one file for each question."""
        name = f"{node.info.name}-{verb}"
        files = write_tensors(Path(body["directory"]), name, {"t": np.ones(ELEMENTS, np.float32)}, {})
        return {"files": [vars(entry) for entry in files], "ready": True}
