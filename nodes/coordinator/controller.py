"""Controller of a job's phases, from the first node to the report."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import cached_property

from ...pipeline.data.bad_rows import own_bad_rows
from ...pipeline.data.span import Span, to_runs
from ...pipeline.errors import ClusterError, ExitCode, ShadowSyncError
from ...pipeline.report.write import load_pictures
from ...pipeline.text.format import duration
from ...pipeline.wire.control.orders import Begin, ConnectPeers, Drain, Finish, SyncReplaced
from ..control.membership import require_same_plan, require_same_start
from ..control.replica_sampler import ReplicaSampler
from ..control.server import REQUEST_SECONDS
from .checkpoint.manager import CheckpointManager
from .evaluation import Evaluator, read_scores, sum_scores
from .input_follower import InputFollower
from .ledger.store import LedgerStore
from .monitoring.profiler import Profiler
from .server import DRAIN_SECONDS, HURRY_SECONDS, CoordinatorServer
from .shutdown import JobFinalizer
from .state.changes import GroupFormed, MembersStarted, TrainingBegan, TrainingEnded
from .state.outcome import FinalModel, Outcome, SavedCheckpoints, Score, Stop
from .state.phases import JobPhase
from .state.verdicts import lost_trainers, missing_nodes

log = logging.getLogger(__name__)

# At an interrupt a trainer finishes its current batch, and replies after at most five seconds.
HURRIED_TRAINER_SECONDS = 5.5


class JobController:
    """Run a job through its phases, on the coordinator's loop."""

    def __init__(
        self, server: CoordinatorServer, eval_spans: list[Span], validation_spans: list[Span]
    ) -> None:
        self._server = server
        self._state = server.state
        self._job = server.state.job
        self._eval_spans = eval_spans
        self._validation_spans = validation_spans
        self._checkpoints: CheckpointManager | None = None
        self._profiler: Profiler | None = None
        self._outcome = Outcome()
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
            if state.stop is None and state.training_began is None:
                await self._connect_peers()
            if state.stop is None:
                await self._train()
        except ShadowSyncError as error:
            self._server.request_stop(Stop("failed", str(error), error.exit_code))
        self._outcome.stopped(self._state.stop)
        if self._state.members.started:
            await self._end()
        return self._outcome

    async def finish(self, exit_code: ExitCode, why: str) -> set[str]:
        """Tell every node to end; return the names of those that confirmed it."""
        self._state.finish(why or "finished")
        members = self._state.members
        everyone = [*members.alive(), *members.joining()]
        return set(await self._server.call_all(everyone, Finish(exit_code, why), 5.0))

    async def _start_members(self) -> None:
        """Wait until every node is ready, and close the membership."""
        while self._state.stop is None and self._state.members.missing():
            # One that is ready may die before the last one is.
            await self._wait_for_nodes()
        if self._state.stop is not None:
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
        if not await self._server.wait_for(lambda: not members.missing(), limit) and self._state.stop is None:
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
        if absent and self._state.stop is None:
            unmet = self._server.unmet
            reason = next((f": {unmet[name]}" for name in absent if name in unmet), "")
            raise ClusterError(f"{', '.join(absent)} did not connect to the others{reason}")

    def _require_one_job(self) -> None:
        """Raise ClusterError if the nodes do not fit together."""
        members = self._state.members
        facts = [member.facts for member in members.alive("trainer")]
        for found, what in (
            ({fact.weights_digest for fact in facts}, "first weights"),
            ({fact.dense_elements for fact in facts}, "models"),
        ):
            if len(found) > 1:
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
        return FinalModel.of(trainers[0].facts, self._job.sync.algorithm)

    def _record_fresh_parts(self) -> None:
        """Record as an event what the starting checkpoint lacked."""
        if not self._job.start.checkpoint:
            return
        facts = [member.facts for member in self._state.members.alive()]
        parameters = [name for fact in facts for name in fact.fresh_parameters]
        tables = [name for fact in facts for name in fact.fresh_tables]
        for what, found in (("dense parameters", parameters), ("tables", tables)):
            names = list(dict.fromkeys(found))
            if names:
                some = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                text = (
                    f"{what} that are not in {self._job.start.checkpoint} keep their initial values: {some}"
                )
                self._server.event("coordinator", text)

    async def _train(self) -> None:
        if self._state.training_began is None:
            await self._begin_training()
        self._coordinator_cpu_at_start = time.process_time()
        manager = self._checkpoints = CheckpointManager(self._server, self._model, self._validation_spans)
        if self._state.training_ended is None:
            await self._follow_training(manager)
        elif self._server.settings.profile_seconds is not None:
            self._outcome.note("the coordinator that died had the profile, so there is none")
        self._outcome.trained(self._state.divergence.points, self._state.training_ended or "")
        state = self._state
        in_vain = state.ledger.complete and not state.ledger.examples_so_far
        if in_vain and (stop := state.bad_batches.nothing_else()) is not None:
            self._server.request_stop(stop)
        log.info("training ends; complete: %s", state.ledger.complete)

    async def _seed_center(self) -> None:
        """Seed the center again; the trainer that was to do it may have died."""
        members, slices = self._state.members, self._state.slices
        trainers, syncs = members.alive("trainer"), members.alive("sync")
        if not trainers or len(trainers) == len(members.everyone("trainer")):
            return
        # All trainers still have the same weights, and a slice that has its first value keeps it.
        for node in syncs:
            await self._server.call(
                trainers[0], SyncReplaced(slices[node.info.token], node.info), REQUEST_SECONDS
            )

    async def _begin_training(self) -> None:
        await self._seed_center()
        members = self._state.members
        cpu_seconds = {m.info.name: float(m.metrics.get("cpu_seconds", 0.0)) for m in members.alive()}
        progressive = tuple(to_runs(self._state.input.progressive))
        begin = Begin(self._state.ledger.examples_so_far, progressive)
        await self._server.call_all(members.alive("trainer"), begin, REQUEST_SECONDS)
        others = [member for member in members.alive() if member.info.role != "trainer"]
        await self._server.call_all(others, Begin(), REQUEST_SECONDS)
        self._state.begin_training(cpu_seconds)
        self._server.journal.decided(TrainingBegan(cpu_seconds))
        log.info("training starts")
        if members.gone():
            self._server.recover_dead()
        await self._server.notify()

    async def _follow_training(self, manager: CheckpointManager) -> None:
        """Take checkpoints and samples until the job is trained, ends early, or stops."""
        sampler = ReplicaSampler(self._server)
        sampling = self._server.spawn(sampler.run(self._model.dense_elements))
        checkpointing = self._server.spawn(manager.run())
        following = self._server.spawn(InputFollower(self._server).run())
        profiling = self._server.spawn(self._profile())
        try:
            await self._server.wait_for(self._is_trained)
        finally:
            for task in (sampling, checkpointing, following):
                task.cancel()
            # The profiler ends by itself with training, and keeps its measurements.
            await asyncio.gather(sampling, checkpointing, following, profiling, return_exceptions=True)
        if self._state.stop is None:
            early = "" if self._state.ledger.complete else self._ended_early
            self._state.end_training(early)
            self._server.journal.decided(TrainingEnded(early))

    async def _profile(self) -> None:
        seconds = self._server.settings.profile_seconds
        if seconds is not None:
            self._profiler = Profiler(self._server, seconds)
            await self._profiler.run()
            self._outcome.profiled(self._profiler.profile())
            if self._outcome.profile is None and self._profiler.ended:
                self._outcome.note("no trainer answered in time, so nothing was measured")

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
        if state.stop is None and not state.ledger.owed.has_all_shards:
            text = "an embedding node died as training ended, and its rows are lost"
            self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH, lost_shard=True))
        elif state.stop is None and not state.members.alive("trainer"):
            # Training has ended, for example by its patience, before another one had joined.
            self._server.request_stop(lost_trainers())
        self._outcome.stopped(state.stop)

    async def _end(self) -> None:
        self._require_whole_model()
        stop, manager = self._outcome.stop, self._checkpoints
        if stop is not None:
            await self._close_checkpoints()
        elif self._job.report.pictures:
            # Nodes compute and write meanwhile. If it fails, so does the report's writer, which says so.
            asyncio.get_running_loop().run_in_executor(None, load_pictures)
        await self._drain(hurry=stop is not None)
        try:
            if not self._state.ledger.examples_so_far:
                self._outcome.note("no checkpoint was written, since nothing was trained")
                return
            finalizer = JobFinalizer(self._server, self._outcome, self._model, hurry=stop is not None)
            if stop is None:
                await finalizer.measure_divergence()
            await finalizer.finalize_trainers(closing_round=stop is None)
            if self._profiler is not None:
                self._outcome.note("no checkpoint was written, since this is a profile")
                return
            if not self._state.ledger.owed.has_all_shards:
                self._require_whole_model()
                self._outcome.note("no checkpoint could be written, since rows are lost")
                self._note_older_checkpoint()
                return
            last = None
            if stop is not None and stop.diverged and manager is not None and manager.written:
                self._outcome.note("the checkpoint that was written during training is kept")
            else:
                self._state.enter(JobPhase.CHECKPOINT)
                last = await finalizer.checkpoint()
                self._note_older_checkpoint()
            if stop is None and manager is not None:
                self._state.enter(JobPhase.VALIDATING)
                await manager.finish(last)
            if stop is None and self._eval_spans and self._state.stop is None:
                self._state.enter(JobPhase.EVALUATING)
                await Evaluator(self._server, self._outcome, self._model, self._eval_spans).run()
                await self._score_best()
        except ShadowSyncError as error:
            if stop is None:
                self._outcome.stopped(Stop("failed", str(error), error.exit_code))
            self._outcome.note(str(error))
            self._note_older_checkpoint()
        finally:
            await self._close_checkpoints()
            self._outcome.stopped(self._state.stop)

    def _note_older_checkpoint(self) -> None:
        """Record which checkpoint there is, if the last one was not written."""
        manager = self._checkpoints
        if self._outcome.model_saved is not None or manager is None:
            return
        newest, trained = manager.newest_examples, self._state.ledger.examples_so_far
        if newest == trained:
            has = f"all {trained:,} trained examples"
            self._outcome.keeps_older(f"the checkpoint that was written during training has {has}")
        elif newest is not None:
            has = f"it has {newest:,} of {trained:,} trained examples"
            self._outcome.keeps_older(f"the last checkpoint is older: {has}")
        elif manager.written:
            # By a coordinator that died.
            self._outcome.keeps_older("the last checkpoint is older")
        elif self._job.start.resume:
            self._outcome.keeps_older("the last checkpoint is the one that was resumed")

    async def _close_checkpoints(self) -> None:
        manager = self._checkpoints
        if manager is None:
            return
        await manager.cancel()
        found = manager.validation
        validation = found if found.points or found.failed or found.skipped else None
        self._outcome.checkpoints_taken(
            SavedCheckpoints(manager.written, manager.failed, validation, manager.best_is_last)
        )

    async def _score_best(self) -> None:
        """Score the best checkpoint on the held-out files, unless it is the last."""
        manager = self._checkpoints
        if manager is None or manager.validation.best is None or manager.best_is_last:
            return
        self._state.enter(JobPhase.EVALUATING_BEST)
        try:
            score = await self._server.unless_stopped(manager.score_best(self._eval_spans))
        except ShadowSyncError as error:
            # The job itself succeeded, and its last model is scored.
            self._outcome.note(f"the best checkpoint could not be scored on the held-out files: {error}")
            return
        if score is not None and score.sums.examples:
            model = f"{score.model}, the best by validation, after {score.examples_trained:,} examples"
            bad_rows = own_bad_rows(self._eval_spans, score.bad_rows)
            self._outcome.evaluated_best(Score(model, [score.sums], bad_rows))

    async def _drain(self, *, hurry: bool) -> None:
        """End deliveries, then training.

        Afterwards every delivery is trained, returned, or in flight, as far as the nodes could say.
        """
        members, outcome, store = self._state.members, self._outcome, self._server.store
        self._state.enter(JobPhase.STOPPING if hurry else JobPhase.CLOSING)
        run, sync = self._job.run, self._job.sync
        # Wait for a stalled node until it replies or is declared dead.
        short = HURRY_SECONDS if hurry else run.node_timeout_seconds + DRAIN_SECONDS
        readers = await self._server.call_all(members.alive("reader"), Drain({}), short)
        outcome.readers_drained({name: reply.counts for name, reply in readers.items()})
        sequences = {name: reply.sequences for name, reply in readers.items()}
        # By then a trainer that is declared dead has lost its batches to others, so nothing depends on its
        # reply. An interrupt cannot wait so long.
        patience = run.node_timeout_seconds + sync.timeout_seconds + DRAIN_SECONDS
        patience = HURRIED_TRAINER_SECONDS if hurry else patience
        drain = Drain(sequences, hurry=hurry)
        trainers = await self._server.call_all(members.alive("trainer"), drain, patience)
        scores = read_scores(self._server, {name: one.progressive for name, one in trainers.items()})
        trainers = {name: reply for name, reply in trainers.items() if name in scores}
        replies = {name: reply.counts | {"in_flight": reply.in_flight} for name, reply in trainers.items()}
        progressive = sum_scores(scores.values())
        unstopped = [name for name, reply in trainers.items() if not reply.stopped]
        outcome.trainers_drained(self._state.left_counts | replies, progressive, unstopped)
        left_out = {*await store.run(LedgerStore.returned_and_left_out), *self._state.ledger.left_out_again()}
        doubtful = Drain({}, batches=tuple(sorted(left_out)))
        shards = await self._server.call_all(members.alive("embedding"), doubtful, short)
        outcome.shards_drained(
            {name: reply.counts for name, reply in shards.items()},
            {name: reply.applied_of for name, reply in shards.items()},
        )
        for name, counts in outcome.shards.items():
            shard = name, int(counts.get("applied_batches", 0)), int(counts.get("repeated_pushes", 0))
            await store.run(lambda store, shard=shard: store.shard(*shard))  # type: ignore[misc]
        self._count_cpu()

    def _count_cpu(self) -> None:
        """Record CPU seconds of training by node.

        A dead node's seconds count up to its last heartbeat.
        """
        before = self._state.training_began
        if before is None:
            return
        for member in self._state.members.everyone():
            name = member.info.name
            used = float(member.metrics.get("cpu_seconds", 0.0)) - before.get(name, 0.0)
            self._outcome.used_cpu(name, max(0.0, used))
        self._outcome.used_cpu("coordinator", time.process_time() - self._coordinator_cpu_at_start)
