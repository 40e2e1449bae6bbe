"""The embedding role: one shard of all the tables, with the memory of what it applied."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any, ClassVar

from ..pipeline.checkpoint.files import FileEntry, write_tensors
from ..pipeline.config.job import Job
from ..pipeline.embedding.plan import TablePlan
from ..pipeline.embedding.store import ShardStore
from .role import NodeContext, unknown_verb
from .serving_role import ServingRole
from .shard_service import ShardService

log = logging.getLogger(__name__)


class EmbeddingRole(ServingRole[ShardService]):
    """The control side of an embedding node; its service thread owns the rows."""

    name: ClassVar[str] = "embedding"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._index = 0

    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Allocates and fills the shard, after checking that it fits into memory."""
        self._index = node.index
        plan = TablePlan.make(self._job.table_rows, self._job.model.embedding_dim, self._job.embedding.nodes)
        settings = self._job.embedding
        store = await asyncio.to_thread(
            ShardStore,
            plan,
            node.index,
            seed=self._job.run.seed,
            optimizer=settings.optimizer,
            lr=settings.lr,
            memory_fraction=settings.memory_fraction,
            init_scale=settings.init_scale,
        )
        self._service = ShardService(self.bound, store, node.fail, self._job.codecs.embedding())
        self._service.start()
        log.info("holds %d rows of %d floats", store.rows, store.dim)
        return {"rows": store.rows, "plan_digest": plan.digest}

    async def handle(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """meet, begin, gone, hold, checkpoint."""
        if verb in ("meet", "begin", "gone"):
            return {}
        if verb == "hold":
            return self.metrics()
        if verb == "checkpoint":
            return await self._checkpoint(Path(str(body["directory"])))
        raise unknown_verb(self.name, verb)

    async def _checkpoint(self, directory: Path) -> dict[str, Any]:
        service = self.service
        loop = asyncio.get_running_loop()
        written: asyncio.Future[list[FileEntry]] = loop.create_future()

        def write() -> None:
            # On the service thread, so that no push changes the rows meanwhile.
            try:
                entries = self._write(service, directory)
            except Exception as error:  # noqa: BLE001 - handed to whoever asked for the checkpoint
                loop.call_soon_threadsafe(written.set_exception, error)
            else:
                loop.call_soon_threadsafe(written.set_result, entries)

        service.call(write)
        return {"files": [dataclasses.asdict(entry) for entry in await written]}

    def _write(self, service: ShardService, directory: Path) -> list[FileEntry]:
        tensors: dict[str, Any] = dict(service.store.tensors())
        tensors["applied"] = service.applied.to_array()
        name = f"embedding-{self._index}"
        return write_tensors(directory, name, tensors, {"role": name})
