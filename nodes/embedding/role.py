"""The embedding role: a shard and its checkpoint part."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import zmq

from ...pipeline.checkpoint.saved import open_saved, own_checkpoint
from ...pipeline.checkpoint.saved_ledger import SavedLedger
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.config.job import Job
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.saved_tables import SavedTables
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.errors import CheckpointError
from ...pipeline.types import BatchId
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import EVENT_CHARACTERS, NodeFacts, ReportEvent
from ...pipeline.wire.control.orders import (
    MAX_RANGES,
    BatchRanges,
    Begin,
    ConnectPeers,
    Drain,
    DrainReply,
    FindLacking,
    LackingBatches,
    NodeLost,
    TrainerJoined,
    WriteCheckpoint,
    WriteCheckpointReply,
)
from ..runtime.largest_messages import largest_of_rows
from ..runtime.role import NodeContext, ServingRole, admit_trainers, unexpected_request
from .server import ShardService
from .shard_checkpoints import ShardCheckpoints
from .shard_part import ShardPart

log = logging.getLogger(__name__)


@dataclass
class _RestoredShard:
    """A shard with the checkpoint that it starts from.

    Attributes:
        applied: the batches known to be applied to it.
        absent: tables with first values, since the checkpoint lacks them.
        digest: that of the checkpoint; "" without one.
    """

    store: ShardStore
    applied: AppliedBatches = field(default_factory=AppliedBatches)
    absent: tuple[str, ...] = ()
    digest: str = ""


class EmbeddingRole(ServingRole[ShardService]):
    """The control side of an embedding node; its service thread owns the rows."""

    name: ClassVar[str] = "embedding"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._facts = NodeFacts()

    async def come_back(self) -> EmbeddingRole:
        """See `Role`: rows, applied batches and listener go on, and answer meanwhile."""
        return self

    def largest_message(self) -> int:
        return largest_of_rows(self._job)

    def listen(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> str:
        """See `ServingRole`; one that comes back listens already."""
        return self._listener.endpoint if self._listener is not None else super().listen(context, address)

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Allocate and fill the shard, and restore the checkpoint that the job starts from.

        Checks first that it fits into memory. One that comes back has its rows.
        """
        if self._service is not None:
            self._facts = replace(self._facts, restored_batches=len(self._service.applied))
            return self._facts
        shard = await asyncio.to_thread(self._make_shard, node)
        store, applied = shard.store, shard.applied
        codecs = self._job.codecs.embedding()
        threads = self._job.embedding.threads
        shares = self._job.network.shares_memory
        self._service = ShardService(self.bound, store, node.fail, codecs, applied, threads, shares=shares)
        self._service.start()
        self._checkpoints = ShardCheckpoints(self._service, self._job.embedding.memory_fraction)
        widths = ", ".join(str(dim) for dim in sorted(set(store.dims)))
        log.info("holds %d rows of %s floats", store.rows, widths)
        for unfit in store.unfit_folders():
            log.warning("%s", unfit)
            event = ReportEvent(f"embedding.folder: {unfit}"[:EVENT_CHARACTERS])
            await node.coordinator.call(event, timeout_seconds=node.patience_seconds)
        pieces = store.plan.pieces_of(store.node)
        self._facts = NodeFacts(
            rows=store.rows,
            plan_digest=store.plan.digest,
            pieces=tuple((piece.table, piece.start, piece.stop) for piece in pieces),
            fresh_tables=shard.absent,
            start_digest=shard.digest,
            checkpoint_bytes=ShardPart.of(store, applied).bytes,
            restored_batches=len(applied),
        )
        return self._facts

    def _make_shard(self, node: NodeContext) -> _RestoredShard:
        """Make the shard, and restore the checkpoint that it starts from, if there is one."""
        plan, index = node.plan, node.index
        store = ShardStore(
            plan,
            index,
            seed=self._job.run.seed,
            memory_fraction=self._job.embedding.memory_fraction,
            memory_bytes=self._job.embedding.memory_bytes,
        )
        start = self._job.start
        # A replacement starts from this run's own checkpoint, if there is one.
        run_checkpoint = own_checkpoint(self._job.run.storage, node.folder) if node.late else None
        if run_checkpoint is None and not start.checkpoint:
            return _RestoredShard(store)
        which = start.which if run_checkpoint is None else "last"
        folder, manifest = open_saved(
            start.checkpoint if run_checkpoint is None else run_checkpoint, which=which
        )
        saved = SavedTables(folder, manifest)
        absent = tuple(store.restore(saved))
        applied = AppliedBatches()
        if start.resume or run_checkpoint is not None:
            if saved.placement_digest == plan.placement_digest:
                applied = saved.applied(index)
            else:
                # The saved nodes had applied different batches; all of them had those of the ledger.
                ledger = SavedLedger.read(folder, manifest.files)
                applied = AppliedBatches.from_array(ledger.applied_ranges())
        if run_checkpoint is not None and open_saved(run_checkpoint)[1].digest != manifest.digest:
            # Rows and applied batches would be from two moments.
            remedy = "start the node again"
            raise CheckpointError("was replaced while it was read", where=str(folder), remedy=remedy)
        if absent:
            log.warning("tables that the checkpoint lacks keep their initial values: %s", ", ".join(absent))
        return _RestoredShard(store, applied, absent, manifest.digest)

    async def handle(self, request: Request[Any]) -> Reply:
        """Reply to ConnectPeers, TrainerJoined, Begin, NodeLost, FindLacking, Drain and WriteCheckpoint."""
        if isinstance(request, Drain):
            applied = tuple(batch for batch in request.batches if batch in self.service.applied)
            return DrainReply(self.metrics(), {}, applied_of=applied)
        if isinstance(request, FindLacking):
            service, ranges = self.service, request.ranges
            return await service.run(lambda: self._lacking(service.applied, ranges))
        if isinstance(request, WriteCheckpoint):
            return await self._checkpoint(request)
        if isinstance(request, NodeLost):
            service, token = self.service, request.token
            service.call(lambda: service.lose(token))
        elif isinstance(request, TrainerJoined):
            self.bound.admit_also(request.member.token)
        elif isinstance(request, ConnectPeers):
            admit_trainers(self.bound, request)
        elif not isinstance(request, Begin):
            raise unexpected_request(self.name, request)
        return Done()

    def _lacking(self, applied: AppliedBatches, ranges: BatchRanges) -> LackingBatches:
        lacking: list[tuple[int, int, int, int]] = []
        for examined, (epoch, span, first, stop) in enumerate(ranges):
            runs = applied.lacking(BatchId(epoch, span, first, self._job.run.seed), stop)
            if len(lacking) + len(runs) > MAX_RANGES:
                return LackingBatches(tuple(lacking), examined)
            lacking += [(epoch, span, *run) for run in runs]
        return LackingBatches(tuple(lacking), len(ranges))

    async def _checkpoint(self, request: WriteCheckpoint) -> WriteCheckpointReply:
        """Write the rows of one moment and the batches applied to them.

        Unless `running`, writes all rows on the service thread, which then serves nothing.
        """
        if request.running:
            files, pause_seconds = await self._checkpoints.write(request.directory, yields=request.yields)
        else:
            began = time.monotonic()
            service, target = self.service, part_target(request.directory)
            work = service.run(lambda: ShardPart.of(service.store, service.applied).write(target))
            files, pause_seconds = tuple(await work), time.monotonic() - began
        log.info("wrote %d files; pushes waited for at most %.3f s", len(files), pause_seconds)
        return WriteCheckpointReply(files, pause_seconds=pause_seconds)
