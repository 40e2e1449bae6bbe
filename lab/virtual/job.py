"""A job on emulated machines, from first batch to held-out score."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from ...nodes.control.divergence import CHUNK_ELEMENTS, SAMPLED_ELEMENTS, Divergence
from ...nodes.coordinator.input.label_rate import sampled_label_rates
from ...nodes.coordinator.ledger.records import LeftOut
from ...nodes.coordinator.state.bad_batches import BadBatchCounter
from ...nodes.worker.step import Stepper
from ...pipeline.config.job import Job
from ...pipeline.errors import JobFileError
from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.wire.messages import Delivery
from ...sync_algos.base import Algorithm, ModelOrigin
from ...sync_algos.catalog.registry import make_algorithm
from ...sync_algos.memory.meeting import weighted_mean
from .clock import run_in_virtual_time
from .links import VirtualNetwork
from .result import CURVE_POINTS, CurvePoint, LossWindow, VirtualLabel, VirtualResult
from .source import BatchSource
from .tables import VirtualTables
from .timing import Timing
from .trainer import VirtualTrainer


def run_virtual(job: Job, timing: Timing) -> VirtualResult:
    """Run a job on emulated machines, in this thread.

    The same job and timing give the same bytes. Raises what a job's nodes would raise for its settings or
    its input.
    """
    torch.set_num_threads(1)
    return run_in_virtual_time(VirtualJob(job, timing).run())


class VirtualJob:
    """The trainers, tables and links of one emulated job."""

    def __init__(self, job: Job, timing: Timing) -> None:
        self._job = job
        self._source = BatchSource(job, own_files=timing.own_files)
        self._tables = VirtualTables(job, timing)
        self._bad_batches = BadBatchCounter(job.trainer.max_bad_batches)
        # No time limit: the rate is of all rows of the sample, and so the same in every run.
        label_rates = sampled_label_rates(job, self._source.plan.train, seconds=None)
        self._trainers = [
            VirtualTrainer(
                index,
                job,
                timing,
                self._source,
                self._tables,
                label_rates,
                self._algorithm(),
                self._count,
                self._leave_out,
            )
            for index in range(job.trainer.count)
        ]
        replica = self._trainers[0].context.replica
        self._network = VirtualNetwork(job, timing, self._algorithm, replica.snapshot(replica.whole))
        for trainer in self._trainers:
            trainer.connect(self._network)
        self._examples = 0
        self._start_is_over = asyncio.Event()
        self._window = LossWindow()
        self._curve: list[CurvePoint] = []
        self._stride = -(-len(replica.weights) // SAMPLED_ELEMENTS)
        # The curve is thinned as it grows, since the length of the input is not known.
        self._every_examples = job.trainer.batch * job.trainer.count

    def _algorithm(self) -> Algorithm:
        return make_algorithm(self._job.sync.algorithm, self._job.sync.options)

    async def run(self) -> VirtualResult:
        """Train, close and score."""
        rounds = [asyncio.create_task(trainer.synchronize()) for trainer in self._trainers]
        training = asyncio.gather(self._begin(), *(trainer.train() for trainer in self._trainers[1:]))
        await self._until_trained(training, rounds)
        seconds = asyncio.get_running_loop().time()
        await self._end(rounds)
        divergence = self._divergence()
        await self._close()
        return self._result(seconds, divergence)

    async def _begin(self) -> None:
        """Train with the first trainer; let the others begin with it, or join it after the start."""
        first, *others = self._trainers
        first.begin()
        training = asyncio.create_task(first.train())
        if self._job.one_trainer_begins:
            start = asyncio.create_task(self._start_is_over.wait())
            # Its own input may end first.
            await asyncio.wait((training, start), return_when=asyncio.FIRST_COMPLETED)
            start.cancel()
            self._network.admit(len(self._trainers))
            for trainer in others:
                trainer.join(first)
        else:
            for trainer in others:
                trainer.begin()
        await training

    def _result(self, seconds: float, divergence: float | None) -> VirtualResult:
        counts = [trainer.rounds.metrics() for trainer in self._trainers]
        rounds = sum(count["rounds"] for count in counts)
        models = self._models()
        sums = self._score(models)
        progressive = QualitySums()
        for trainer in self._trainers:
            progressive.merge(trainer.progressive)
        return VirtualResult(
            ne=sums.ne if sums is not None else None,
            auc=sums.auc if sums is not None else None,
            training_ne=progressive.ne,
            examples=self._examples,
            iterations=[trainer.context.total_iterations() for trainer in self._trainers],
            rounds=rounds,
            gap_mean=sum(count["gap_sum"] for count in counts) / rounds if rounds else None,
            gap_max=max(count["gap_max"] for count in counts),
            early_rounds=[count["first_rounds"] for count in counts],
            staleness=self._tables.staleness,
            divergence=divergence,
            seconds=seconds,
            sync_bytes=self._network.sync_bytes,
            left_out=self._bad_batches.count,
            digest=hashlib.sha256(b"".join(model.numpy().tobytes() for model in models)).hexdigest(),
            curve=self._curve,
            labels=_by_label(sums, progressive, self._job.data.label_names),
        )

    async def _until_trained(
        self, training: asyncio.Future[list[None]], rounds: list[asyncio.Task[None]]
    ) -> None:
        """Wait for the end of training; raises the error of a failed round."""
        waiting: set[asyncio.Future[Any]] = {training, *(task for task in rounds if not task.done())}
        while not training.done():
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for ended in done:
                ended.result()

    async def _end(self, rounds: list[asyncio.Task[None]]) -> None:
        """Let no further round begin.

        Running rounds with a center complete; running rounds of a group end.
        """
        for trainer, task in zip(self._trainers, rounds, strict=True):
            if trainer.pause():
                task.cancel()
        self._network.end_rounds()
        for ended in await asyncio.gather(*rounds, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    async def _close(self) -> None:
        """Run the closing rounds."""
        algorithm = self._trainers[0].algorithm
        if algorithm.needs_peers:
            self._network.end_rounds()
            await asyncio.gather(*(trainer.round() for trainer in self._trainers))
        elif algorithm.needs_center:
            self._network.coding.is_exact = True
            for trainer in self._trainers:
                await trainer.round()

    def _models(self) -> list[torch.Tensor]:
        """Return the job's model, or all replicas if there is no single model."""
        replicas = [trainer.context.replica.flat for trainer in self._trainers]
        algorithm = self._trainers[0].algorithm
        if self._job.trainer.ema is not None:
            averages = [trainer.context.optimizer.averaged() for trainer in self._trainers]
            single = algorithm.model is not ModelOrigin.REPLICAS
            return [weighted_mean(averages, [1.0] * len(averages))] if single else averages
        if algorithm.model is ModelOrigin.CENTER:
            return [self._network.center.values[: len(replicas[0])]]
        if algorithm.model is ModelOrigin.MEAN:
            return [weighted_mean(replicas, [1.0] * len(replicas))]
        if algorithm.model is ModelOrigin.GLOBAL:
            return [algorithm.global_model()[: len(replicas[0])]]
        return replicas

    def _score(self, models: list[torch.Tensor]) -> QualitySums | None:
        """Score the test data."""
        if not self._source.plan.test:
            return None
        sums = PassSums()
        scorers = []
        for trainer, model in zip(self._trainers, models, strict=False):
            stepper = Stepper(trainer.context)
            stepper.score_with(model)
            scorers.append(stepper)
        for number, delivery in enumerate(self._source.scored(self._source.plan.test)):
            router = self._trainers[0].context.router
            plans = router.requests_of(delivery)
            replies = [self._tables.read(plan) for plan in plans]
            scorers[number % len(scorers)].score(delivery, plans, replies, sums)
        return sums.quality

    def _count(self, delivery: Delivery, loss: float) -> None:
        self._examples += len(delivery.labels)
        if self._examples >= self._job.start_examples:
            self._start_is_over.set()
        self._window.add(delivery.labels, loss, delivery.weights)
        for trainer in self._trainers:
            trainer.context.count.update(self._examples, trainer.context.replica.trained_examples)
        last = self._curve[-1].examples if self._curve else 0
        if self._examples - last >= self._every_examples:
            self._add_point()

    def _leave_out(self, batch: LeftOut) -> None:
        """Count a bad batch; raises JobFileError for one more than the job allows."""
        self._bad_batches.add(batch, lambda number: self._source.plan.train[number].path)
        if (stop := self._bad_batches.too_many()) is not None:
            raise JobFileError(stop.text)

    def _add_point(self) -> None:
        self._curve.append(
            CurvePoint(
                seconds=asyncio.get_running_loop().time(),
                examples=self._examples,
                ne=self._window.take(),
                divergence=self._divergence(self._stride),
            )
        )
        if len(self._curve) == 2 * CURVE_POINTS:
            self._every_examples *= 2
            self._curve = list(map(_joined, self._curve[::2], self._curve[1::2]))

    def _divergence(self, stride: int = 1) -> float | None:
        """Return the divergence of every `stride`-th element; None while only one trainer takes part."""
        if len(self._trainers) < 2 or not self._trainers[-1].has_begun:
            return None
        divergence = Divergence(len(self._trainers))
        replicas = [trainer.context.replica.read(stride=stride).numpy() for trainer in self._trainers]
        for start in range(0, len(replicas[0]), CHUNK_ELEMENTS):
            divergence.add([replica[start : start + CHUNK_ELEMENTS] for replica in replicas])
        return divergence.value()


def _by_label(
    sums: QualitySums | None, progressive: QualitySums, names: Sequence[str]
) -> dict[str, VirtualLabel]:
    """Return the figures of each of several labels.

    `sums` are those of the test data; without any, None.
    """
    if len(names) == 1:
        return {}
    tested = sums.by_label(names) if sums is not None and sums.examples else {}
    trained = progressive.by_label(names) if progressive.examples else {}
    return {
        name: VirtualLabel(
            ne=tested[name].ne if tested else None,
            auc=tested[name].auc if tested else None,
            training_ne=trained[name].ne if trained else None,
        )
        for name in names
    }


def _joined(first: CurvePoint, second: CurvePoint) -> CurvePoint:
    """Return the later point, with the mean NE of both."""
    scores = [point.ne for point in (first, second) if point.ne is not None]
    return second.model_copy(update={"ne": sum(scores) / len(scores) if scores else None})
