"""The embedding role: a shard and its checkpoint part."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from ...pipeline.checkpoint.files import FileEntry, write_tensors
from ...pipeline.checkpoint.manifest import has_checkpoint, open_checkpoint
from ...pipeline.checkpoint.saved_ledger import SavedLedger
from ...pipeline.config.job import Job
from ...pipeline.embedding.storage.applied import AppliedBatches
from ...pipeline.embedding.storage.bf16_rows import WidenedRows
from ...pipeline.embedding.storage.saved_tables import (
    PLACEMENT_KEY,
    ROLE,
    SavedTables,
    applied_name,
    tensor_name,
)
from ...pipeline.embedding.storage.store import ShardStore
from ...pipeline.errors import CheckpointError, ResourceError
from ...pipeline.memory import available_memory_bytes
from ...pipeline.types import BatchId
from ...pipeline.wire.control.base import Done, Reply, Request
from ...pipeline.wire.control.messages import NodeFacts
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
from ..runtime.role import NodeContext, ServingRole, admit_trainers, not_answered
from .server import ShardService


@dataclass(frozen=True)
class ShardPart:
    """A shard at one moment: rows, optimizer state and applied batches.

    Attributes:
        node: index of the embedding node that holds them.
        placement_digest: which rows each node has.
        tensors: by name, see `saved_tables`.
        first_rows: number of the first row, for tensors that are pieces of a table.
    """

    node: int
    placement_digest: str
    tensors: Mapping[str, NDArray[Any] | WidenedRows]
    first_rows: Mapping[str, int]

    @classmethod
    def of(cls, store: ShardStore, applied: AppliedBatches) -> ShardPart:
        """Make the part of a checkpoint on the store's own memory.

        Only the thread that owns the store may write or copy it, before it applies anything more.
        """
        tensors: dict[str, NDArray[Any] | WidenedRows] = {}
        first_rows: dict[str, int] = {}
        for piece, arrays in store.pieces():
            for array, values in arrays.items():
                name = tensor_name(store.plan.tables[piece.table].name, array)
                tensors[name], first_rows[name] = values, piece.start
        tensors[applied_name(store.node)] = applied.to_array()
        return cls(store.node, store.plan.placement_digest, tensors, first_rows)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors as they are written: float32."""
        return sum(values.nbytes for values in self.tensors.values())

    @property
    def copy_bytes(self) -> int:
        """Bytes of a copy: for rows of bfloat16 half of what is written."""
        held = (v.bits if isinstance(v, WidenedRows) else v for v in self.tensors.values())
        return sum(values.nbytes for values in held)

    def copied(self) -> ShardPart:
        """Return a copy, which any thread may write to files."""
        tensors = {name: values.copy() for name, values in self.tensors.items()}
        return ShardPart(self.node, self.placement_digest, tensors, self.first_rows)

    def write(self, directory: Path) -> list[FileEntry]:
        """Write its files into a checkpoint's folder.

        Raises ResourceError, and JobFileError for rows that are not finite.
        """
        role = f"{ROLE}-{self.node}"
        metadata = {"role": role, PLACEMENT_KEY: self.placement_digest}
        return write_tensors(directory, role, self.tensors, metadata, first_rows=self.first_rows, finite=True)


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _ShardCopy:
    """A shard for a checkpoint: files already written, or a copy to write."""

    part: ShardPart | None
    files: list[FileEntry]
    pause_seconds: float


class EmbeddingRole(ServingRole[ShardService]):
    """The control side of an embedding node; its service thread owns the rows."""

    name: ClassVar[str] = "embedding"

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job

    async def prepare(self, node: NodeContext) -> NodeFacts:
        """Allocate and fill the shard, and restore what the job starts from.

        Checks before that it fits into memory.
        """
        store, applied, absent, digest = await asyncio.to_thread(self._make, node)
        codecs = self._job.codecs.embedding()
        threads = self._job.embedding.threads
        shares = self._job.network.shares_memory
        self._service = ShardService(self.bound, store, node.fail, codecs, applied, threads, shares=shares)
        self._service.start()
        widths = ", ".join(str(dim) for dim in sorted(set(store.dims)))
        log.info("holds %d rows of %s floats", store.rows, widths)
        pieces = store.plan.pieces_of(store.node)
        return NodeFacts(
            rows=store.rows,
            plan_digest=store.plan.digest,
            pieces=tuple((piece.table, piece.start, piece.stop) for piece in pieces),
            fresh_tables=tuple(absent),
            start_digest=digest,
            checkpoint_bytes=ShardPart.of(store, applied).bytes,
            restored_batches=len(applied),
        )

    def _make(self, node: NodeContext) -> tuple[ShardStore, AppliedBatches, list[str], str]:
        """Make the shard.

        Returns it, the batches known to be applied to it, the tables that have first values although the job
        starts from a checkpoint, and the digest of that checkpoint, "" without one.
        """
        plan, index = node.plan, node.index
        store = ShardStore(
            plan,
            index,
            seed=self._job.run.seed,
            memory_fraction=self._job.embedding.memory_fraction,
        )
        start = self._job.start
        own = Path(node.folder)
        # In the place of a dead one it goes on from this run's own checkpoint, as soon as there is one.
        resumes_own = node.late and has_checkpoint(own)
        if not resumes_own and not start.checkpoint:
            return store, AppliedBatches(), [], ""
        which = "last" if resumes_own else start.which
        folder, manifest = open_checkpoint(own if resumes_own else Path(start.checkpoint), which=which)
        saved = SavedTables(folder, manifest)
        absent = store.restore(saved)
        applied = AppliedBatches()
        if start.resume or resumes_own:
            if saved.placement_digest == plan.placement_digest:
                applied = saved.applied(index)
            else:
                # Several nodes had not applied the same batches: what all of them had is in the ledger.
                ledger = SavedLedger.read(folder, manifest.files)
                applied = AppliedBatches.from_array(ledger.applied_ranges())
        if resumes_own and open_checkpoint(own)[1].digest != manifest.digest:
            # Rows and applied batches would be of two moments.
            remedy = "start the node again"
            raise CheckpointError("was replaced while it was read", where=str(folder), remedy=remedy)
        if absent:
            log.warning("tables that the checkpoint lacks keep their initial values: %s", ", ".join(absent))
        return store, applied, absent, manifest.digest

    async def handle(self, request: Request[Any]) -> Reply:
        """Answer ConnectPeers, TrainerJoined, Begin, NodeLost, FindLacking, Drain and WriteCheckpoint."""
        if isinstance(request, Drain):
            applied = tuple(batch for batch in request.batches if batch in self.service.applied)
            return DrainReply(self.metrics(), {}, applied_of=applied)
        if isinstance(request, FindLacking):
            service, ranges = self.service, request.ranges
            return await service.run(lambda: self._lacking(service.applied, ranges))
        if isinstance(request, WriteCheckpoint):
            return await self._checkpoint(Path(request.directory), running=request.running)
        if isinstance(request, NodeLost):
            service, token = self.service, request.token
            service.call(lambda: service.lose(token))
        elif isinstance(request, TrainerJoined):
            self.bound.admit_also(request.member.token)
        elif isinstance(request, ConnectPeers):
            admit_trainers(self.bound, request)
        elif not isinstance(request, Begin):
            raise not_answered(self.name, request)
        return Done()

    def _lacking(self, applied: AppliedBatches, ranges: BatchRanges) -> LackingBatches:
        found: list[tuple[int, int, int, int]] = []
        for examined, (epoch, span, first, stop) in enumerate(ranges):
            runs = applied.lacking(BatchId(epoch, span, first, self._job.run.seed), stop)
            if len(found) + len(runs) > MAX_RANGES:
                return LackingBatches(tuple(found), examined)
            found += [(epoch, span, *run) for run in runs]
        return LackingBatches(tuple(found), len(ranges))

    async def _checkpoint(self, directory: Path, *, running: bool) -> WriteCheckpointReply:
        """Write rows and the batches applied to them, of one moment.

        During training they are copied on the service thread, which pushes and lookups wait for, and
        written on another: no training waits for a disk (rule "Training never waits"). Raises ResourceError
        then if there is no memory for a copy.
        """
        service = self.service
        # On the service thread, so that no push changes the rows meanwhile.
        taken = await service.run(lambda: self._take(service, directory, running=running))
        files = taken.files
        if taken.part is not None:
            files = await asyncio.to_thread(taken.part.write, directory)
        log.info("wrote %d files; pushes waited for %.3f s", len(files), taken.pause_seconds)
        return WriteCheckpointReply(tuple(files), pause_seconds=taken.pause_seconds)

    def _take(self, service: ShardService, directory: Path, *, running: bool) -> _ShardCopy:
        began = time.monotonic()
        part = ShardPart.of(service.store, service.applied)
        if running:
            self._require_memory(part)
        copy = part.copied() if running else None
        files = part.write(directory) if copy is None else []
        return _ShardCopy(copy, files, time.monotonic() - began)

    def _require_memory(self, part: ShardPart) -> None:
        available, fraction = available_memory_bytes(), self._job.embedding.memory_fraction
        if part.copy_bytes > available * fraction:
            raise ResourceError(
                f"a copy of the rows for a checkpoint takes {part.copy_bytes:,} bytes, more than"
                f" {int(available * fraction):,}, {fraction:g} of the {available:,} bytes of free memory",
                where="embedding.memory_fraction",
                remedy="use more embedding nodes or more memory, or write no checkpoints during training",
            )
