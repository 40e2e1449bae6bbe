"""What follows training: the last rounds, how far the replicas are apart, the checkpoint."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..pipeline.checkpoint.files import FileEntry
from ..pipeline.checkpoint.manifest import CheckpointManifest, begin, commit
from ..pipeline.errors import ClusterError
from .coordinator import Coordinator
from .divergence import CHUNK_ELEMENTS, Divergence
from .membership_state import Member
from .model_words import REPLICAS, ModelFacts
from .outcome import Outcome

ASK_SECONDS = 60.0
HOLD_SECONDS = 8.0


class Closing:
    """The last phases of a job, on the coordinator's loop; what comes of them goes into `outcome`."""

    def __init__(self, coordinator: Coordinator, outcome: Outcome, model: ModelFacts) -> None:
        self._c = coordinator
        self._job = coordinator.job
        self._outcome = outcome
        self._model = model

    async def settle(self, *, closing_round: bool) -> None:
        """Each trainer's closing round, if asked for, and the model that comes out where it takes all of
        them; then the counts of synchronization. Rounds with a center are run one after the other, those
        of a group together."""
        trainers = self._c.members.alive("trainer")
        if self._model.needs_peers:
            await self._settle_together(trainers, closing_round=closing_round)
        elif closing_round:
            for trainer in trainers:
                answer = await self._c.ask(trainer, "settle", {"closing_round": True}, self._bound_seconds)
                if answer is not None:
                    self._note_settled({trainer.info.name: answer})
        if closing_round:
            await self._count_syncs()

    async def _settle_together(self, trainers: list[Member], *, closing_round: bool) -> None:
        """All at once, and again without those that die in it."""
        body = {"closing_round": closing_round}
        while trainers:
            view = self._c.group.form(trainer.info.index for trainer in trainers)
            await self._c.ask_all(trainers, "group", view.to_body(), ASK_SECONDS)
            answers = await self._c.ask_all(trainers, "settle", body, self._bound_seconds)
            self._note_settled(answers)
            left = [trainer for trainer in trainers if trainer.alive]
            if len(left) == len(trainers):
                return
            trainers = left

    @property
    def _bound_seconds(self) -> float:
        return 3 * self._job.sync.timeout_seconds + 5.0

    def _note_settled(self, answers: dict[str, dict[str, Any]]) -> None:
        for name, counts in answers.items():
            if name in self._outcome.trainers:
                self._outcome.trainers[name] |= counts
            if counts["model_ready"]:
                self._model.digests[name] = str(counts["model_digest"])

    async def _count_syncs(self) -> None:
        syncs = self._c.members.alive("sync")
        self._outcome.syncs = await self._c.ask_all(syncs, "hold", {}, HOLD_SECONDS)
        for name, answer in self._outcome.syncs.items():
            if orphaned := int(answer.get("orphaned_slices", 0)):
                # Contract 9: nobody knows whether the trainer had the answer before it died.
                self._outcome.notes.append(
                    f"{name} moved its slice at most {orphaned} times for exchanges that died with a trainer"
                )

    async def measure_divergence(self) -> None:
        """How far the replicas are apart, all elements of them."""
        trainers = self._c.members.alive("trainer")
        if len(trainers) < 2:
            return
        sums = Divergence(len(trainers))
        for start in range(0, self._model.dense_elements, CHUNK_ELEMENTS):
            body = {"start": start, "stop": min(start + CHUNK_ELEMENTS, self._model.dense_elements)}
            answers = await self._c.ask_all(trainers, "replica_chunk", body, ASK_SECONDS)
            if len(answers) < len(trainers):
                return
            sums.add([np.frombuffer(answer["values"], dtype=np.float32) for answer in answers.values()])
        self._outcome.divergence = sums.value()

    async def checkpoint(self) -> None:
        """Every node writes its files; the manifest comes last. Raises ClusterError if one cannot."""
        self._c.phase = "writing the checkpoint"
        members, model = self._c.members, self._model
        trainers = members.alive("trainer")
        if not trainers:
            self._outcome.notes.append("no checkpoint could be written, since no trainer is left")
            return
        directory = await asyncio.to_thread(begin, self._c.folder)
        first, rest = trainers[0], trainers[1:]
        body = {"directory": str(directory.resolve()), "dense": True, "model": model.origin}
        answer = await self._c.ask(first, "checkpoint", body, ASK_SECONDS)
        if answer is not None and not answer["ready"]:
            # The single model is lost, or not whole: what is left is a replica, and says so.
            lost = model.words
            model.origin = REPLICAS
            self._outcome.notes.append(f"{lost} is lost; the model is {first.info.name}'s replica")
            answer = await self._c.ask(first, "checkpoint", body | {"model": REPLICAS}, ASK_SECONDS)
        others = [*rest, *members.alive("embedding"), *members.alive("sync")]
        answers = await self._c.ask_all(others, "checkpoint", body | {"dense": False}, ASK_SECONDS)
        silent = [m.info.name for m in (first, *others) if m.info.name not in answers and m is not first]
        if answer is None or (set(silent) & {m.info.name for m in members.alive("embedding")}):
            raise ClusterError(
                f"no checkpoint: {', '.join(silent) or first.info.name} did not write its part"
            )
        files = [FileEntry(**f) for part in (answer, *answers.values()) for f in part["files"]]
        saved = model.saved(first.info.name)
        await asyncio.to_thread(commit, self._c.folder, self._manifest(files, saved))
        self._outcome.model_saved = saved
        self._note_disagreement(first, trainers)

    def _note_disagreement(self, first: Member, trainers: list[Member]) -> None:
        if self._model.single and self._model.digests:
            names = [trainer.info.name for trainer in trainers]
            others = [name for name in names if name not in self._model.agreeing(names)]
            if others:
                self._outcome.notes.append(
                    f"{', '.join(others)} ended with another model than {first.info.name}, whose model it is"
                )

    def _manifest(self, files: list[FileEntry], model: str) -> CheckpointManifest:
        return CheckpointManifest(
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            run=self._c.folder.name,
            job=self._job.model_dump(mode="json"),
            job_digest=self._job.digest,
            model=model,
            examples_trained=self._c.ledger.totals.distinct_examples,
            files=files,
            plan={
                "table_rows": list(self._job.table_rows),
                "dim": self._job.model.embedding_dim,
                "nodes": self._job.embedding.nodes,
            },
            ledger=dict(vars(self._c.ledger.totals)),
        )
