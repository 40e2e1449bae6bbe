"""An emulated trainer: Hogwild workers and rounds, as coroutines on a virtual clock."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

from ...nodes.coordinator.ledger.records import LeftOut
from ...nodes.replica.replica import TrainerContext
from ...nodes.shadow.rounds import RoundCounter
from ...nodes.shadow.schedule import RoundSchedule
from ...nodes.worker.prefetch import Prefetch, WorkerClock
from ...nodes.worker.step import Stepper
from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.wire.messages import Delivery
from ...sync_algos.base import Algorithm, AlgorithmState
from ...sync_algos.memory.peers import MemoryPeers
from .links import VirtualNetwork
from .source import BatchSource
from .tables import VirtualRows, VirtualTableClient, VirtualTables
from .timing import StepTimes, Timing


@dataclass
class VirtualBatch:
    delivery: Delivery
    plans: list[LookupPlan]
    reply: asyncio.Task[VirtualRows]
    looked_up_at: float


class VirtualTrainer:
    """A trainer's replica, workers and rounds.

    A worker computes its gradient when a step begins, and applies it when the step's time is over. What other
    workers and rounds did to the replica meanwhile stays.

    Attributes:
        rounds: counts of its rounds.
        progressive: quality of the first epoch's batches, each before its update.

    Args:
        trained: called with a batch and its mean loss.
        left_out: called with a batch whose loss or a gradient is not finite.
    """

    def __init__(
        self,
        index: int,
        job: Job,
        timing: Timing,
        source: BatchSource,
        tables: VirtualTables,
        label_rates: tuple[float, ...],
        algorithm: Algorithm,
        trained: Callable[[Delivery, float], None],
        left_out: Callable[[LeftOut], None],
    ) -> None:
        self.index = index
        self.context = TrainerContext.build(job, tables.plan, label_rates=label_rates)
        self.algorithm = algorithm
        self.rounds = RoundCounter(self.context.total_iterations)
        self.progressive = QualitySums()
        self._trained, self._left_out = trained, left_out
        self._job, self._timing = job, timing
        self._depth_is_exact = job.depth_is_exact
        self._source = source
        rows, workers = self.context.rows_in_flight, range(job.trainer.workers)
        self._tables = [VirtualTableClient(tables, rows, f"trainer-{index}", worker) for worker in workers]
        self._steppers = [Stepper(self.context) for _ in range(job.trainer.workers)]
        self._gate: VirtualGate | None = None
        self._schedule = RoundSchedule(job.sync)
        self._started_rounds = 0
        self._in_round = False
        self._paused = False
        self._worker_begins = [asyncio.Event() for _ in range(job.trainer.workers)]
        self._begun = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        """Whether it takes part; it may have to wait for the end of the start."""
        return self._begun.is_set()

    def connect(self, network: VirtualNetwork) -> None:
        """Connect to the other trainers, while all have the same parameters."""
        self._network = network
        self._peers = MemoryPeers(network, self.index)
        if self._job.sync.mode == "fixed" and self.algorithm.has_common_rounds:
            self._gate = VirtualGate(self._job.trainer.workers)
        self.algorithm.start(self.context.replica)

    def begin(self) -> None:
        """Let `train` and `synchronize` begin."""
        self._begun.set()

    def join(self, source: VirtualTrainer) -> None:
        """Begin with the weights, the optimizer and the algorithm's state of a trainer that trains."""
        self.context.replica.flat.copy_(source.context.replica.flat)
        for name, values in source.context.optimizer.state.items():
            self.context.optimizer.state[name].copy_(values)
        self.context.optimizer.restored()
        self.context.constants.flat.copy_(source.context.constants.flat)
        self.algorithm.start(self.context.replica)
        if self.algorithm.state_names:
            state = source.algorithm.state()
            tensors = {name: values.clone() for name, values in state.tensors.items()}
            self.algorithm.load_state(AlgorithmState(state.completed_rounds, tensors))
        self.begin()

    async def train(self) -> None:
        """Train until no batch is left."""
        await asyncio.sleep(self._timing.start_of(self.index, self._job.trainer.count))
        await self._begun.wait()
        await asyncio.gather(*(self._work(worker) for worker in range(self._job.trainer.workers)))

    async def synchronize(self) -> None:
        """Run rounds until paused: in the background, or with the workers waiting."""
        if not (self.algorithm.needs_center or self.algorithm.needs_peers):
            return
        await self._begun.wait()
        if self._gate is not None:
            while not self._paused:
                await self._gate.due()
                if self._gate.is_deserted:
                    # It takes part in the rounds of the others, and makes none of its own.
                    await self._network.awaited(self.index)
                await self.round()
                self._gate.release()
        elif self._job.sync.mode == "shadow":
            await asyncio.sleep(self._timing.start_of(self.index, self._job.trainer.count))
            await self._in_background()

    async def _in_background(self) -> None:
        clock, schedule = asyncio.get_running_loop(), self._schedule
        while not self._paused:
            wait_seconds = schedule.wait_seconds(
                clock.time(), self.context.total_iterations(), awaited=self._network.waits_for(self.index)
            )
            if wait_seconds:
                await asyncio.sleep(wait_seconds)
                continue
            began, cost = clock.time(), self._timing.cpu_of_round(self._started_rounds)
            moved = self._network.moved_bytes[self.index]
            schedule.began(began, self.context.total_iterations())
            complete = await self.round()
            schedule.ended(
                complete=complete,
                seconds=clock.time() - began,
                cpu_seconds=cost,
                moved_bytes=self._network.moved_bytes[self.index] - moved,
            )

    def pause(self) -> bool:
        """Let no further round begin; return whether none is running."""
        self._paused = True
        return not self._in_round

    async def round(self) -> bool:
        """Run one round; return whether it was complete."""
        clock = asyncio.get_running_loop()
        began, iterations = clock.time(), self.context.total_iterations()
        cpu = self._timing.cpu_of_round(self._started_rounds)
        self._started_rounds += 1
        self._in_round = True
        complete = await self.algorithm.round(self.context.replica, self._peers)
        self._in_round = False
        if complete:
            self.rounds.completed(iterations, clock.time() - began, cpu)
        else:
            self.rounds.incomplete()
        return complete

    async def _work(self, worker: int) -> None:
        times = self._timing.steps(self.index, worker, self._job.run.seed)
        batches: deque[VirtualBatch] = deque()
        pushes: set[asyncio.Task[None]] = set()
        clock, waits = asyncio.get_running_loop().time, WorkerClock()
        prefetch = Prefetch.of(self._job, readers=1)
        if not self.context.has_begun(worker):
            await self._wait_to_begin(worker)
        while True:
            self._let_begin()
            while (
                len(batches) <= self._lookups_ahead(prefetch)
                and (delivery := self._source.next(self.index)) is not None
            ):
                batches.append(self._look_up(worker, delivery))
            if not batches:
                break
            began = clock()
            rows = await batches[0].reply
            if clock() > began:
                prefetch.answered(clock() - batches[0].looked_up_at)
            while len(pushes) >= prefetch.pending_pushes(nodes=1):
                await asyncio.wait(pushes, return_when=asyncio.FIRST_COMPLETED)
                pushes = {push for push in pushes if not push.done()}
            batch = batches.popleft()
            waits = replace(waits, seconds=clock(), vectors_seconds=waits.vectors_seconds + clock() - began)
            if self._depth_is_exact or not self.context.is_early():
                prefetch.stepped(waits, sum(1 for _ in takewhile(lambda ahead: ahead.reply.done(), batches)))
            push = await self._step(worker, batch, rows, times)
            if push is not None:
                pushes.add(push)
                # So that the push leaves before the next lookup does.
                await asyncio.sleep(0)
            began = clock()
            await self._after_iteration(worker, trained=push is not None)
            waits = replace(waits, other_seconds=waits.other_seconds + clock() - began)
        for begins in self._worker_begins:
            begins.set()
        await asyncio.gather(*pushes)
        if self._gate is not None:
            self._gate.leave()

    async def _wait_to_begin(self, worker: int) -> None:
        """Wait until this worker may train, or another one has no batch left."""
        if self._gate is not None:
            self._gate.leave()
        await self._worker_begins[worker].wait()
        if self._gate is not None:
            self._gate.join()

    def _let_begin(self) -> None:
        """Let those workers begin whose turn it is."""
        for worker, begins in enumerate(self._worker_begins):
            if not begins.is_set() and self.context.has_begun(worker):
                begins.set()

    def _lookups_ahead(self, prefetch: Prefetch) -> int:
        """Return how many batches to look up ahead.

        None as long as one worker trains alone, if that makes a difference to rows.
        """
        return 0 if self.context.is_starting() and not self._depth_is_exact else prefetch.lookups_ahead

    def _look_up(self, worker: int, delivery: Delivery) -> VirtualBatch:
        plans = self.context.router.requests_of(delivery)
        now = asyncio.get_running_loop().time()
        return VirtualBatch(delivery, plans, self._tables[worker].look_up(plans), now)

    async def _step(
        self, worker: int, batch: VirtualBatch, rows: VirtualRows, times: StepTimes
    ) -> asyncio.Task[None] | None:
        """Compute a batch and send its gradients.

        Returns None for a batch that is left out.
        """
        stepper, delivery = self._steppers[worker], batch.delivery
        self._tables[worker].complete(rows)
        step = stepper.stage(delivery, batch.plans, rows.values)
        stepper.compute(step)
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(self._timing.lasts(self.index, now, times.next()))
        if step.left_out:
            name = f"trainer-{self.index}"
            self._left_out(LeftOut(delivery.id, len(delivery.labels), name, step.left_out))
            return None
        stepper.update(step)
        self.context.examples[worker] += len(delivery.labels)
        self.context.iterations[worker] += 1
        loss, gradients = stepper.finish(step, self.progressive if delivery.id.epoch == 0 else None)
        self._trained(delivery, loss)
        return self._tables[worker].push(rows, gradients, step.rows_scale, delivery.id)

    async def _after_iteration(self, worker: int, *, trained: bool) -> None:
        sync = self._job.sync
        if not trained or sync.mode != "fixed" or self.context.iterations[worker] % sync.every:
            return
        if self._gate is not None:
            await self._gate.wait()
        elif self.algorithm.needs_center:
            await self.round()


class VirtualGate:
    """The place where a trainer's workers wait for a common round."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._waiting = 0
        self._changed = asyncio.Event()
        self._released = asyncio.Event()

    async def wait(self) -> None:
        """Wait until a round has ended."""
        self._waiting += 1
        self._changed.set()
        released = self._released
        await released.wait()

    def leave(self) -> None:
        """Remove a worker that has no batch left."""
        self._workers -= 1
        self._changed.set()

    def join(self) -> None:
        """Add a worker that begins."""
        self._workers += 1

    @property
    def is_deserted(self) -> bool:
        """Whether no worker has a batch left."""
        return self._workers == 0

    async def due(self) -> None:
        """Wait until all workers that still train, if any, are at the gate."""
        while self._waiting < self._workers:
            self._changed.clear()
            await self._changed.wait()

    def release(self) -> None:
        """Let the workers continue."""
        self._waiting = 0
        released, self._released = self._released, asyncio.Event()
        released.set()
