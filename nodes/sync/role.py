"""The sync role: one slice of the center, for algorithms that have one."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any, ClassVar

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.config.job import Job
from ...sync_algos.base import Algorithm
from ..runtime.role import NodeContext, unknown_verb
from ..runtime.serving_role import ServingRole
from .center import CenterState
from .center_service import CenterService


class SyncRole(ServingRole[CenterService]):
    """The control side of a sync node; its service owns the slice."""

    name: ClassVar[str] = "sync"

    def __init__(self, job: Job, algorithm: Algorithm) -> None:
        super().__init__()
        self._job = job
        self._algorithm = algorithm
        self._index = 0
        self._orphaned_slices = 0

    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Starts the service; the slice gets its size and first value from trainer 0."""
        self._index = node.index
        state = CenterState(self._algorithm.center_rule, self._job.codecs.center())
        self._service = CenterService(self.bound, state, node.fail)
        self._service.start()
        return {}

    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """meet, begin, gone, hold, checkpoint."""
        service = self.service
        if verb in ("meet", "begin"):
            return {}
        if verb == "gone":
            token = str(body["token"])
            service.call(lambda: self._forget(service, token))
            return {}
        if verb == "hold":
            return self.metrics()
        if verb == "checkpoint":
            return await self._checkpoint(service, Path(str(body["directory"])))
        raise unknown_verb(self.name, verb)

    def metrics(self) -> dict[str, Any]:
        """Counts so far."""
        return super().metrics() | {"orphaned_slices": self._orphaned_slices}

    def _forget(self, service: CenterService, token: str) -> None:
        self._orphaned_slices += service.state.forget(token)

    async def _checkpoint(self, service: CenterService, directory: Path) -> dict[str, Any]:
        values = await service.run(service.state.copied)
        if values is None:
            return {"files": []}
        name = f"sync-{self._index}"
        metadata = {"role": name, "start": str(service.state.start), "stop": str(service.state.stop)}
        entries: list[FileEntry] = await asyncio.to_thread(
            write_tensors, directory, name, {"center": values}, metadata
        )
        return {"files": [dataclasses.asdict(entry) for entry in entries]}
