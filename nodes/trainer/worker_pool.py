"""How a trainer gets its workers: threads of its own, or processes over shared memory."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.metrics import QualitySums
from ...pipeline.wire.control_orders import MemberInfo
from ..replica.buffer import SharedMemory
from ..replica.replica import TrainerContext
from ..runtime.members import summed
from ..runtime.role import NodeContext
from ..runtime.threads import ThreadBridge
from ..shadow.fixed_rate import FixedRate, WorkerRounds
from ..worker.batches import BatchAck
from ..worker.handle import Held, WorkerHandle
from ..worker.process_channel import WorkerProcessConfig
from ..worker.process_parent import ProcessWorker
from ..worker.worker import Worker

TRACED_SECONDS = 3.0


class WorkerPool(ABC):
    """The workers of one trainer, from before they know anybody. Its methods are the control thread's, but
    for what says otherwise.

    Attributes:
        workers: all of them, once `meet` was called.
    """

    def __init__(self, job: Job, node: NodeContext) -> None:
        self._job = job
        self._node = node
        self.workers: list[WorkerHandle] = []

    @abstractmethod
    async def prepare(self) -> TrainerContext:
        """Builds what the workers share, and starts what takes long to start."""

    @abstractmethod
    def meet(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """Makes the workers ready to begin. `trained` is called by any thread; `rounds` has one for each
        worker, or nothing where workers have no part in rounds."""

    def metrics(self) -> dict[str, Any]:
        """Counts so far, over all workers."""
        return summed(worker.metrics() for worker in self.workers)

    def process_metrics(self) -> dict[str, float]:
        """CPU seconds and memory of the workers' own processes; pages that several share count in each."""
        return {}

    def process_threads(self) -> dict[str, list[float]]:
        """See `Role.process_threads`."""
        return {}

    async def trace(self, seconds: float) -> list[dict[str, Any]]:
        """See `Role.trace_processes`; without those that tell nothing."""
        waits: list[asyncio.Future[Any]] = []
        for worker in self.workers:
            bridge = ThreadBridge[Any]()
            if worker.trace(seconds, bridge.give):
                waits.append(bridge.result)
        done, _ = await asyncio.wait(waits, timeout=seconds + TRACED_SECONDS) if waits else (set(), set())
        return [future.result() for future in done]

    async def hold(self, last: Sequence[Mapping[str, int]], timeout_seconds: float) -> tuple[Held, bool]:
        """Stops training after the batches at hand. `last` has, for each worker, what each reader sent to it
        last. Gives the sums over workers, and whether they are of all: of those that held in time."""
        waits: list[asyncio.Future[Held]] = []
        for worker, sequences in zip(self.workers, last, strict=True):
            bridge = ThreadBridge[Held]()
            worker.hold(sequences, bridge.give)
            waits.append(bridge.result)
        done, late = await asyncio.wait(waits, timeout=timeout_seconds) if waits else (set(), set())
        in_flight, progressive = 0, QualitySums()
        for held in (future.result() for future in done):
            in_flight += held.in_flight
            progressive.merge(held.progressive)
        return Held(in_flight, progressive), not late

    async def collect(self, pass_number: int) -> QualitySums:
        """The sums of a pass, over all workers."""
        total = QualitySums()
        for worker in self.workers:
            bridge = ThreadBridge[QualitySums]()
            worker.collect(pass_number, bridge.give)
            total.merge(await bridge.result)
        return total

    def stop(self) -> None:
        """Tells the workers to end."""
        for worker in self.workers:
            worker.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Waits for the end of each; whether all have ended. From a thread of its own."""
        ended = [worker.join(timeout_seconds) for worker in self.workers]
        return all(ended)


class ThreadWorkerPool(WorkerPool):
    """Workers are threads of the trainer."""

    async def prepare(self) -> TrainerContext:
        """See `Crew.prepare`."""
        self._shared = await asyncio.to_thread(TrainerContext.build, self._job, self._node.plan)
        return self._shared

    def meet(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """See `Crew.meet`."""
        node = self._node
        fixed = [one if isinstance(one, FixedRate) else None for one in rounds]
        self.workers += [
            Worker(
                index,
                self._shared,
                node.zmq_context,
                members,
                node.token,
                trained,
                fixed[index] if fixed else None,
                node.fail,
            )
            for index in range(self._job.trainer.workers)
        ]


class ProcessWorkerPool(WorkerPool):
    """Workers are processes, which build their models while the trainer waits for the others."""

    def __init__(self, job: Job, node: NodeContext) -> None:
        super().__init__(job, node)
        self._processes: list[ProcessWorker] = []
        self._memory = SharedMemory.create()

    async def prepare(self) -> TrainerContext:
        """See `Crew.prepare`; returns when every process has built its model."""
        shared = await asyncio.to_thread(TrainerContext.build, self._job, self._node.plan, self._memory)
        scored = self._memory.scratch(shared.replica.numel)
        node = self._node
        waits: list[asyncio.Future[None]] = []
        for index in range(self._job.trainer.workers):
            order = WorkerProcessConfig(
                job=self._job,
                trainer=node.name,
                trainer_index=node.index,
                token=node.token,
                index=index,
                folder=node.folder,
                endpoint="",
                descriptor=self._memory.descriptor,
                plan=node.plan.to_body(),
            )
            built = ThreadBridge[None]()
            waits.append(built.result)
            ready = partial(built.give, None)
            worker = ProcessWorker(node.zmq_context, order, shared.replica.flat, scored, ready, node.fail)
            self._processes.append(worker)
            self.workers.append(worker)
        await asyncio.gather(*waits)
        return shared

    def meet(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """See `Crew.meet`."""
        for worker in self._processes:
            worker.meet(members, trained, rounds[worker.index] if rounds else None)

    def process_metrics(self) -> dict[str, float]:
        """See `Crew.process_metrics`; as of the last pulses."""
        return summed(worker.process_metrics for worker in self._processes)

    def process_threads(self) -> dict[str, list[float]]:
        """See `Role.process_threads`; as of the last pulses. All but the threads that train are named with
        their process."""
        found: dict[str, list[float]] = {}
        for worker in self._processes:
            own = f"worker-{worker.index}"
            for name, times in worker.threads.items():
                found[own if name == own else f"{own} {name}"] = times
        return found

    def join(self, timeout_seconds: float) -> bool:
        """See `Crew.join`."""
        ended = super().join(timeout_seconds)
        if ended:
            self._memory.close()
        return ended


def make_crew(job: Job, node: NodeContext) -> WorkerPool:
    """As `trainer.worker_kind` has it."""
    return {"thread": ThreadWorkerPool, "process": ProcessWorkerPool}[job.trainer.worker_kind](job, node)
