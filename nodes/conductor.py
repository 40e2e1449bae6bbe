"""A job from its first node to its report: which phase follows which, and what each asks of whom."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from ..pipeline.data.span import to_runs
from ..pipeline.data.spans import Span
from ..pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from .closing import ASK_SECONDS, HOLD_SECONDS, HURRY_SECONDS, Closing
from .coordinator import Coordinator
from .divergence_curve import DivergenceCurve
from .evaluation import Evaluation
from .keeper import Keeper
from .model_words import ModelFacts
from .outcome import Kept, Outcome, Score
from .profiler import Profiler
from .progressive import take_progressive
from .same_plan import require_same_plan
from .same_start import require_same_start
from .scoring import score_checkpoint
from .stop import Stop

log = logging.getLogger(__name__)

# Of an interrupt: a trainer has a batch at hand, and says so after at most five.
HURRIED_TRAINER_SECONDS = 5.5


class Conductor:
    """Leads a job through its phases. Runs on the coordinator's loop."""

    def __init__(
        self, coordinator: Coordinator, eval_spans: list[Span], validation_spans: list[Span]
    ) -> None:
        self._c = coordinator
        self._job = coordinator.job
        self._eval_spans = eval_spans
        self._validation_spans = validation_spans
        self._keeper: Keeper | None = None
        self._profiler: Profiler | None = None
        self._outcome = Outcome()
        self._divergence = DivergenceCurve()

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
        self._c.ended_as = why or "finished"
        body = {"exit_code": int(exit_code), "why": why}
        return set(await self._c.ask_all(self._c.members.alive(), "finish", body, 5.0))

    async def _gather(self) -> None:
        limit = self._job.run.start_timeout_seconds
        members = self._c.members
        if not await self._c.until(lambda: not members.missing(), limit) and not self._c.stop.done():
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
        holders = [*members.alive("trainer"), *members.alive("embedding")]
        require_same_plan(self._c.placement.plan, holders)
        starts = [str(member.facts.get("start_digest", "")) for member in members.alive()]
        require_same_start([self._c.start_digest, *starts], self._job.start.checkpoint)
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
        self._note_fresh()
        self._model = ModelFacts.of(facts[0], self._job.sync.algorithm)
        members.started = True
        self._c.phase = "starting"
        group = self._c.group.form(m.info.index for m in members.alive("trainer")).to_body()
        meeting = {"members": infos, "group": group}
        answers = await self._c.ask_all(members.alive(), "meet", meeting, ASK_SECONDS)
        if len(answers) < len(infos) and not self._c.stop.done():
            absent = [info["name"] for info in infos if info["name"] not in answers]
            raise ClusterError(f"{', '.join(map(str, absent))} did not meet the others")

    def _note_fresh(self) -> None:
        """What the checkpoint that the job starts from did not have, as an event."""
        if not self._job.start.checkpoint:
            return
        facts = [member.facts for member in self._c.members.alive()]
        for what, key in (("dense parameters", "fresh_parameters"), ("tables", "fresh_tables")):
            names = list(dict.fromkeys(str(name) for fact in facts for name in fact.get(key, ())))
            if names:
                some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                text = f"{what} that {self._job.start.checkpoint} has not, with first values: {some}"
                self._c.event("coordinator", text)

    async def _train(self) -> None:
        members = self._c.members
        self._own_cpu_at_start = time.process_time()
        self._cpu_at_start = {m.info.name: float(m.metrics.get("cpu_seconds", 0.0)) for m in members.alive()}
        begin: dict[str, Any] = {
            "examples": self._c.ledger.examples_so_far,
            "progressive": to_runs(self._c.progressive),
        }
        await self._c.ask_all(members.alive("trainer"), "begin", begin, ASK_SECONDS)
        others = [member for member in members.alive() if member.info.role != "trainer"]
        await self._c.ask_all(others, "begin", {}, ASK_SECONDS)
        self._c.phase = "training"
        log.info("training starts")
        sampling = asyncio.ensure_future(self._divergence.run(self._c, self._model.dense_elements))
        keeper = self._keeper = Keeper(self._c, self._model, self._validation_spans)
        keeping = self._c.spawn(keeper.run())
        profiling = self._c.spawn(self._profile())
        try:
            await self._c.until(lambda: self._c.ledger.complete or bool(self._ended_early))
        finally:
            for task in (sampling, keeping):
                task.cancel()
            # It knows by itself that training is over, and takes down what it measured.
            await asyncio.gather(sampling, keeping, profiling, return_exceptions=True)
            self._outcome.divergence_curve = self._divergence.points
        if not self._c.ledger.complete and not self._c.stop.done():
            self._outcome.ended_early = self._ended_early
        in_vain = self._c.ledger.complete and not self._c.ledger.examples_so_far
        if in_vain and (stop := self._c.bad_batches.nothing_else()) is not None:
            self._c.request_stop(stop)
        log.info("training ends; complete: %s", self._c.ledger.complete)

    async def _profile(self) -> None:
        seconds = self._c.settings.profile_seconds
        if seconds is not None:
            self._profiler = Profiler(self._c, seconds)
            await self._profiler.run()
            self._outcome.profile = self._profiler.profile()
            if self._outcome.profile is None and self._profiler.ended:
                self._outcome.notes.append("no trainer answered in time, so that nothing was measured")

    @property
    def _ended_early(self) -> str:
        """Why training should end before its input, in words; empty if it should not."""
        profiled = self._profiler.ended if self._profiler is not None else ""
        return profiled or (self._keeper.ended_early if self._keeper is not None else "")

    async def _wind_up(self) -> None:
        stop = self._outcome.stop
        if stop is not None:
            await self._close_keeper()
        await self._hold(hurry=stop is not None)
        try:
            if not self._c.ledger.examples_so_far:
                self._outcome.notes.append("no checkpoint was written, since nothing was trained")
                return
            closing = Closing(self._c, self._outcome, self._model, hurry=stop is not None)
            if stop is None:
                await closing.measure_divergence()
            await closing.settle(closing_round=stop is None)
            if self._profiler is not None:
                self._outcome.notes.append("no checkpoint was written, since this is a profile")
                return
            if stop is not None and stop.lost_shard:
                self._outcome.notes.append("no checkpoint could be written, since rows are lost")
            elif stop is not None and stop.diverged and self._keeper is not None and self._keeper.written:
                self._outcome.notes.append("the checkpoint stays that was written while training")
            else:
                await closing.checkpoint()
            if stop is None and self._keeper is not None:
                self._c.phase = "validating"
                await self._keeper.finish()
            if stop is None and self._eval_spans and not self._c.stop.done():
                await Evaluation(self._c, self._outcome, self._model, self._eval_spans).run()
                await self._score_best()
        except ShadowSyncError as error:
            if stop is None:
                self._outcome.stop = Stop("failed", str(error), error.exit_code)
            self._outcome.notes.append(str(error))
        finally:
            await self._close_keeper()
            if self._outcome.stop is None and self._c.stop.done():
                self._outcome.stop = self._c.stop.result()

    async def _close_keeper(self) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        await keeper.cancel()
        validation = keeper.state if keeper.state.points or keeper.state.failed else None
        self._outcome.kept = Kept(keeper.written, keeper.failed, validation, keeper.best_is_last)

    async def _score_best(self) -> None:
        """The best checkpoint on the held-out files, where it is another than the last one."""
        keeper = self._keeper
        if keeper is None or keeper.state.best is None or keeper.best_is_last:
            return
        self._c.phase = "evaluating the best checkpoint"
        try:
            score = await keeper.unless_stopped(score_checkpoint(keeper.best_folder, self._eval_spans))
        except ShadowSyncError as error:
            # The job itself is well, and its last model is scored.
            self._outcome.notes.append(
                f"the best checkpoint could not be scored on the held-out files: {error}"
            )
            return
        if score is not None and score.sums.examples:
            model = f"{score.model}, the best by validation, after {score.examples_trained:,} examples"
            self._outcome.best_score = Score(model, [score.sums])

    async def _hold(self, *, hurry: bool) -> None:
        """Deliveries end, then training, so that every delivery is trained, returned, or in flight."""
        members, outcome = self._c.members, self._outcome
        self._c.phase = "stopping" if hurry else "closing"
        short = HURRY_SECONDS if hurry else HOLD_SECONDS
        outcome.readers = await self._c.ask_all(members.alive("reader"), "hold", {}, short)
        sequences = {name: answer["sequences"] for name, answer in outcome.readers.items()}
        body = {"sequences": sequences, "hurry": hurry}
        # A trainer that stands still is waited for until it answers, or is declared dead, and its batches are
        # somebody else's; so there is nothing that only it counts. An interrupt cannot wait so long.
        run, sync = self._job.run, self._job.sync
        patience = run.node_timeout_seconds + sync.timeout_seconds + HOLD_SECONDS
        patience = HURRIED_TRAINER_SECONDS if hurry else patience
        outcome.trainers = await self._c.ask_all(members.alive("trainer"), "hold", body, patience)
        outcome.progressive = take_progressive(outcome.trainers)
        doubtful = {"batches": [list(batch) for batch in self._c.store.returned_and_left_out()]}
        outcome.shards = await self._c.ask_all(members.alive("embedding"), "hold", doubtful, short)
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
        self._outcome.cpu_seconds["coordinator"] = time.process_time() - self._own_cpu_at_start
