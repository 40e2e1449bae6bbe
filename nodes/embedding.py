"""The embedding role: one shard of all the tables, with the memory of what it applied."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any, ClassVar

import zmq

from ..pipeline.checkpoint.files import FileEntry, write_tensors
from ..pipeline.config.job import Job
from ..pipeline.embedding.plan import TablePlan
from ..pipeline.embedding.store import ShardStore
from ..pipeline.wire.sockets import Listener
from .role import NodeContext, Role, unknown_verb
from .shard_service import ShardService

log = logging.getLogger(__name__)


class EmbeddingRole(Role):
    """The control side of an embedding node; its service thread owns the rows."""

    name: ClassVar[str] = "embedding"

    def __init__(self, job: Job) -> None:
        self._job = job
        self._listener: Listener | None = None
        self._service: ShardService | None = None
        self._index = 0

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """Binds the socket that workers look rows up at."""
        self._listener = Listener(context, address)
        return self._listener.endpoint

    async def prepare(self, node: NodeContext) -> dict[str, Any]:
        """Allocates and fills the shard, after checking that it fits into memory."""
        assert self._listener is not None
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
        self._service = ShardService(self._listener, store, node.fail)
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

    def metrics(self) -> dict[str, Any]:
        """Counts so far."""
        return self._service.metrics() if self._service else {}

    async def close(self) -> None:
        """Ends the service thread."""
        if self._service is not None:
            self._service.stop()
            await asyncio.to_thread(self._service.join, 3.0)
        elif self._listener is not None:
            self._listener.close()

    async def _checkpoint(self, directory: Path) -> dict[str, Any]:
        service = self._service
        assert service is not None
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
