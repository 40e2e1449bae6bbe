"""The end of training: drains, closing rounds, divergence, the last checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...pipeline.checkpoint.files import FileEntry
from ...pipeline.checkpoint.manifest import CheckpointManifest
from ...pipeline.checkpoint.store.addresses import part_target
from ...pipeline.errors import ClusterError, LostNodeError, ShadowSyncError
from ...pipeline.text.format import counted
from ...pipeline.wire.control.orders import (
    ComposeModel,
    Drain,
    Finalize,
    FinalizeReply,
    ReadReplica,
    SetGroup,
    WriteCheckpoint,
    WriteCheckpointReply,
)
from ...sync_algos.contract.model_origin import ModelOrigin
from ..control.divergence import CHUNK_ELEMENTS, Divergence
from ..control.membership import Member
from ..control.server import REQUEST_SECONDS
from .checkpoint.running import PART_SECONDS, CheckpointLedger, manifest_of, require_all_shards
from .evaluation import read_progressive, sum_scores
from .ledger.store import LedgerStore
from .server import DRAIN_SECONDS, HURRY_SECONDS, CoordinatorServer
from .state.changes import GroupFormed
from .state.job import JobState
from .state.outcome import ClosingResult, CountsByNode, DrainedCounts, FinalModel, Outcome
from .state.phases import JobPhase


def checkpoint_failed(
    names: Sequence[str], part: str, refusals: Mapping[str, ShadowSyncError]
) -> ClusterError:
    """Build the error for nodes that did not write `part`.

    The error has the text and exit code of the first node that gave a reason, such as a full disk; without
    one, that of a death.
    """
    for name in names:
        if (why := refusals.get(name)) is not None:
            others = (
                f"; nor did {', '.join(other for other in names if other != name)}" if len(names) > 1 else ""
            )
            error = ClusterError(f"no checkpoint: {name} could not write {part}: {why}{others}")
            error.exit_code = why.exit_code
            return error
    return LostNodeError(f"no checkpoint: {', '.join(names)} did not write {part}")


# At an interrupt a trainer finishes its current batch, and replies after at most five seconds.
HURRIED_TRAINER_SECONDS = 5.5


async def drain(
    server: CoordinatorServer, cpu_seconds_at_start: float, *, hurry: bool = False
) -> DrainedCounts:
    """End deliveries, then training.

    Afterwards every delivery is trained, returned, or in flight, as far as the nodes could say.
    `cpu_seconds_at_start` are those of this process when training began.
    """
    state, members, store = server.state, server.state.members, server.store
    state.lifecycle.enter(JobPhase.STOPPING if hurry else JobPhase.CLOSING)
    run, sync = state.job.run, state.job.sync
    # Wait for a stalled node until it replies or is declared dead.
    short = HURRY_SECONDS if hurry else run.node_timeout_seconds + DRAIN_SECONDS
    readers = await server.call_all(members.alive("reader"), Drain({}), short)
    sequences = {name: reply.sequences for name, reply in readers.items()}
    # By then a trainer that is declared dead has lost its batches to others, so nothing depends on its
    # reply. An interrupt cannot wait so long.
    patience = run.node_timeout_seconds + sync.timeout_seconds + DRAIN_SECONDS
    patience = HURRIED_TRAINER_SECONDS if hurry else patience
    ended = Drain(sequences, hurry=hurry)
    trainers = await server.call_all(members.alive("trainer"), ended, patience)
    scores = await read_progressive(server, trainers)
    trainers = {name: reply for name, reply in trainers.items() if name in scores}
    replies = {name: reply.counts | {"in_flight": reply.in_flight} for name, reply in trainers.items()}
    progressive = sum_scores(scores.values())
    unstopped = frozenset(name for name, reply in trainers.items() if not reply.stopped)
    left_out = {*await store.run(LedgerStore.returned_and_left_out), *state.ledger.left_out_again()}
    doubtful = Drain({}, batches=tuple(sorted(left_out)))
    shards = await server.call_all(members.alive("embedding"), doubtful, short)
    for name, reply in shards.items():
        counts = int(reply.counts.get("applied_batches", 0)), int(reply.counts.get("repeated_pushes", 0))
        await store.run(partial(LedgerStore.shard, name=name, applied=counts[0], repeated=counts[1]))
    return DrainedCounts(
        readers={name: reply.counts for name, reply in readers.items()},
        trainers=state.training.left_counts | replies,
        unstopped=unstopped,
        progressive=progressive,
        shards={name: reply.counts for name, reply in shards.items()},
        applied_of={name: reply.applied_of for name, reply in shards.items()},
        cpu_seconds=_cpu_seconds(state, cpu_seconds_at_start),
    )


def _cpu_seconds(state: JobState, own_at_start: float) -> dict[str, float]:
    """Return CPU seconds of training by node.

    A dead node's seconds count up to its last heartbeat.
    """
    before = state.lifecycle.training_began
    if before is None:
        return {}
    members = state.members.everyone()
    now = {member.info.name: float(member.metrics.get("cpu_seconds", 0.0)) for member in members}
    used = {name: max(0.0, seconds - before.get(name, 0.0)) for name, seconds in now.items()}
    return used | {"coordinator": time.process_time() - own_at_start}


class JobFinalizer:
    """The last phases of a job, on the coordinator's loop.

    In a `hurry` (an interrupt has ten seconds), it does not wait for nodes that did not reply when they were
    drained.

    Args:
        outcome: the results of the phases before.
        note: called with sentences for the report.
    """

    def __init__(
        self,
        server: CoordinatorServer,
        outcome: Outcome,
        model: FinalModel,
        note: Callable[[str], None],
        *,
        hurry: bool = False,
    ) -> None:
        self._hurry = hurry
        self._note = note
        self._server = server
        self._state = server.state
        self._job = server.state.job
        self._outcome = outcome
        self._model = model

    async def finalize_trainers(self, *, closing_round: bool) -> ClosingResult:
        """Run each trainer's closing round, if requested, and finalize the model.

        Then collects the counts of synchronization. Rounds of a group run together, and those that a center
        merges, for each merge has all trainers so; others with a center run one after the other.
        """
        trainers = self._present("trainer", self._outcome.trainers)
        replies: dict[str, FinalizeReply] = {}
        if self._model.needs_peers:
            replies = await self._finalize_together(trainers, closing_round=closing_round)
        elif closing_round:
            finalize = Finalize(closing_round=True)
            at_once = [trainers] if self._model.merges else [[trainer] for trainer in trainers]
            for group in at_once:
                replies |= await self._server.call_all(group, finalize, self._bound_seconds)
            for name, reply in replies.items():
                self._model.finalized(name, reply)
        counts = {name: reply.counts for name, reply in replies.items()}
        return ClosingResult(counts, await self._count_syncs())

    async def _finalize_together(
        self, trainers: list[Member], *, closing_round: bool
    ) -> dict[str, FinalizeReply]:
        """Finalize all trainers at once; repeat without those that die meanwhile.

        Returns the last reply of each, of those too.
        """
        finalize, replies_by_name = Finalize(closing_round=closing_round), dict[str, FinalizeReply]()
        while trainers:
            view = self._state.group.form(trainer.info.index for trainer in trainers)
            self._server.journal.decided(GroupFormed(view))
            await self._server.call_all(trainers, SetGroup(view), self._reply_seconds)
            replies = await self._server.call_all(trainers, finalize, self._bound_seconds)
            for name, reply in replies.items():
                self._model.finalized(name, reply)
            replies_by_name |= replies
            left = [trainer for trainer in trainers if trainer.alive]
            if len(left) == len(trainers):
                break
            trainers = left
        return replies_by_name

    @property
    def _bound_seconds(self) -> float:
        return HURRY_SECONDS if self._hurry else 3 * self._job.sync.timeout_seconds + 5.0

    @property
    def _reply_seconds(self) -> float:
        return HURRY_SECONDS if self._hurry else REQUEST_SECONDS

    @property
    def _part_seconds(self) -> float:
        """Seconds for a node's part of the checkpoint, which may be large."""
        return HURRY_SECONDS if self._hurry else PART_SECONDS

    def _present(self, role: str, replied: Mapping[str, Any]) -> list[Member]:
        """Return a role's living nodes; in a hurry only those that were drained."""
        return [m for m in self._state.members.alive(role) if not self._hurry or m.info.name in replied]

    async def _count_syncs(self) -> CountsByNode:
        syncs = self._state.members.alive("sync")
        seconds = min(DRAIN_SECONDS, self._reply_seconds)
        replies = await self._server.call_all(syncs, Drain({}), seconds)
        counts_by_node = {name: reply.counts for name, reply in replies.items()}
        trainers = self._state.members.everyone("trainer")
        # One that left had all its answers.
        some_died = not all(trainer.alive or trainer.left for trainer in trainers)
        for name, counts in counts_by_node.items() if some_died else ():
            if orphaned := int(counts.get("orphaned_slices", 0)):
                # Rule "Whole or not at all": whether the trainer had the answer before it died is unknown.
                self._note(
                    f"{name} applied up to {counted(orphaned, 'exchange')} of a trainer that then died"
                )
        return counts_by_node

    async def measure_divergence(self) -> float | None:
        """Measure the divergence of the replicas over all elements; None if it cannot be."""
        trainers = self._state.members.alive("trainer")
        if len(trainers) < 2:
            return None
        sums = Divergence(len(trainers))
        for start in range(0, self._model.dense_elements, CHUNK_ELEMENTS):
            read = ReadReplica(start, min(start + CHUNK_ELEMENTS, self._model.dense_elements))
            replies = await self._server.call_all(trainers, read, REQUEST_SECONDS)
            if len(replies) < len(trainers):
                return None
            sums.add([np.frombuffer(reply.values, dtype=np.float32) for reply in replies.values()])
        return sums.value()

    async def checkpoint(self) -> CheckpointManifest | None:
        """Write the last checkpoint: the files of every node, then the manifest.

        Returns the manifest; None without a trainer. Raises ClusterError if a node cannot write. The previous
        checkpoint then stays and this one is removed, so that a full disk has room for the report.
        """
        trainers = self._present("trainer", self._outcome.trainers)
        if not trainers:
            self._note("no checkpoint could be written, since no trainer is left")
            return None
        checkpoints, calls = self._state.checkpoints, self._server.checkpoint_calls
        try:
            directory = await calls.run(checkpoints.begin)
            saver, manifest = await self._write(directory, trainers)
            await calls.run(checkpoints.commit, directory, manifest)
        except BaseException:
            await calls.clean_up(checkpoints.sweep)
            raise
        self._note_disagreement(saver, trainers)
        return manifest

    async def _write(self, directory: str, trainers: list[Member]) -> tuple[Member, CheckpointManifest]:
        """Write all files but the manifest.

        Returns the trainer whose model it is, and the manifest.
        """
        # Copied before the shards write: each of them then has all of these batches, in a hurry perhaps more.
        snapshot = CheckpointLedger.of(self._state)
        shards = require_all_shards(self._state)
        # The ledger's file must have everything that the checkpoint has.
        await self._server.store.flush()
        part = WriteCheckpoint(directory, self._model.origin)
        saver, written = await self._save_model(trainers, part)
        syncs = self._present("sync", self._outcome.closed.syncs)
        others = [*(trainer for trainer in trainers if trainer is not saver), *syncs]
        # In a hurry there may only be time for the rows that changed since the last checkpoint.
        rows = replace(part, running=self._hurry)
        calls = (
            self._server.call_all(nodes, p, self._part_seconds)
            for nodes, p in ((others, part), (shards, rows))
        )
        by_name = {name: reply for replies in await asyncio.gather(*calls) for name, reply in replies.items()}
        missing = [shard.info.name for shard in shards if shard.info.name not in by_name]
        if missing:
            raise checkpoint_failed(missing, "its part", self._server.unmet)
        files = [file for reply in (written, *by_name.values()) for file in reply.files]
        if self._model.ema:
            composers = [saver, *(trainer for trainer in trainers if trainer is not saver)]
            average = self._model.compose_average(part, files, saver.info.index)
            files += await self._compose(composers, average)
        files += await self._server.checkpoint_calls.run(snapshot.ledger.write, part_target(directory))
        return saver, await manifest_of(self._state, files, self._model.saved(saver.info.name), snapshot)

    async def _compose(self, trainers: Sequence[Member], order: ComposeModel) -> Sequence[FileEntry]:
        """Let the first trainer that can compose a model of the files; raises ClusterError if none can."""
        for trainer in trainers:
            reply = await self._server.call(trainer, order, self._part_seconds)
            if reply is not None:
                return reply.files
        names = [trainer.info.name for trainer in trainers]
        raise checkpoint_failed(names, "the moving average", self._server.unmet)

    @property
    def _center_readers(self) -> int:
        """Return how many trainers may take their time for the center.

        They read it one after the other.

        If the sync nodes do not answer the coordinator either, the others cannot read it. In a hurry there
        is time for two.
        """
        syncs = self._state.members.alive("sync")
        if any(sync.info.name not in self._outcome.closed.syncs for sync in syncs):
            return 1
        return 2 if self._hurry else len(self._state.members.alive("trainer"))

    async def _save_model(
        self, trainers: list[Member], part: WriteCheckpoint
    ) -> tuple[Member, WriteCheckpointReply]:
        """Let the first trainer that can write the final model.

        If none can, the single model is lost; a replica is saved instead, and a note says so. Raises
        ClusterError if no trainer replies.
        """
        names = self._model.by_promise(trainer.info.name for trainer in trainers)
        ordered = sorted(trainers, key=lambda trainer: names.index(trainer.info.name))
        for origin in dict.fromkeys((self._model.origin, ModelOrigin.REPLICAS)):
            patience = self._center_readers if origin == ModelOrigin.CENTER else len(ordered)
            for trainer in ordered:
                dense = replace(part, dense=True, model=origin)
                reply = await self._server.call(trainer, dense, self._part_seconds)
                if reply is not None and reply.ready:
                    saver = trainer.info.name
                    self._model.save_by(saver)
                    if origin != self._model.origin:
                        lost = self._model.words
                        self._note(f"{lost} is lost; the saved model is {saver}'s replica")
                        self._model.lose_single()
                    return trainer, reply
                # A refusal takes no time, and concerns only this trainer.
                patience -= trainer.alive and trainer.info.name not in self._server.unmet
                if not patience:
                    break
        raise checkpoint_failed(names, "the model", self._server.unmet)

    def _note_disagreement(self, saver: Member, trainers: list[Member]) -> None:
        if self._model.single and self._model.digests:
            names = [trainer.info.name for trainer in trainers]
            others = [name for name in names if name not in self._model.agreeing(names)]
            if others:
                self._note(
                    f"{', '.join(others)} ended with a different model; the saved one is {saver.info.name}'s"
                )
