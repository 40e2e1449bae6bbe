"""Controller of a job's phases, from the first node to the report."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...pipeline.checkpoint.manifest import CheckpointManifest
from ...pipeline.data.bad_rows import own_bad_rows
from ...pipeline.data.span import Span, to_runs
from ...pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from ...pipeline.report.run_folders.write import load_pictures
from ...pipeline.text.format import count, counted, duration
from ...pipeline.wire.control.orders import Begin, ConnectPeers, Finish, SyncReplaced
from ..control.membership import require_same_plan, require_same_start
from ..control.replica_sampler import ReplicaSampler
from ..control.server import REQUEST_SECONDS
from .checkpoint.manager import CheckpointManager
from .evaluation import Evaluator
from .input.follower import InputFollower
from .monitoring.profiler import Profiler
from .server import CoordinatorServer
from .shutdown import JobFinalizer, drain
from .state.changes import GroupFormed, MembersStarted, TrainingBegan, TrainingEnded
from .state.outcome import (
    FinalModel,
    Outcome,
    SavedCheckpoints,
    Score,
    Stop,
    TracedProfile,
    TrainingResult,
)
from .state.phases import JobPhase
from .state.verdicts import lost_trainers, missing_nodes

log = logging.getLogger(__name__)


class JobController:
    """Run a job through its phases, on the coordinator's loop.

    Args:
        admit_waiting: called when training begins, for trainers that wait while one goes through the start.
    """

    def __init__(
        self,
        server: CoordinatorServer,
        eval_spans: list[Span],
        validation_spans: list[Span],
        admit_waiting: Callable[[], None],
        train_spans: Sequence[Span] = (),
    ) -> None:
        self._server = server
        self._state = server.state
        self._job = server.state.job
        self._eval_spans = eval_spans
        self._validation_spans, self._train_spans = validation_spans, train_spans
        self._admit_waiting = admit_waiting
        self._checkpoints: CheckpointManager | None = None
        self._profiler: Profiler | None = None
        # Each phase adds its result; `stop` is only an error that ended the end itself.
        self._outcome = Outcome()
        self._notes: list[str] = []
        self._hurry = False
        self._last: CheckpointManifest | None = None
        self._coordinator_cpu_at_start = 0.0

    async def run(self) -> Outcome:
        """Run the whole job and return its outcome.

        Errors of nodes become a `Stop`, never an exception. After a takeover, finished phases are not
        repeated, except the end of the job, which starts over.
        """
        state = self._state
        try:
            if not state.members.started:
                await self._start_members()
            if state.lifecycle.stop is None and state.lifecycle.training_began is None:
                await self._connect_peers()
            if state.lifecycle.stop is None:
                await self._train()
        except ShadowSyncError as error:
            self._server.request_stop(Stop("failed", str(error), error.exit_code))
        if self._state.members.started:
            await self._end()
        return replace(
            self._outcome, stop=self._outcome.stop or self._state.lifecycle.stop, notes=tuple(self._notes)
        )

    async def finish(self, exit_code: ExitCode, why: str) -> set[str]:
        """Tell every node to end; return the names of those that confirmed it."""
        self._state.lifecycle.finish(why or "finished")
        members = self._state.members
        everyone = [*members.alive(), *members.joining()]
        return set(await self._server.call_all(everyone, Finish(exit_code, why), 5.0))

    async def _start_members(self) -> None:
        """Wait until every node is ready, and close the membership."""
        while self._state.lifecycle.stop is None and self._state.members.missing():
            # A node that is ready may die before the last one gets ready.
            await self._wait_for_nodes()
        if self._state.lifecycle.stop is not None:
            return
        self._require_one_job()
        self._record_fresh_parts()
        self._state.start_members()
        view = self._state.group.form(m.info.index for m in self._state.members.alive("trainer"))
        self._server.journal.decided(MembersStarted())
        await self._server.journal.decided(GroupFormed(view))

    async def _wait_for_nodes(self) -> None:
        limit = self._job.run.start_timeout_seconds
        members = self._state.members
        if (
            not await self._server.wait_for(lambda: not members.missing(), limit)
            and self._state.lifecycle.stop is None
        ):
            missing = missing_nodes(members, self._server.silence_of, self._job.run.node_timeout_seconds)
            raise ClusterError(
                f"these nodes were not ready within {duration(limit)}: {missing}",
                remedy="start them with --join, or raise run.start_timeout_seconds",
            )

    async def _connect_peers(self) -> None:
        members = self._state.members
        infos = [member.info for member in members.alive()]
        connect = ConnectPeers(tuple(infos), self._state.group.view)
        trainers = members.alive("trainer")
        # The others first: they accept nothing from a trainer that they do not know.
        others = [member for member in members.alive() if member.info.role != "trainer"]
        met = set(await self._server.call_all(others, connect, REQUEST_SECONDS))
        met |= set(await self._server.call_all(trainers, connect, REQUEST_SECONDS))
        # The others can begin without one that died meanwhile.
        absent = [member.info.name for member in members.alive() if member.info.name not in met]
        if absent and self._state.lifecycle.stop is None:
            unmet = self._server.unmet
            reason = next((f": {unmet[name]}" for name in absent if name in unmet), "")
            raise ClusterError(f"{', '.join(absent)} did not connect to the others{reason}")

    def _require_one_job(self) -> None:
        """Raise ClusterError if the nodes do not fit together."""
        members = self._state.members
        facts = [member.facts for member in members.alive("trainer")]
        for digests, what in (
            ({fact.weights_digest for fact in facts}, "first weights"),
            ({fact.dense_elements for fact in facts}, "models"),
        ):
            if len(digests) > 1:
                raise ClusterError(
                    f"the trainers built different {what}",
                    where="model.name",
                    remedy="draw random numbers from torch's own generator only, and use one version of it",
                )
        holders = [*members.alive("trainer"), *members.alive("embedding")]
        require_same_plan(self._state.placement.plan, holders)
        starts = [member.facts.start_digest for member in members.alive()]
        require_same_start([self._state.origin.digest, *starts], self._job.start.checkpoint)
        if any(fact.needs_center for fact in facts) and not members.alive("sync"):
            raise ClusterError(
                f"{self._job.sync.algorithm} needs a center, but the job has no sync node",
                where="sync.nodes",
                remedy="set sync.nodes to 1 or more",
            )

    @cached_property
    def _model(self) -> FinalModel:
        trainers = [member for member in self._state.members.everyone("trainer") if member.ready]
        ema = self._job.trainer.ema is not None
        return FinalModel.of(trainers[0].facts, self._job.sync.algorithm, ema=ema)

    def _record_fresh_parts(self) -> None:
        """Record as an event what the starting checkpoint lacked."""
        if not self._job.start.checkpoint:
            return
        facts = [member.facts for member in self._state.members.alive()]
        parameters = [name for fact in facts for name in fact.fresh_parameters]
        tables = [name for fact in facts for name in fact.fresh_tables]
        for what, parts in (("dense parameters", parameters), ("tables", tables)):
            names = list(dict.fromkeys(parts))
            if names:
                some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                text = (
                    f"{what} that are not in {self._job.start.checkpoint} keep their initial values: {some}"
                )
                self._server.event("coordinator", text)

    async def _train(self) -> None:
        if self._state.lifecycle.training_began is None:
            await self._begin_training()
        self._coordinator_cpu_at_start = time.process_time()
        manager = self._checkpoints = CheckpointManager(
            self._server, self._model, self._validation_spans, self._train_spans
        )
        state, profile = self._state, None
        if state.lifecycle.training_ended is None:
            profile = await self._follow_training(manager)
        elif self._server.settings.profile_seconds is not None:
            self._notes.append("the coordinator that died had the profile, so there is none")
        training = TrainingResult(
            state.lifecycle.training_ended or "", tuple(state.divergence.points), profile
        )
        self._outcome = replace(self._outcome, training=training)
        in_vain = state.ledger.complete and not state.ledger.examples_so_far
        if in_vain and (stop := state.training.bad_batches.nothing_else()) is not None:
            self._server.request_stop(stop)
        log.info("training ends; complete: %s", state.ledger.complete)

    async def _seed_center(self) -> None:
        """Seed the center again; the trainer that was to do it may have died."""
        members, slices = self._state.members, self._state.vacancies.slices
        trainers, syncs = members.alive("trainer"), members.alive("sync")
        if not trainers or all(trainer.alive for trainer in members.everyone("trainer")):
            return
        # All trainers still have the same weights, and a slice that has its first value keeps it.
        for node in syncs:
            await self._server.call(
                trainers[0], SyncReplaced(slices[node.info.token], node.info), REQUEST_SECONDS
            )

    async def _begin_training(self) -> None:
        await self._seed_center()
        members = self._state.members
        everyone = [*members.alive(), *members.joining()]
        cpu_seconds = {m.info.name: float(m.metrics.get("cpu_seconds", 0.0)) for m in everyone}
        progressive = tuple(to_runs(self._state.training.input.progressive))
        begin = Begin(self._state.ledger.examples_so_far, progressive)
        await self._server.call_all(members.alive("trainer"), begin, REQUEST_SECONDS)
        others = [member for member in members.alive() if member.info.role != "trainer"]
        await self._server.call_all(others, Begin(), REQUEST_SECONDS)
        self._state.lifecycle.begin_training(cpu_seconds)
        self._server.journal.decided(TrainingBegan(cpu_seconds))
        log.info("training starts")
        if members.gone():
            self._server.recover_dead()
        self._begin_start()
        await self._server.notify()

    def _begin_start(self) -> None:
        """Say which trainer goes through the start alone, if one does; have the others admitted."""
        waiting, start = self._state.lone_start.waiting(), count(self._job.start_examples)
        if not waiting:
            return
        text = f"goes through the start of {start} examples alone, before {counted(len(waiting), 'other')}"
        for trainer in self._state.members.alive("trainer"):
            self._server.event(trainer.info.name, text, logging.INFO)
        self._admit_waiting()

    async def _follow_training(self, manager: CheckpointManager) -> TracedProfile | None:
        """Take checkpoints and samples until the job is trained, ends early, or stops.

        Returns what was measured, if a profile was requested.
        """
        sampler = ReplicaSampler(self._server)
        sampling = self._server.spawn(sampler.run(self._model.dense_elements))
        checkpointing = self._server.spawn(manager.run())
        following = self._server.spawn(InputFollower(self._server).run())
        profiling = self._server.spawn(self._profile())
        try:
            await self._server.wait_for(self._is_trained)
        finally:
            others = (sampling, checkpointing, following)
            for task in others:
                task.cancel()
            # The profiler ends by itself with training, and keeps its measurements.
            await asyncio.gather(*others, profiling, return_exceptions=True)
        if self._state.lifecycle.stop is None:
            self._note_idle()
            early = "" if self._state.ledger.complete else self._ended_early
            self._state.lifecycle.end_training(early)
            self._server.journal.decided(TrainingEnded(early))
        return None if profiling.cancelled() or profiling.exception() is not None else profiling.result()

    def _note_idle(self) -> None:
        """Record that the input ended before all trainers and workers began."""
        start = count(self._job.start_examples)
        workers = self._job.trainer.workers
        # One that begins with the last example has trained none.
        begun = self._job.begun_workers(self._state.ledger.examples_so_far - 1)
        if 0 < begun < workers:
            self._notes.append(
                f"training ended when {begun} of a trainer's {workers} workers had begun: one begins after"
                f" every {start} examples (docs/quality.md)"
            )
        if waiting := self._state.lone_start.waiting():
            names = ", ".join(trainer.info.name for trainer in waiting)
            self._notes.append(
                f"training ended within the start of {start} examples, through which one trainer goes alone:"
                f" {names} trained nothing (docs/quality.md)"
            )

    async def _profile(self) -> TracedProfile | None:
        seconds = self._server.settings.profile_seconds
        if seconds is None:
            return None
        self._profiler = Profiler(self._server, seconds)
        await self._profiler.run()
        profile = self._profiler.profile()
        if profile is None and self._profiler.ended:
            self._notes.append("no trainer answered in time, so nothing was measured")
        return profile

    def _is_trained(self) -> bool:
        ledger = self._state.ledger
        return ledger.complete or (bool(self._ended_early) and ledger.owed.is_settled)

    @property
    def _ended_early(self) -> str:
        """Return why training should end before its input; empty if it should not."""
        profiled = self._profiler.ended if self._profiler is not None else ""
        return profiled or (self._checkpoints.ended_early if self._checkpoints is not None else "")

    def _require_whole_model(self) -> None:
        """Stop the job if training ended without a shard, or without trainers."""
        state = self._state
        if state.lifecycle.stop is None and not state.ledger.owed.has_all_shards:
            text = "an embedding node died as training ended, and its rows are lost"
            self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH, lost_shard=True))
        elif state.lifecycle.stop is None and not state.members.alive("trainer"):
            # Training has ended, for example by its patience, before another one had joined.
            self._server.request_stop(lost_trainers())

    async def _end(self) -> None:
        """Drain the nodes, then take the steps that the job still can."""
        self._require_whole_model()
        self._hurry = self._state.lifecycle.stop is not None
        if self._hurry:
            await self._close_checkpoints()
        elif self._job.report.pictures:
            # Nodes compute and write meanwhile. If it fails, so does the report's writer, which says so.
            asyncio.get_running_loop().run_in_executor(None, load_pictures)
        steps = (self._drain, self._close_training, self._save_model, self._validate_last, self._evaluate)
        try:
            for step in steps:
                if not await self._take(step):
                    break
        except ShadowSyncError as error:
            if not self._hurry:
                self._outcome = replace(self._outcome, stop=Stop("failed", str(error), error.exit_code))
            self._notes.append(str(error))
            self._note_older_checkpoint()
        finally:
            await self._close_checkpoints()

    async def _take(self, step: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Take a step; return whether to go on.

        An interrupt cuts it off. It is then taken again, in a hurry.
        """
        if not self._hurry:
            goes_on = await self._server.unless_interrupted(step())
            if goes_on is not None:
                return goes_on
            self._hurry = True
            await self._close_checkpoints()
        return await step()

    async def _drain(self) -> bool:
        drained = await drain(self._server, self._coordinator_cpu_at_start, hurry=self._hurry)
        self._outcome = replace(self._outcome, drained=drained)
        return True

    def _finalizer(self) -> JobFinalizer:
        return JobFinalizer(self._server, self._outcome, self._model, self._notes.append, hurry=self._hurry)

    async def _close_training(self) -> bool:
        """Run the closing round; return whether there is a model to save."""
        if not self._state.ledger.examples_so_far:
            self._notes.append("no checkpoint was written, since nothing was trained")
            return False
        if not self._hurry:
            divergence = await self._finalizer().measure_divergence()
            self._outcome = replace(self._outcome, divergence=divergence)
        closed = await self._finalizer().finalize_trainers(closing_round=not self._hurry)
        self._outcome = replace(self._outcome, closed=closed)
        if self._profiler is not None:
            self._notes.append("no checkpoint was written, since this is a profile")
        return self._profiler is None

    async def _save_model(self) -> bool:
        """Write the last checkpoint; return whether the model is whole."""
        state, manager = self._state, self._checkpoints
        if not state.ledger.owed.has_all_shards:
            self._require_whole_model()
            self._notes.append("no checkpoint could be written, since rows are lost")
            self._note_older_checkpoint()
            return False
        diverged = self._hurry and state.lifecycle.stop is not None and state.lifecycle.stop.diverged
        if diverged and manager is not None and manager.written:
            self._notes.append("the checkpoint that was written during training is kept")
        else:
            state.lifecycle.enter(JobPhase.CHECKPOINT)
            self._last = await self._finalizer().checkpoint()
            if self._last is not None:
                self._outcome = replace(self._outcome, model_saved=self._last.model)
            self._note_older_checkpoint()
        return True

    async def _validate_last(self) -> bool:
        if not self._hurry and self._checkpoints is not None:
            self._state.lifecycle.enter(JobPhase.VALIDATING)
            await self._checkpoints.finish(self._last)
        return True

    async def _evaluate(self) -> bool:
        """Score the last and the best model on the held-out files; return whether it did."""
        if not self._eval_spans or self._state.lifecycle.stop is not None:
            return False
        self._state.lifecycle.enter(JobPhase.EVALUATING)
        evaluator = Evaluator(self._server, self._model, self._eval_spans, self._notes.append)
        score = await evaluator.run()
        if score is not None:
            score = await self._with_last(score)
        self._outcome = replace(self._outcome, score=score)
        self._outcome = replace(self._outcome, best_score=await self._score_best())
        return True

    def _note_older_checkpoint(self) -> None:
        """Record which checkpoint there is, if the last one was not written."""
        if self._outcome.model_saved is None and (older := self._older_checkpoint()):
            self._outcome = replace(self._outcome, older_checkpoint=older)
            self._notes.append(older)

    def _older_checkpoint(self) -> str:
        """Describe the checkpoint that there is instead of the last one; empty if there is none."""
        manager = self._checkpoints
        if manager is None:
            return ""
        newest, trained = manager.newest_examples, self._state.ledger.examples_so_far
        if newest == trained:
            return f"the checkpoint that was written during training has all {trained:,} trained examples"
        if newest is not None:
            return f"the last checkpoint is older: it has {newest:,} of {trained:,} trained examples"
        if manager.written:
            # By a coordinator that died.
            return "the last checkpoint is older"
        return "the last checkpoint is the one that was resumed" if self._job.start.resume else ""

    async def _close_checkpoints(self) -> None:
        manager = self._checkpoints
        if manager is None:
            return
        await manager.cancel()
        scores = manager.validation
        validation = scores if scores.points or scores.failed or scores.skipped else None
        saved = SavedCheckpoints(manager.written, manager.failed, validation, manager.best_is_last)
        self._outcome = replace(self._outcome, saved_checkpoints=saved)

    async def _with_last(self, score: Score) -> Score:
        """Return the score with the last checkpoint's ranks among a catalogue and own metrics.

        Trainers have neither.
        """
        manager, job = self._checkpoints, self._job
        if manager is None or self._outcome.model_saved is None:
            return score
        if job.retrieval is None and not job.validation.own:
            return score
        try:
            last = await self._server.unless_stopped(manager.score_last(self._eval_spans))
        except ShadowSyncError as error:
            what = "metrics of validation.own" if job.retrieval is None else "ranks of the held-out items"
            self._notes.append(f"there are no {what}: {error}")
            return score
        return (
            score if last is None else replace(score, retrieval=last.retrieval, own_metrics=last.own_metrics)
        )

    async def _score_best(self) -> Score | None:
        """Score the best checkpoint on the held-out files, unless it is the last."""
        manager = self._checkpoints
        if manager is None or manager.validation.best is None or manager.best_is_last:
            return None
        self._state.lifecycle.enter(JobPhase.EVALUATING_BEST)
        try:
            score = await self._server.unless_stopped(manager.score_best(self._eval_spans))
        except ShadowSyncError as error:
            # The job itself succeeded, and its last model is scored.
            self._notes.append(f"the best checkpoint could not be scored on the held-out files: {error}")
            return None
        if score is None or not score.sums.examples:
            return None
        model = f"{score.model}, the best by validation, after {score.examples_trained:,} examples"
        bad_rows = own_bad_rows(self._eval_spans, score.bad_rows)
        rankings = [score.ranking] if score.ranking else []
        return Score(model, [score.sums], bad_rows, rankings, score.retrieval, score.own_metrics)
