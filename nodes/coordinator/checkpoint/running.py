"""A checkpoint written during training, its manifest, and the room it needs."""

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
from pathlib import Path
from typing import Any

from ....pipeline.checkpoint.files import FileEntry
from ....pipeline.checkpoint.manifest import COMPLETE, CheckpointManifest
from ....pipeline.checkpoint.saved_ledger import SavedLedger
from ....pipeline.checkpoint.store.addresses import part_target
from ....pipeline.config.data import DataSection
from ....pipeline.config.job import Job
from ....pipeline.data.files.paths import match_files
from ....pipeline.data.span import OF_ALL, Span
from ....pipeline.errors import ClusterError, LostNodeError, ResourceError
from ....pipeline.text.format import data_size, duration
from ....pipeline.text.wall_clock import timestamp
from ....pipeline.types import TRAINING_ITEMS
from ....pipeline.wire.control.base import Request
from ....pipeline.wire.control.orders import ComposeModel, WriteCheckpoint, WriteCheckpointReply
from ....pipeline.wire.field_checks import values_of
from ....pipeline.wire.tasks import post
from ....sync_algos.contract.model_origin import ModelOrigin
from ...control.membership import Member
from ..server import CoordinatorServer
from ..state.changes import CheckpointWritten
from ..state.job import JobState
from ..state.outcome import FinalModel


@dataclass(frozen=True)
class CheckpointLedger:
    """The ledger at one moment: trained batches, and this run's `LedgerTotals`.

    `complete` says whether the batches are those of the whole input.
    """

    ledger: SavedLedger
    totals: Mapping[str, int]
    complete: bool

    @classmethod
    def of(cls, state: JobState) -> CheckpointLedger:
        """Copy both now. Call it on the coordinator's loop, which changes them."""
        return cls(state.ledger.saved(), dict(vars(state.ledger.totals)), state.ledger.complete)


async def manifest_of(
    state: JobState, files: list[FileEntry], model: str, snapshot: CheckpointLedger
) -> CheckpointManifest:
    """Build the manifest of these files.

    `model` describes the model of the dense part in words. Call it on the coordinator's loop; the files of
    the input, which may be many, are looked at on a thread.
    """
    spans, classes = state.ledger.queue.spans, state.training.input.id_classes
    known = state.origin.input_is_known or cannot_be_planned_again(state.job.data, spans)
    described = await asyncio.to_thread(_input_of, spans, known=known)
    return CheckpointManifest(
        created_at=timestamp(),
        run=state.folder.name,
        job=state.job.model_dump(mode="json"),
        job_digest=state.job.digest,
        model=model,
        examples_trained=snapshot.ledger.examples,
        files=files,
        plan={
            "nodes": state.job.embedding.nodes,
            "tables": {
                table.name: {
                    "rows": table.rows,
                    "dim": table.dim,
                    "optimizer": table.optimizer,
                    # In Parquet an id may be text or an integer; record which was read.
                    "ids": next(
                        (classes[column.name] for column in table.columns if column.name in classes), None
                    ),
                }
                for table in state.job.tables
            },
        },
        ledger={
            **snapshot.totals,
            COMPLETE: snapshot.complete,
            "restored_examples": state.ledger.restored_examples,
            "input": described,
        },
    )


def cannot_be_planned_again(data: DataSection, spans: Sequence[Span]) -> bool:
    """Return whether a resumed run needs the spans themselves.

    Files came while the job trained, and may be gone, or a topic has more messages by then.
    """
    return data.follow or (data.trains_on_whole_spans and any(span.kind == "offsets" for span in spans))


def _input_of(spans: Sequence[Span], *, known: bool) -> dict[str, Any]:
    described = describe_input(spans)
    return described | {"known": [values_of(span) for span in spans]} if known else described


def describe_input(spans: Sequence[Span]) -> dict[str, Any]:
    """Describe the input that a resumed run must find unchanged.

    The keys are `digest`, that of the plan of spans, and `files`. For each path, `files` has the number of
    `spans`, the `stop` of the last one, and the `bytes` of the file (None if it is not on this machine's
    disk). A part of a prepared folder also has `prepared`, the digest of the folder's manifest.
    """
    files: dict[str, dict[str, Any]] = {}
    digest = hashlib.sha256()
    for span in spans:
        place = span.number, span.path, span.kind, span.start, span.stop, span.part, span.first, span.last
        digest.update(repr(place).encode())
        if span.path not in files:
            files[span.path] = {"spans": 0, "stop": 0, "bytes": _size(span.path)}
        known = files[span.path]
        known["spans"] += 1
        known["stop"] = max(known["stop"], span.stop)
        if span.prepared and not span.prepared.startswith(OF_ALL):
            known["prepared"] = span.prepared
    return {"digest": digest.hexdigest(), "files": files}


def scored_digest(job: Job, spans: Sequence[Span]) -> str:
    """Return the hex SHA-256 of what validations score: the rows, and what ranks them.

    Scores of one metric with equal digests are comparable. Raises DataError for a catalogue that is gone.
    """
    described, rule = describe_input(spans), job.validation
    if rule.group or rule.items:
        files = [] if rule.items in ("", TRAINING_ITEMS) else match_files([rule.items])
        items = {path: _size(path) for path in files}
        described["ranked"] = [rule.group, rule.items, rule.exclude_trained, items]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def input_differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe how two inputs differ; empty if they do not."""
    if saved["digest"] == now["digest"] and saved["files"] == now["files"]:
        return []
    old, new = saved["files"], now["files"]
    differences = [f"{path} is missing" for path in old if path not in new]
    differences += [f"{path} was not there" for path in new if path not in old]
    for path in (path for path in old if path in new):
        if old[path].get("prepared") != new[path].get("prepared"):
            differences.append(f"{path} was prepared again")
        elif old[path]["bytes"] != new[path]["bytes"]:
            differences.append(_other_size(path, old, new))
        elif old[path] != new[path]:
            differences.append(
                f"{path} is cut into {new[path]['spans']} spans instead of {old[path]['spans']}"
            )
    return differences or ["the spans are cut differently"]


def changed_files(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe the files of both inputs whose sizes differ."""
    old, new = saved["files"], now["files"]
    return [
        _other_size(path, old, new)
        for path in old
        if path in new and None not in (old[path]["bytes"], new[path]["bytes"])
        if old[path]["bytes"] != new[path]["bytes"]
    ]


def _other_size(path: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    return f"{path} has {new[path]['bytes']} bytes instead of {old[path]['bytes']}"


def _size(path: str) -> int | None:
    try:
        return os.path.getsize(path)
    except OSError:
        return None


# Reserved for the ledger, the logs and the report, which may be on the same volume: a checkpoint must not
# make them fail.
RESERVE_BYTES = 64 << 20
_FLOAT_BYTES = 4
# Vectors as long as the dense model beside the nodes' own parts: the final model and its moving average, and
# at most two of the algorithm's state, or a center.
_DENSE_VECTORS = 4


def estimated_bytes(members: Iterable[Member], dense_elements: int) -> int:
    """Estimate a checkpoint's size in bytes."""
    parts = sum(member.facts.checkpoint_bytes for member in members)
    return parts + _DENSE_VECTORS * _FLOAT_BYTES * dense_elements


def require_room(folder: Path, needed_bytes: int) -> None:
    """Raise ResourceError if a checkpoint would not fit on the disk."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + RESERVE_BYTES:
        raise ResourceError(
            f"{data_size(free)} are free; a checkpoint takes about {data_size(needed_bytes)}, and"
            f" {data_size(RESERVE_BYTES)} must stay free",
            where=str(folder),
            remedy="free space there, or set run.directory to another place",
        )


def require_all_shards(state: JobState) -> list[Member]:
    """Return the embedding nodes; raise LostNodeError if one is incomplete."""
    if state.vacancies.empty_shards() or not state.ledger.owed.has_all_shards:
        raise LostNodeError("rows are lost with an embedding node")
    return state.members.alive("embedding")


# A node that has not written its part in this time has failed.
PART_SECONDS = 600.0
# A longer pause for a shard's copy is reported as an event.
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


class RunningCheckpoint:
    """Take checkpoints of a job during training. Runs on the coordinator's loop.

    Training does not wait for a disk. Pushes and lookups of an embedding shard wait while a few MB of
    rows are copied in memory (see `nodes/embedding/shard_checkpoints.py`). A shard without memory for what is
    copied at once refuses.

    First the ledger is copied. Then every embedding shard copies its rows, with the set of applied batches of
    the moment when it has all.
    A batch is in the ledger only once every shard has applied it, so each shard's part has all batches of
    the ledger's part, and perhaps more. After a resume these are trained again, and the shards that have them
    skip them (rule "A batch is a pure function"): nothing is lost or applied twice. Replicas and center are
    copied while workers and rounds write them, like every snapshot of a round.

    Attributes:
        newest_examples: trained examples of the newest one; None before this coordinator has written one.
    """

    def __init__(self, server: CoordinatorServer, model: FinalModel) -> None:
        self._server = server
        self._state = server.state
        self._checkpoints = server.state.checkpoints
        self._model = model
        self._files: frozenset[FileEntry] = frozenset()
        self._new_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._reported_pauses: set[str] = set()
        self.newest_examples: int | None = None

    async def take(self, *, yields: bool = False) -> CheckpointManifest:
        """Take one checkpoint, which replaces the previous one.

        With `yields` the nodes write it in the time that training leaves: nobody waits for it. Raises
        ShadowSyncError if a node cannot write its part or is lost; the previous one then stays.
        """
        began, calls = time.monotonic(), self._server.checkpoint_calls
        try:
            partial = await calls.run(self._checkpoints.begin)
            estimate = estimated_bytes(self._state.members.alive(), self._model.dense_elements)
            if (folder := self._checkpoints.folder) is not None:
                await calls.run(require_room, folder, max(estimate, self._new_bytes))
            manifest = await self._write(partial, yields=yields)
            # A replacement node may be reading the checkpoint that this one would replace.
            require_all_shards(self._state)
            await calls.run(self._commit, partial, manifest)
        except BaseException:
            # Frees the disk of a failed checkpoint, which matters most if it is full. After success there is
            # nothing to remove.
            await calls.clean_up(self._checkpoints.sweep)
            raise
        log.info(
            "wrote a checkpoint at %d examples in %.2f s, %s of it new",
            manifest.examples_trained,
            time.monotonic() - began,
            data_size(self._new_bytes),
        )
        return manifest

    def _commit(self, partial: str, manifest: CheckpointManifest) -> None:
        self._checkpoints.commit(partial, manifest)
        self._new_bytes = sum(entry.bytes for entry in manifest.files if entry not in self._files)
        self._files = frozenset(manifest.files)
        # Counted here, since the coroutine that awaits this thread may be cancelled.
        post(self._loop, lambda: self._count(manifest.examples_trained))

    def _count(self, examples: int) -> None:
        self.newest_examples = examples
        self._state.checkpointing.count_written()
        self._server.journal.decided(CheckpointWritten())

    async def _write(self, partial: str, *, yields: bool) -> CheckpointManifest:
        snapshot = CheckpointLedger.of(self._state)
        # At the same moment as the ledger: a later replacement shard would lack its batches.
        shards = require_all_shards(self._state)
        # The ledger's file must have everything that the checkpoint has.
        await self._server.store.flush()
        part = WriteCheckpoint(partial, self._model.origin, running=True, yields=yields)
        files = await self._server.checkpoint_calls.run(snapshot.ledger.write, part_target(partial))
        files += await self._parts([(shard, part) for shard in shards])
        trainers, syncs = self._state.members.alive("trainer"), self._state.members.alive("sync")
        if not trainers:
            raise ClusterError("no trainer is left to write its replica")
        saver = self._saver(trainers)
        others = [(member, part) for member in (*trainers, *syncs) if member is not saver]
        files += await self._parts([(saver, replace(part, dense=True)), *others])
        if self._model.origin in (ModelOrigin.CENTER, ModelOrigin.MEAN):
            whole = ComposeModel(part.directory, part.model, tuple(files), yields)
            files += await self._parts([(saver, whole)])
        if self._model.ema:
            average = self._model.compose_average(part, files, saver.info.index)
            files += await self._parts([(saver, average)])
        return await manifest_of(self._state, files, self._model.saved(saver.info.name), snapshot)

    def _saver(self, trainers: list[Member]) -> Member:
        """Return the trainer that writes the dense part.

        This is the first trainer; with peers, the first of the group, since an excluded trainer has the model
        and algorithm state of its last round.
        """
        if self._model.needs_peers:
            group = self._state.group.view.members
            return next((trainer for trainer in trainers if trainer.info.index in group), trainers[0])
        return trainers[0]

    async def _parts(
        self, requests: Sequence[tuple[Member, Request[WriteCheckpointReply]]]
    ) -> list[FileEntry]:
        """Return the files that these nodes wrote.

        Raises ClusterError if a node could not write, but only after all have replied: no node may still be
        writing to a folder that is about to be removed.
        """
        work = (self._server.call_or_raise(member, request, PART_SECONDS) for member, request in requests)
        replies = await asyncio.gather(*work, return_exceptions=True)
        files: list[FileEntry] = []
        for (member, _), reply in zip(requests, replies, strict=True):
            if isinstance(reply, BaseException):
                raise reply
            files += reply.files
            self._note_pause(member.info.name, reply.pause_seconds)
        return files

    def _note_pause(self, name: str, seconds: float) -> None:
        """Note a long pause once per node, since the pause hardly differs between checkpoints."""
        if seconds > PAUSE_SECONDS and name not in self._reported_pauses:
            self._reported_pauses.add(name)
            self._server.event(
                name, f"pushes and lookups waited {duration(seconds)} while a checkpoint copied the rows"
            )
