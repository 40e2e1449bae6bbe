"""A job from its first node to its report: which phase follows which, and what each asks of whom."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..pipeline.checkpoint.files import FileEntry
from ..pipeline.checkpoint.manifest import CheckpointManifest, begin, commit
from ..pipeline.data.spans import Span
from ..pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from ..pipeline.metrics.quality import QualitySums
from .coordinator import Coordinator
from .divergence import CHUNK_ELEMENTS, Divergence
from .membership_state import Member
from .outcome import Outcome, Score
from .span_body import span_to_body
from .stop import Stop

log = logging.getLogger(__name__)

ASK_SECONDS = 60.0
HOLD_SECONDS = 8.0
EVAL_SECONDS = 24 * 3600.0
REPLICAS = "replicas"
CENTER = "center"


class Conductor:
    """Leads a job through its phases. Runs on the coordinator's loop."""

    def __init__(self, coordinator: Coordinator, eval_spans: list[Span]) -> None:
        self._c = coordinator
        self._job = coordinator.job
        self._eval_spans = eval_spans
        self._outcome = Outcome()
        self._pass = 0

    async def run(self) -> Outcome:
        """The whole job; gives what came of it. Errors of nodes become a `Stop`, never an exception."""
        try:
            await self._gather()
            if not self._c.stop.done():
                await self._meet()
            if not self._c.stop.done():
                await self._train()
        except ShadowSyncError as error:
            self._c.request_stop(Stop("failed", str(error), error.exit_code))
        self._outcome.stop = self._c.stop.result() if self._c.stop.done() else None
        if self._c.members.started:
            await self._wind_up()
        return self._outcome

    async def finish(self, exit_code: ExitCode, why: str) -> set[str]:
        """Tells every node to end; gives the names of those that said they do."""
        self._c.finishing = True
        self._c.phase = "done"
        body = {"exit_code": int(exit_code), "why": why}
        return set(await self._c.ask_all(self._c.members.alive(), "finish", body, 5.0))

    async def _until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits for a condition, a stop, or the timeout; whether the condition holds."""

        async def wait() -> None:
            async with self._c.changed:
                await self._c.changed.wait_for(condition)

        waiter = asyncio.ensure_future(wait())
        try:
            watched: set[asyncio.Future[Any]] = {waiter, self._c.stop}
            await asyncio.wait(watched, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return condition()

    async def _gather(self) -> None:
        limit = self._job.run.start_timeout_seconds
        members = self._c.members
        if not await self._until(lambda: not members.missing(), limit) and not self._c.stop.done():
            missing = ", ".join(f"{count} {role}" for role, count in members.missing().items())
            raise ClusterError(
                f"within {limit:g} s these nodes did not get ready: {missing}",
                remedy="start them with --join, or raise run.start_timeout_seconds",
            )

    async def _meet(self) -> None:
        members = self._c.members
        facts = [member.facts for member in members.alive("trainer")]
        for key, what in (("weights_digest", "first weights"), ("dense_elements", "models")):
            if len({fact[key] for fact in facts}) > 1:
                raise ClusterError(
                    f"the trainers built different {what}",
                    where="model.name",
                    remedy="draw random numbers from torch's own generator only, and use one version of it",
                )
        plans = {fact["plan_digest"] for fact in facts}
        plans |= {member.facts["plan_digest"] for member in members.alive("embedding")}
        if len(plans) > 1:
            raise ClusterError(
                "the nodes split the tables differently", remedy="use one version of shadowsync"
            )
        if any(fact["needs_center"] for fact in facts) and not members.alive("sync"):
            raise ClusterError(
                f"{self._job.sync.algorithm} needs a center and the job has no sync node",
                where="sync.nodes",
                remedy="set sync.nodes to 1 or more",
            )
        infos = [
            {"name": m.info.name, "role": m.info.role, "index": m.info.index, "token": m.info.token,
             "endpoint": m.info.endpoint}
            for m in members.alive()
        ]  # fmt: skip
        self._model = str(facts[0]["model_origin"])
        self._dense_elements = int(facts[0]["dense_elements"])
        members.started = True
        self._c.phase = "starting"
        answers = await self._c.ask_all(members.alive(), "meet", {"members": infos}, ASK_SECONDS)
        if len(answers) < len(infos) and not self._c.stop.done():
            absent = [info["name"] for info in infos if info["name"] not in answers]
            raise ClusterError(f"{', '.join(map(str, absent))} did not meet the others")

    async def _train(self) -> None:
        members = self._c.members
        self._cpu_at_start = {m.info.name: float(m.metrics.get("cpu_seconds", 0.0)) for m in members.alive()}
        await self._c.ask_all(members.alive("trainer"), "begin", {}, ASK_SECONDS)
        others = [member for member in members.alive() if member.info.role != "trainer"]
        await self._c.ask_all(others, "begin", {}, ASK_SECONDS)
        self._c.phase = "training"
        log.info("training starts")
        await self._until(lambda: self._c.ledger.complete)
        log.info("training ends; complete: %s", self._c.ledger.complete)

    async def _wind_up(self) -> None:
        stop = self._outcome.stop
        await self._hold(hurry=stop is not None)
        try:
            if not self._c.ledger.totals.trained_examples:
                self._outcome.notes.append("no checkpoint was written, since nothing was trained")
                return
            if stop is None:
                await self._measure_divergence()
                await self._settle()
            if stop is None or not stop.lost_shard:
                await self._checkpoint()
            else:
                self._outcome.notes.append("no checkpoint could be written, since rows are lost")
            if stop is None and self._eval_spans and not self._c.stop.done():
                await self._evaluate()
        except ShadowSyncError as error:
            if stop is None:
                self._outcome.stop = Stop("failed", str(error), error.exit_code)
            self._outcome.notes.append(str(error))
        finally:
            if self._outcome.stop is None and self._c.stop.done():
                self._outcome.stop = self._c.stop.result()

    async def _hold(self, *, hurry: bool) -> None:
        """Deliveries end, then training, so that every delivery is trained, returned, or in flight."""
        members, outcome = self._c.members, self._outcome
        self._c.phase = "stopping" if hurry else "closing"
        outcome.readers = await self._c.ask_all(members.alive("reader"), "hold", {}, HOLD_SECONDS)
        sequences = {name: answer["sequences"] for name, answer in outcome.readers.items()}
        body = {"sequences": sequences, "hurry": hurry}
        outcome.trainers = await self._c.ask_all(members.alive("trainer"), "hold", body, HOLD_SECONDS)
        outcome.shards = await self._c.ask_all(members.alive("embedding"), "hold", {}, HOLD_SECONDS)
        for name, answer in outcome.shards.items():
            self._c.store.shard(name, int(answer["applied_batches"]), int(answer["repeated_pushes"]))
        self._count_cpu()

    def _count_cpu(self) -> None:
        """CPU seconds of training by node: of those that died, up to their last heartbeat."""
        if not hasattr(self, "_cpu_at_start"):
            return
        for member in self._c.members.everyone():
            name = member.info.name
            used = float(member.metrics.get("cpu_seconds", 0.0)) - self._cpu_at_start.get(name, 0.0)
            self._outcome.cpu_seconds[name] = max(0.0, used)

    async def _settle(self) -> None:
        """The closing round of each trainer, then the counts of synchronization."""
        trainers = self._c.members.alive("trainer")
        for trainer in trainers:
            counts = await self._c.ask(trainer, "settle", {}, self._job.sync.timeout_seconds + 5.0)
            if counts is not None and trainer.info.name in self._outcome.trainers:
                self._outcome.trainers[trainer.info.name] |= counts
        syncs = self._c.members.alive("sync")
        self._outcome.syncs = await self._c.ask_all(syncs, "hold", {}, HOLD_SECONDS)
        for name, answer in self._outcome.syncs.items():
            if orphaned := int(answer.get("orphaned_slices", 0)):
                # Contract 9: nobody knows whether the trainer had the answer before it died.
                self._outcome.notes.append(
                    f"{name} moved its slice at most {orphaned} times for exchanges that died with a trainer"
                )

    async def _measure_divergence(self) -> None:
        trainers = self._c.members.alive("trainer")
        if len(trainers) < 2:
            return
        sums = Divergence(len(trainers))
        for start in range(0, self._dense_elements, CHUNK_ELEMENTS):
            body = {"start": start, "stop": min(start + CHUNK_ELEMENTS, self._dense_elements)}
            answers = await self._c.ask_all(trainers, "replica_chunk", body, ASK_SECONDS)
            if len(answers) < len(trainers):
                return
            sums.add([np.frombuffer(answer["values"], dtype=np.float32) for answer in answers.values()])
        self._outcome.divergence = sums.value()

    async def _checkpoint(self) -> None:
        """Every node writes its files; the manifest comes last. The model is the center's, or a replica."""
        self._c.phase = "writing the checkpoint"
        members = self._c.members
        trainers = members.alive("trainer")
        if not trainers:
            self._outcome.notes.append("no checkpoint could be written, since no trainer is left")
            return
        directory = await asyncio.to_thread(begin, self._c.folder)
        first, rest = trainers[0], trainers[1:]
        body = {"directory": str(directory.resolve()), "dense": True, "model": self._model}
        answer = await self._c.ask(first, "checkpoint", body, ASK_SECONDS)
        if answer is not None and not answer["ready"]:
            # The center is lost, or not whole: the model that is left is a replica, and says so.
            self._model = REPLICAS
            self._outcome.notes.append(f"the center is lost; the model is {first.info.name}'s replica")
            answer = await self._c.ask(first, "checkpoint", body | {"model": REPLICAS}, ASK_SECONDS)
        others = [*rest, *members.alive("embedding"), *members.alive("sync")]
        answers = await self._c.ask_all(others, "checkpoint", body | {"dense": False}, ASK_SECONDS)
        silent = [m.info.name for m in (first, *others) if m.info.name not in answers and m is not first]
        if answer is None or (set(silent) & {m.info.name for m in members.alive("embedding")}):
            raise ClusterError(
                f"no checkpoint: {', '.join(silent) or first.info.name} did not write its part"
            )
        files = [FileEntry(**f) for part in (answer, *answers.values()) for f in part["files"]]
        model = self._model_words(first)
        await asyncio.to_thread(commit, self._c.folder, self._manifest(files, model))
        self._outcome.model_saved = model

    def _model_words(self, first: Member) -> str:
        name = self._job.sync.algorithm
        return (
            f"the center ({name})" if self._model == CENTER else f"the replica of {first.info.name} ({name})"
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

    async def _evaluate(self) -> None:
        """One pass over the held-out files with the center, or one for each replica."""
        self._c.phase = "evaluating"
        if self._model == CENTER:
            sums = await self._score(CENTER, self._c.members.alive("trainer"))
            name = f"the center ({self._job.sync.algorithm})"
            scored = [sums] if sums is not None else []
        else:
            trainers = self._c.members.alive("trainer")
            passes = [await self._score(REPLICAS, [trainer]) for trainer in trainers]
            scored = [sums for sums in passes if sums is not None]
            count = len(scored)
            name = "the replica" if count == 1 else f"the mean of the {count} replicas' own scores"
            name += f" ({self._job.sync.algorithm})"
        if scored:
            self._outcome.score = Score(name, scored)

    async def _score(self, model: str, trainers: list[Member]) -> QualitySums | None:
        """One pass; repeated without them when trainers die in it. None if none is left."""
        while trainers and not self._c.stop.done():
            self._pass += 1
            body: dict[str, Any] = {"pass": self._pass, "model": model}
            ready = await self._c.ask_all(trainers, "prepare_eval", body, ASK_SECONDS)
            if not all(answer["ready"] for answer in ready.values()):
                raise ClusterError("the center could not be read for the evaluation")
            await self._deliver(trainers)
            results = await self._c.ask_all(trainers, "eval_result", body, ASK_SECONDS)
            if len(results) == len(trainers):
                total = QualitySums()
                for answer in results.values():
                    total.merge(QualitySums.from_array(np.frombuffer(answer["sums"], dtype=np.float64)))
                return total
            trainers = [trainer for trainer in trainers if trainer.alive]
        return None

    async def _deliver(self, trainers: list[Member]) -> None:
        """Lets the readers send the pass to these trainers; ends early when one of them dies."""
        readers = self._c.members.alive("reader")
        tokens = [trainer.info.token for trainer in trainers]
        asks = [
            self._c.ask(
                reader,
                "evaluate",
                {"pass": self._pass, "tokens": tokens, "spans": [span_to_body(s) for s in spans]},
                EVAL_SECONDS,
            )
            for reader, spans in ((r, self._eval_spans[at :: len(readers)]) for at, r in enumerate(readers))
        ]
        delivered = asyncio.gather(*asks)
        died = asyncio.ensure_future(self._until(lambda: not all(t.alive for t in trainers)))
        try:
            watched: set[asyncio.Future[Any]] = {delivered, died}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
            delivered.cancel()
