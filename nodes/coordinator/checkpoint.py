"""A checkpoint taken while training goes on, its manifest, and whether the volume has room for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.manifest import CheckpointManifest, begin, commit, sweep
from ...pipeline.checkpoint.saved_ledger import SavedLedger
from ...pipeline.data.spans import Span
from ...pipeline.errors import ClusterError, ResourceError
from ...pipeline.wire.control_base import Request
from ...pipeline.wire.control_orders import ComposeModel, WriteCheckpoint, WriteCheckpointReply
from ...sync_algos.model_origin import ModelOrigin
from ..runtime.threads import run_in_thread_uncancellable
from .membership import Member
from .outcome import FinalModel
from .server import CoordinatorServer
from .state import JobState


@dataclass(frozen=True)
class Books:
    """The ledger of one moment: trained batches, and this run's sums of them (see `LedgerTotals`)."""

    ledger: SavedLedger
    totals: Mapping[str, int]

    @classmethod
    def of(cls, state: JobState) -> Books:
        """Copy both as they are now; on the coordinator's loop, which changes them."""
        return cls(state.ledger.saved(), dict(vars(state.ledger.totals)))


def manifest_of(state: JobState, files: list[FileEntry], model: str, books: Books) -> CheckpointManifest:
    """Build the manifest of these files; `model` names the model of the dense part in words."""
    return CheckpointManifest(
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        run=state.folder.name,
        job=state.job.model_dump(mode="json"),
        job_digest=state.job.digest,
        model=model,
        examples_trained=books.ledger.examples,
        files=files,
        plan={
            "nodes": state.job.embedding.nodes,
            "tables": {
                table.name: {
                    "rows": table.rows,
                    "dim": table.dim,
                    "optimizer": table.optimizer,
                    # Of Parquet, where an id may be a text or an integer: what was read.
                    "ids": state.input.id_classes.get(table.name),
                }
                for table in state.job.tables
            },
        },
        ledger={
            **books.totals,
            "restored_examples": state.ledger.restored_examples,
            "input": describe_input(state.ledger.spans),
        },
    )


def describe_input(spans: Sequence[Span]) -> dict[str, Any]:
    """What a run that goes on must find again: `digest` of the plan of spans, and by path the `spans`, where
    the last one `stop`s, and the `bytes` of the file, None for one that is not on this machine's disk; of a
    part of a prepared folder also `prepared`, the digest of the folder's manifest."""
    files: dict[str, dict[str, Any]] = {}
    digest = hashlib.sha256()
    for span in spans:
        place = span.number, span.path, span.kind, span.start, span.stop, span.part, span.first, span.last
        digest.update(repr(place).encode())
        known = files.setdefault(span.path, {"spans": 0, "stop": 0, "bytes": _size(span.path)})
        known["spans"] += 1
        known["stop"] = max(known["stop"], span.stop)
        if span.prepared:
            known["prepared"] = span.prepared
    return {"digest": digest.hexdigest(), "files": files}


def input_digest(spans: Sequence[Span]) -> str:
    """Return the SHA-256 of `describe_input` as hex; scores of equal digests are comparable."""
    return hashlib.sha256(json.dumps(describe_input(spans), sort_keys=True).encode()).hexdigest()


def input_differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe how two inputs differ; empty if they do not."""
    if saved["digest"] == now["digest"] and saved["files"] == now["files"]:
        return []
    old, new = saved["files"], now["files"]
    found = [f"{path} is not part of it any more" for path in old if path not in new]
    found += [f"{path} is new" for path in new if path not in old]
    for path in (path for path in old if path in new):
        if old[path].get("prepared") != new[path].get("prepared"):
            found.append(f"{path} was prepared anew")
        elif old[path]["bytes"] != new[path]["bytes"]:
            found.append(f"{path} has {new[path]['bytes']} bytes and had {old[path]['bytes']}")
        elif old[path] != new[path]:
            found.append(f"{path} is cut into {new[path]['spans']} spans and was into {old[path]['spans']}")
    return found or ["the spans are cut otherwise"]


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


# For the ledger, the logs and the report, which may be on the same volume: they must not fail because a
# checkpoint is tried in vain.
RESERVE_BYTES = 64 << 20
_FLOAT_BYTES = 4
# Vectors as long as the dense model that are in no node's own part: the model that comes out, and of the
# algorithm's state two at most, or a center.
_DENSE_VECTORS = 3


def estimated_bytes(members: Iterable[Member], dense_elements: int) -> int:
    """Estimate a checkpoint's size: the parts that the nodes stated, and the dense model."""
    parts = sum(member.facts.checkpoint_bytes for member in members)
    return parts + _DENSE_VECTORS * _FLOAT_BYTES * dense_elements


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raise ResourceError if a checkpoint of this size would leave less than RESERVE_BYTES free."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + RESERVE_BYTES:
        raise ResourceError(
            f"{free:,} bytes are free, and a checkpoint takes about {needed_bytes:,}, with {RESERVE_BYTES:,}"
            " to be left",
            where=str(folder),
            remedy="free space there, or set run.directory to another place",
        )


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
    that have them (rule "A batch is a pure function"): nothing is lost, and nothing applied twice. Replicas
    and center are copied while workers and rounds write them, as every snapshot of a round is.

    Attributes:
        written: how many are in their place.
    """

    def __init__(self, server: CoordinatorServer, model: FinalModel) -> None:
        self._server = server
        self._state = server.state
        self._model = model
        self._last_bytes = 0
        self._told_pauses: set[str] = set()
        self.written = 0

    async def take(self) -> CheckpointManifest:
        """Take one checkpoint, in place of the one before.

        Raises ShadowSyncError if a node cannot write its part or is lost; the one before is then still there.
        """
        began = time.monotonic()
        try:
            # Nodes may have another working directory.
            partial = await run_in_thread_uncancellable(lambda: begin(self._state.folder).resolve())
            estimate = estimated_bytes(self._state.members.alive(), self._model.dense_elements)
            await run_in_thread_uncancellable(require_room, partial, max(estimate, self._last_bytes))
            manifest = await self._write(partial)
            await run_in_thread_uncancellable(self._commit, partial, manifest)
        except BaseException:
            # What it took on the disk is needed, above all where the disk is full. Of one that is in its
            # place nothing is left to be removed.
            await run_in_thread_uncancellable(sweep, self._state.folder)
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
        # What a checkpoint has is in the ledger's file, too.
        await self._server.store.flush()
        part = WriteCheckpoint(str(partial), self._model.origin, running=True)
        files = await asyncio.to_thread(books.ledger.write, partial)
        shards = self._state.members.alive("embedding")
        files += await self._parts([(shard, part) for shard in shards])
        trainers, syncs = self._state.members.alive("trainer"), self._state.members.alive("sync")
        if not trainers:
            raise ClusterError("no trainer is left to write its replica")
        saver = self._saver(trainers)
        others = [(member, part) for member in (*trainers, *syncs) if member is not saver]
        files += await self._parts([(saver, replace(part, dense=True)), *others])
        if self._model.origin in (ModelOrigin.CENTER, ModelOrigin.MEAN):
            whole = ComposeModel(part.directory, part.model, tuple(files))
            files += await self._parts([(saver, whole)])
        return manifest_of(self._state, files, self._model.saved(saver.info.name), books)

    def _saver(self, trainers: list[Member]) -> Member:
        """The first; of those that synchronize with each other one of the group, since the model and the
        algorithm's state of one that was put out are of the round in which that was."""
        if self._model.needs_peers:
            group = self._state.group.view.members
            return next((trainer for trainer in trainers if trainer.info.index in group), trainers[0])
        return trainers[0]

    async def _parts(self, asked: Sequence[tuple[Member, Request[WriteCheckpointReply]]]) -> list[FileEntry]:
        """The files that these nodes wrote; raises ClusterError when one could not, after all have answered,
        since what is to be removed should not be written meanwhile."""
        work = (self._server.call_or_raise(member, request, PART_SECONDS) for member, request in asked)
        answers = await asyncio.gather(*work, return_exceptions=True)
        files: list[FileEntry] = []
        for (member, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            files += answer.files
            self._note_pause(member.info.name, answer.pause_seconds)
        return files

    def _note_pause(self, name: str, seconds: float) -> None:
        """Note the pause once per node: it is as long for every checkpoint."""
        if seconds > PAUSE_SECONDS and name not in self._told_pauses:
            self._told_pauses.add(name)
            self._server.event(name, f"pushes and lookups waited {seconds:.1f} s for a copy for a checkpoint")
