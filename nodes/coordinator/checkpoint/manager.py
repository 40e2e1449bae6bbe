"""Schedule of checkpoints and validations during training, and the best checkpoint."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from ....pipeline.checkpoint.best import BEST
from ....pipeline.checkpoint.best_note import BestNote
from ....pipeline.checkpoint.manifest import CheckpointManifest
from ....pipeline.config.job import Job
from ....pipeline.data.bad_rows import own_bad_rows
from ....pipeline.data.span import Span
from ....pipeline.errors import ShadowSyncError
from ....pipeline.metrics.ranking import metrics_by_label
from ....pipeline.performance.priority import BACKGROUND_NICE
from ....pipeline.text.format import counted, percent
from ....pipeline.wire.control.orders import PauseTraining
from ..server import CoordinatorServer
from ..state.changes import BestTakenOver, CheckpointScored, TrainingPaused
from ..state.outcome import FinalModel, Scored, ValidationState
from ..validation.scoring import CheckpointScore, CheckpointScorer
from .running import RunningCheckpoint, scored_digest


class IntervalTrigger:
    """Trigger at multiples of `every_examples` and `every_epochs`, or after `every_seconds`.

    The seconds count from the last trigger. 0 disables a condition. It has no clock: the caller gives the
    examples, seconds and complete epochs so far.
    """

    def __init__(self, every_examples: int, every_seconds: float, every_epochs: int = 0) -> None:
        self._every_examples = every_examples
        self._every_seconds = every_seconds
        self._every_epochs = every_epochs
        self._next_examples = 0
        self._next_epochs = 0
        self._last_seconds: float | None = None

    def now(self, examples: int, seconds: float, epochs: int = 0) -> bool:
        """Return whether it is due."""
        if self._last_seconds is None:
            self.done(examples, seconds, epochs)
        assert self._last_seconds is not None
        by_examples = self._every_examples > 0 and examples >= self._next_examples
        by_epochs = self._every_epochs > 0 and epochs >= self._next_epochs
        return by_examples or by_epochs or 0 < self._every_seconds <= seconds - self._last_seconds

    def done(self, examples: int, seconds: float, epochs: int = 0) -> None:
        """Record that it was done or tried at these examples, seconds and epochs."""
        self._last_seconds = seconds
        if self._every_examples:
            self._next_examples = (examples // self._every_examples + 1) * self._every_examples
        if self._every_epochs:
            self._next_epochs = (epochs // self._every_epochs + 1) * self._every_epochs


_Model: TypeAlias = tuple[int, frozenset[str]]
"""Examples trained, on which the rows depend, and the checksums of the dense model's files."""


def _model_of(manifest: CheckpointManifest) -> _Model:
    dense = frozenset(entry.sha256 for entry in manifest.files if entry.role == "dense")
    return manifest.examples_trained, dense


LOOK_SECONDS = 0.1
PAUSE_SECONDS = 5.0
MOST_WAITING = 8
"""Most pinned checkpoints that wait for validation; each keeps its files on the disk."""

log = logging.getLogger(__name__)


class CheckpointManager:
    """Take and validate checkpoints when they are due. Runs on the coordinator's loop.

    Each new checkpoint to validate is pinned, so that it stays. One validation runs at a time,
    in a process of its own; the others wait. If one fails, this is an event, and training continues.

    Args:
        spans: the spans of the validation part.
        trained: those of the training part.

    Attributes:
        ended_early: why training should end, once patience is exhausted.
        best_is_last: whether the last checkpoint of a finished job is also the best one.
        failed: number of checkpoints that failed during training.
    """

    def __init__(
        self,
        server: CoordinatorServer,
        model: FinalModel,
        spans: Sequence[Span],
        trained: Sequence[Span] = (),
    ) -> None:
        self._server = server
        self._state = server.state
        self._spans = spans
        self._checkpoints = server.state.checkpoints
        self._calls = server.checkpoint_calls
        self._taker = RunningCheckpoint(server, model)
        job = server.state.job
        self._checkpoint_due = IntervalTrigger(job.checkpoint.every_examples, job.checkpoint.every_seconds)
        self._validated_examples = -1
        every = job.validation
        self._validation_due = IntervalTrigger(every.every_examples, every.every_seconds, every.every_epochs)
        self._waiting: deque[str] = deque()
        self._pinned = 0
        self._models: dict[str, _Model] = {}
        self._scored_model: _Model | None = None
        self._yields = job.run.background_priority == "low"
        retrieval = job.retrieval
        needed = (trained, spans) if retrieval is not None and retrieval.needs_training_part else ()
        nice = BACKGROUND_NICE if self._yields and not every.wait else 0
        self._scorer = CheckpointScorer(nice, *needed)
        self._scoring: asyncio.Task[Any] | None = None
        self.validation = ValidationState(job.validation)
        # What a coordinator that died had taken over, and scored.
        before = self._state.checkpointing
        if before.best_before is not None:
            self.validation.adopt(before.best_before)
        for scored in before.scored:
            self.validation.add(scored)
        self._told_bad_rows = False
        self.ended_early = ""
        self.best_is_last = False
        self.failed = 0
        self._failed_in_a_row = 0

    @property
    def written(self) -> int:
        """Number of checkpoints written while training went on."""
        return self._state.checkpointing.written

    @property
    def newest_examples(self) -> int | None:
        """Trained examples of the newest one; None before this coordinator has written one."""
        return self._taker.newest_examples

    async def run(self) -> None:
        """Take and validate checkpoints during training, until cancelled."""
        await self._adopt()
        if self._state.checkpointing.pauses:
            # A coordinator that died may have left the trainers in it.
            await self._end_pause(self._state.checkpointing.pauses)
        while not self.ended_early:
            await self._take_what_is_due()
            await asyncio.sleep(LOOK_SECONDS)

    async def finish(self, last: CheckpointManifest | None = None) -> None:
        """Wait for the validation under way, and validate the last checkpoint.

        Call it after the `last` checkpoint of a job that was not stopped. If its model is the one that was
        scored last, as after a pause that ended training, it is not scored again. A stop ends both.
        """
        if not self._validates:
            return
        # From here on the end of the job waits for it.
        self._scorer.hurry()
        if self.ended_early:
            await self._skip_waiting()
        if self._scoring is not None:
            await self._server.unless_stopped(self._wait())
        if last is not None and self._scored_model == _model_of(last):
            self.best_is_last = self.validation.best is self.validation.points[-1]
        elif self._state.lifecycle.stop is None:
            before = self.validation.best
            await self._pin()
            await self._server.unless_stopped(self._score_waiting())
            self.best_is_last = self.validation.best is not before

    async def cancel(self) -> None:
        """End the current validation and its process; remove all pinned checkpoints."""
        if self._scoring is not None:
            self._scoring.cancel()
            await asyncio.gather(self._scoring, return_exceptions=True)
        await self._scorer.close()
        await self._calls.clean_up(self._checkpoints.drop_all)

    async def score_best(self, spans: Sequence[Span]) -> CheckpointScore:
        """Score the best checkpoint on other spans, once training has ended; raises as `CheckpointScorer`."""
        best = await asyncio.to_thread(lambda: self._checkpoints.best)
        return await self._scorer.score(best, spans)

    async def score_last(self, spans: Sequence[Span]) -> CheckpointScore:
        """Score the last checkpoint on other spans, as `score_best`."""
        self._pinned += 1
        last = await self._calls.run(self._checkpoints.pin, self._pinned)
        # Nobody trains any more, and a busy machine gives a low priority next to nothing.
        self._scorer.hurry()
        try:
            return await self._scorer.score(last, spans)
        finally:
            await self._calls.clean_up(partial(self._checkpoints.drop, last))

    @property
    def _validates(self) -> bool:
        return bool(self._spans)

    async def _adopt(self) -> None:
        """Take over the resumed run's best checkpoint, once; remove pins of a dead coordinator."""
        await self._calls.clean_up(self._checkpoints.drop_all)
        state, start = self._state.checkpointing, self._state.job.start
        # Later it would replace a better one of this run.
        if not (start.resume and self._validates) or state.best_before is not None or state.scored:
            return
        metric, restored = self.validation.settings.metric, self._state.ledger.restored_examples
        try:
            digest = await asyncio.to_thread(scored_digest, self._state.job, self._spans)

            def fits(note: BestNote) -> bool:
                # What came after the resumed checkpoint is trained anew, perhaps otherwise.
                comparable = (note.metric, note.input_digest) == (metric, digest)
                return comparable and note.examples <= restored

            note = await self._calls.run(self._checkpoints.adopt_best, start.checkpoint, fits)
        except ShadowSyncError as error:
            self._server.event(
                "coordinator", f"the best checkpoint of the resumed run was not taken over: {error}"
            )
            return
        if note is not None:
            best = Scored(note.examples, 0.0, note.value)
            self.validation.adopt(best)
            state.begin_with(best)
            self._server.journal.decided(BestTakenOver(best))

    async def _wait(self) -> None:
        if self._scoring is not None:
            await asyncio.wait({self._scoring})

    async def _take_what_is_due(self) -> None:
        if not self._state.ledger.owed.has_all_shards or not self._state.members.alive("trainer"):
            # Wait until it is known what the new shard lacks, and for a trainer to write the model.
            return
        ledger = self._state.ledger
        examples, seconds, epochs = ledger.examples_so_far, self._state.seconds(), ledger.complete_epochs
        # A model that has learned nothing since the last validation does not count against the patience.
        learned = examples > self._validated_examples
        validate = self._validates and learned and self._validation_due.now(examples, seconds, epochs)
        if validate:
            self._validation_due.done(examples, seconds, epochs)
            if len(self._waiting) >= MOST_WAITING:
                self._skip(examples)
                validate = False
        if not self._checkpoint_due.now(examples, seconds) and not validate:
            return
        if validate and self.validation.settings.wait:
            await self._take_in_pause()
        else:
            await self._take_and_pin(validate, yields=self._yields)
        self._checkpoint_due.done(examples, seconds)
        if validate:
            self._validated_examples = examples

    async def _take_in_pause(self) -> None:
        """Take a checkpoint, and have training wait until it is scored."""
        number, since = self._state.checkpointing.pause(), self._state.seconds()
        self._server.journal.decided(TrainingPaused())
        log.info("training waits for a validation")
        trainers = self._state.members.alive("trainer")
        await self._server.call_all(trainers, PauseTraining(number, True), PAUSE_SECONDS)
        try:
            await self._take_and_pin(True, yields=False)
            await self._wait()
        finally:
            self.validation.wait(self._state.seconds() - since)
        # If training ends now, nothing more is trained, unless a shard lacks batches.
        if not self.ended_early or not self._state.ledger.owed.is_settled:
            await self._end_pause(number)
        self._state.checkpointing.end_pause()

    async def _end_pause(self, number: int) -> None:

        def job_goes_on() -> bool:
            return self._state.lifecycle.stop is None

        trainers, go_on = self._state.members.alive("trainer"), PauseTraining(number, False)
        unable = "could not resume after a pause"
        await asyncio.gather(
            *(self._server.call_until_answered(trainer, go_on, unable, job_goes_on) for trainer in trainers)
        )

    async def _take_and_pin(self, validate: bool, *, yields: bool) -> None:
        manifest = await self._take(yields=yields)
        if manifest is None or not validate:
            return
        await self._pin(_model_of(manifest))
        if self.ended_early:
            await self._skip_waiting()
        elif self._scoring is None or self._scoring.done():
            self._scoring = self._server.spawn(self._score_waiting())

    def _skip(self, examples: int) -> None:
        if not self.validation.skipped:
            others = f"{MOST_WAITING} others wait: training is faster than scoring"
            self._server.event(
                "coordinator", f"the validation at {examples:,} examples is skipped, since {others}"
            )
        self.validation.skip()

    async def _take(self, *, yields: bool) -> CheckpointManifest | None:
        try:
            manifest = await self._taker.take(yields=yields)
        except ShadowSyncError as error:
            self._note_failure(error)
            return None
        if self._failed_in_a_row:
            failed = f"{self._failed_in_a_row:,} that failed"
            self._server.event("coordinator", f"a checkpoint was written again, after {failed}")
            self._failed_in_a_row = 0
        return manifest

    def _note_failure(self, error: ShadowSyncError) -> None:
        """Count a checkpoint that failed; of many in a row ever fewer are events."""
        self.failed += 1
        self._failed_in_a_row += 1
        row = self._failed_in_a_row
        which = "" if row == 1 else f" ({row:,} in a row)"
        what = f"a checkpoint could not be written during training{which}: {error}"
        if row.bit_count() == 1:
            self._server.event("coordinator", what)
        else:
            log.warning("%s", what)

    async def _pin(self, model: _Model | None = None) -> None:
        """Have the last checkpoint, which has this model, wait for its validation."""
        self._pinned += 1
        try:
            candidate = await self._calls.run(self._checkpoints.pin, self._pinned)
            self._waiting.append(candidate)
            if model is not None:
                self._models[candidate] = model
        except ShadowSyncError as error:
            self._server.event("coordinator", f"a checkpoint could not be validated: {error}")
            self.validation.fail()

    async def _score_waiting(self) -> None:
        while self._waiting:
            await self._validate(self._waiting.popleft())
            if self.ended_early:
                await self._skip_waiting()

    async def _skip_waiting(self) -> None:
        """Skip the checkpoints that wait.

        Their models are later than the one that was no better.
        """
        while self._waiting:
            self.validation.skip()
            await self._calls.clean_up(partial(self._checkpoints.drop, self._waiting.popleft()))

    async def _validate(self, candidate: str) -> None:
        """Score a pinned checkpoint; keep it if it is the best."""
        try:
            score = await self._scorer.score(candidate, self._spans)
            sums = score.sums
            self._tell_bad_rows(score)
            job = self._state.job
            metrics: dict[str, float | None] = {}
            if sums.examples:
                of_logits = job.model.has_logits
                metrics = metrics_by_label(sums, job.data.label_names, of_logits=of_logits)
            if score.ranking is not None:
                further = job.ranking_label
                metrics |= {f"{name}{further}": of for name, of in score.ranking.metrics().items()}
            metrics |= {} if score.retrieval is None else score.retrieval.metrics()
            metrics |= score.own_metrics
            value = metrics.get(self.validation.settings.metric)
            if value is None:
                self._fail(_why_undefined(score, job))
            else:
                known = {name: metric for name, metric in metrics.items() if metric is not None}
                scored = Scored(score.examples_trained, self._state.seconds(), value, known)
                await self._judge(candidate, scored)
                self._scored_model = self._models.get(candidate)
        except ShadowSyncError as error:
            self._fail(str(error))
        finally:
            self._models.pop(candidate, None)
            await self._calls.clean_up(partial(self._checkpoints.drop, candidate))

    def _tell_bad_rows(self, score: CheckpointScore) -> None:
        """Have an event say once which rows of the validation part are not scored."""
        bad_rows = own_bad_rows(self._spans, score.bad_rows)
        if not bad_rows or self._told_bad_rows:
            return
        self._told_bad_rows = True
        share = percent(bad_rows / (bad_rows + score.sums.examples), 1)
        rows = f"{counted(bad_rows, 'malformed row')} ({share}) of the validation part not scored"
        self._server.event("coordinator", f"{rows}; the first is {score.first_bad_row}")

    async def _judge(self, candidate: str, scored: Scored) -> None:
        if self.validation.improves(scored.value):
            digest = await asyncio.to_thread(scored_digest, self._state.job, self._spans)
            note = BestNote(self.validation.settings.metric, scored.value, scored.examples, digest)
            # Promote it before it counts as the best: if that fails, the best so far stays.
            try:
                await self._calls.run(self._checkpoints.promote, candidate, note)
            except asyncio.CancelledError as cancelled:
                if cancelled.__cause__ is None:
                    # The folder has it by now, so the report must have it, too.
                    self._record(scored)
                raise
        self._record(scored)
        if self.validation.exhausted and not self.ended_early:
            self.ended_early = self._why_exhausted()
            await self._server.notify()

    def _record(self, scored: Scored) -> None:
        best = self.validation.add(scored)
        self._state.checkpointing.scored.append(scored)
        self._server.journal.decided(CheckpointScored(scored))
        name, so_far = self.validation.settings.metric, self.validation.best
        assert so_far is not None
        words = f"the best so far, saved in {BEST}/" if best else f"the best is {so_far.value:.4f}"
        log.info("validated at %d examples: %s %.4f; %s", scored.examples, name, scored.value, words)

    def _why_exhausted(self) -> str:
        in_a_row, best = self.validation.without_improvement, self.validation.best
        assert best is not None
        many = "1 validation" if in_a_row == 1 else f"{in_a_row} validations in a row"
        metric = self.validation.settings.metric
        return f"{many} did not improve on {metric} {best.value:.4f} at {best.examples:,} examples"

    def _fail(self, why: str) -> None:
        self.validation.fail()
        self._server.event("coordinator", f"a validation failed: {why}")


def _why_undefined(score: CheckpointScore, job: Job) -> str:
    if score.retrieval is not None and not score.retrieval.queries:
        return "the validation part has no positive row to rank, so its metrics are not defined"
    if score.ranking is not None and not score.ranking.groups:
        return "no group of the validation part has a positive label, so its metrics are not defined"
    same = "all labels of the validation part are the same"
    if score.own_metrics:
        return f"{same}, or the metric of your own is not defined there"
    remedy = '; validation.metric = "recall@10" needs no other label' if job.model.has_towers else ""
    return f"{same}, so no metric is defined{remedy}"
