"""A checkpoint that is taken while training goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.manifest import CheckpointManifest, begin, commit, sweep
from ...pipeline.errors import ClusterError
from ...sync_algos.model_origin import ModelOrigin
from ..runtime.to_the_end import to_the_end
from .checkpoint_manifest import Books, manifest_of
from .checkpoint_room import estimated_bytes, require_room
from .membership import Member
from .model_words import ModelFacts
from .server import CoordinatorServer

# A node that cannot copy and write its part in this time is taken to be unable to.
PART_SECONDS = 600.0
# Of a shard's copy: what is longer is told, as an event.
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


class RunningCheckpoint:
    """Takes checkpoints of a job that trains. Runs on the coordinator's loop.

    Nobody waits for a disk. Pushes and lookups of an embedding shard wait while its rows are copied in
    memory, which took 35 to 70 ms for 100 MB; a shard without the memory for a copy refuses.

    First the ledger is copied, then every embedding shard copies its rows with the set of what it applied.
    A batch is in the ledger only once every shard has applied it, so each shard's part has all batches of
    the ledger's part, and perhaps more. Those are trained again after a resume, and skipped by the shards
    that have them (contract 7): nothing is lost, and nothing applied twice. Replicas and center are copied
    while workers and rounds write them, as every snapshot of a round is.

    Attributes:
        written: how many are in their place.
    """

    def __init__(self, server: CoordinatorServer, model: ModelFacts) -> None:
        self._server = server
        self._state = server.state
        self._model = model
        self._last_bytes = 0
        self._told_pauses: set[str] = set()
        self.written = 0

    async def take(self) -> CheckpointManifest:
        """One checkpoint, in place of the one before. Raises ShadowSyncError if a node cannot write its part
        or is gone; the one before is then still there."""
        began = time.monotonic()
        try:
            # Nodes may have another working directory.
            partial = await to_the_end(lambda: begin(self._state.folder).resolve())
            estimate = estimated_bytes(self._state.members.alive(), self._model.dense_elements)
            await to_the_end(require_room, partial, max(estimate, self._last_bytes))
            manifest = await self._write(partial)
            await to_the_end(self._commit, partial, manifest)
        except BaseException:
            # What it took on the disk is needed, above all where the disk is full. Of one that is in its
            # place nothing is left to be removed.
            await to_the_end(sweep, self._state.folder)
            raise
        log.info(
            "checkpoint at %d examples, within %.2f s", manifest.examples_trained, time.monotonic() - began
        )
        return manifest

    def _commit(self, partial: Path, manifest: CheckpointManifest) -> None:
        commit(partial, manifest)
        self._last_bytes = sum(entry.bytes for entry in manifest.files)
        self.written += 1

    async def _write(self, partial: Path) -> CheckpointManifest:
        books = Books.of(self._state)
        body = {"directory": str(partial), "running": True, "model": self._model.origin}
        files = await asyncio.to_thread(books.ledger.write, partial)
        shards = self._state.members.alive("embedding")
        files += await self._parts([(shard, body) for shard in shards])
        trainers, syncs = self._state.members.alive("trainer"), self._state.members.alive("sync")
        if not trainers:
            raise ClusterError("no trainer is left to write its replica")
        saver = self._saver(trainers)
        others = [(member, body) for member in (*trainers, *syncs) if member is not saver]
        files += await self._parts([(saver, body | {"dense": True}), *others])
        if self._model.origin in (ModelOrigin.CENTER, ModelOrigin.MEAN):
            whole = body | {"files": [vars(entry) for entry in files]}
            files += await self._parts([(saver, whole)], verb="compose")
        return manifest_of(self._state, files, self._model.saved(saver.info.name), books)

    def _saver(self, trainers: list[Member]) -> Member:
        """The first; of those that synchronize with each other one of the group, since the model and the
        algorithm's state of one that was put out are of the round in which that was."""
        if self._model.needs_peers:
            group = self._state.group.view.members
            return next((trainer for trainer in trainers if trainer.info.index in group), trainers[0])
        return trainers[0]

    async def _parts(
        self, asked: list[tuple[Member, dict[str, Any]]], verb: str = "checkpoint"
    ) -> list[FileEntry]:
        """The files that these nodes wrote; raises ClusterError when one could not, after all have answered,
        since what is to be removed should not be written meanwhile."""
        work = (self._server.call_or_raise(member, verb, body, PART_SECONDS) for member, body in asked)
        answers = await asyncio.gather(*work, return_exceptions=True)
        files: list[FileEntry] = []
        for (member, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            files += [FileEntry(**entry) for entry in answer["files"]]
            self._note_pause(member.info.name, float(answer.get("pause_seconds", 0.0)))
        return files

    def _note_pause(self, name: str, seconds: float) -> None:
        """Once for each node: it will be as long for every checkpoint."""
        if seconds > PAUSE_SECONDS and name not in self._told_pauses:
            self._told_pauses.add(name)
            self._server.event(name, f"pushes and lookups waited {seconds:.1f} s for a copy for a checkpoint")
