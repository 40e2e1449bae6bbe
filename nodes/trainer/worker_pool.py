"""A trainer's workers: threads of its own, or processes over shared memory."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.control.profile import ProcessTrace
from ...pipeline.wire.worker_messages import BatchAck
from ..replica.buffer import ReplicaMemory, SharedMemory
from ..replica.replica import TrainerContext
from ..runtime.members import summed
from ..runtime.role import NodeContext
from ..runtime.threads import ThreadBridge
from ..shadow.fixed_rate import FixedRate, WorkerRounds
from ..worker.handle import DrainResult, WorkerHandle
from ..worker.process_channel import WorkerProcessConfig
from ..worker.process_parent import ProcessWorker
from ..worker.worker import Worker

# Time for a process's reply, after the time that it traces.
TRACE_REPLY_SECONDS = 3.0


class WorkerPool(ABC):
    """The workers of one trainer.

    The pool is created before the other members of the job are known. The control thread calls the methods,
    unless one says otherwise.

    Attributes:
        workers: all workers, after `connect`.
    """

    def __init__(self, job: Job, node: NodeContext) -> None:
        self._job = job
        self._node = node
        self.workers: list[WorkerHandle] = []

    @abstractmethod
    async def prepare(self) -> TrainerContext:
        """Build what the workers share, and start anything that takes long to start."""

    @abstractmethod
    def connect(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """Make the workers ready to train with the members of the job.

        `trained` and `refused` may be called by any thread; `refused` with the name of a reader that
        delivered what cannot be, and why. `rounds` has one element per worker, or none if workers take no
        part in rounds.
        """

    def metrics(self) -> dict[str, Any]:
        """Return counts so far, over all workers."""
        return summed(worker.metrics() for worker in self.workers)

    def process_metrics(self) -> dict[str, float]:
        """Return CPU seconds and memory of the workers' own processes.

        Pages that several processes share count in each.
        """
        return {}

    def process_threads(self) -> dict[str, tuple[float, float]]:
        """Return the thread usage of the workers' own processes; see `Role.process_threads`."""
        return {}

    async def trace(self, seconds: float) -> list[ProcessTrace]:
        """Trace the workers' own processes; see `Role.trace_processes`.

        Omits processes that do not reply in time.
        """
        waits: list[asyncio.Future[ProcessTrace]] = []
        for worker in self.workers:
            bridge = ThreadBridge[ProcessTrace]()
            if worker.trace(seconds, bridge.give):
                waits.append(bridge.result)
        done, _ = (
            await asyncio.wait(waits, timeout=seconds + TRACE_REPLY_SECONDS) if waits else (set(), set())
        )
        return [future.result() for future in done]

    async def drain(
        self, last: Sequence[Mapping[str, int]], timeout_seconds: float, *, leaving: bool = False
    ) -> tuple[DrainResult, bool]:
        """Stop training after the current batches.

        `last` has each reader's last sequence to each worker. Returns the sums over the workers that stopped
        in time, and whether that was all of them.
        """
        waits: list[asyncio.Future[DrainResult]] = []
        for worker, sequences in zip(self.workers, last, strict=True):
            bridge = ThreadBridge[DrainResult]()
            worker.drain(sequences, bridge.give, leaving=leaving)
            waits.append(bridge.result)
        done, late = await asyncio.wait(waits, timeout=timeout_seconds) if waits else (set(), set())
        in_flight, progressive = 0, QualitySums()
        for drained in (future.result() for future in done):
            in_flight += drained.in_flight
            progressive.merge(drained.progressive)
        return DrainResult(in_flight, progressive), not late

    async def settle_reader(self, name: str) -> None:
        """Train a lost reader's batches until confirmed."""
        await self._on_all(lambda worker, done: worker.settle_reader(name, done))

    async def replace_shard(self, member: MemberInfo) -> None:
        """Switch to a replacement embedding node; wait until all workers confirm."""
        await self._on_all(lambda worker, done: worker.replace_shard(member, done))

    async def _on_all(self, call: Callable[[WorkerHandle, Callable[[], None]], None]) -> None:
        """Call all workers; wait until each has called back."""
        waits: list[asyncio.Future[None]] = []
        for worker in self.workers:
            bridge = ThreadBridge[None]()
            call(worker, partial(bridge.give, None))
            waits.append(bridge.result)
        await asyncio.gather(*waits)

    async def collect(self, pass_number: int) -> QualitySums:
        """Return the sums of a pass over all workers."""
        total = QualitySums()
        for worker in self.workers:
            bridge = ThreadBridge[QualitySums]()
            worker.collect(pass_number, bridge.give)
            total.merge(await bridge.result)
        return total

    def stop(self) -> None:
        """Tell the workers to end."""
        for worker in self.workers:
            worker.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of each worker; return whether all have ended.

        Runs on a thread of its own.
        """
        ended = [worker.join(timeout_seconds) for worker in self.workers]
        return all(ended)

    async def _build(self, memory: ReplicaMemory | None) -> TrainerContext:
        node = self._node
        return await asyncio.to_thread(TrainerContext.build, self._job, node.plan, memory, node.label_rates)


class ThreadWorkerPool(WorkerPool):
    """Workers that are threads of the trainer."""

    async def prepare(self) -> TrainerContext:
        """Build what the workers share; see `WorkerPool.prepare`."""
        self._context = await self._build(None)
        return self._context

    def connect(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """Make the workers; see `WorkerPool.connect`."""
        node = self._node
        fixed = [each if isinstance(each, FixedRate) else None for each in rounds]
        self.workers += [
            Worker(
                index,
                self._context,
                node.zmq_context,
                members,
                node.token,
                node.grant_key,
                trained,
                refused,
                fixed[index] if fixed else None,
                node.fail,
            )
            for index in range(self._job.trainer.workers)
        ]


class ProcessWorkerPool(WorkerPool):
    """Workers that are processes: they build their models while the trainer waits."""

    def __init__(self, job: Job, node: NodeContext) -> None:
        super().__init__(job, node)
        self._processes: list[ProcessWorker] = []
        self._memory = SharedMemory.create()

    async def prepare(self) -> TrainerContext:
        """Start the processes, and wait until each has built its model."""
        context = await self._build(self._memory)
        scored = self._memory.scratch(context.layout.numel)
        node = self._node
        waits: list[asyncio.Future[None]] = []
        for index in range(self._job.trainer.workers):
            config = WorkerProcessConfig(
                job=self._job,
                trainer=node.name,
                trainer_index=node.index,
                token=node.token,
                index=index,
                folder=node.folder,
                endpoint="",
                descriptor=self._memory.descriptor,
                plan=node.plan.to_body(),
                grant_key=node.grant_key,
            )
            built = ThreadBridge[None]()
            waits.append(built.result)
            ready = partial(built.give, None)
            worker = ProcessWorker(node.zmq_context, config, context.replica.flat, scored, ready, node.fail)
            self._processes.append(worker)
            self.workers.append(worker)
        await asyncio.gather(*waits)
        return context

    def connect(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        rounds: Sequence[WorkerRounds],
    ) -> None:
        """Send the members of the job to the processes; see `WorkerPool.connect`."""
        for worker in self._processes:
            worker.connect(members, trained, refused, rounds[worker.index] if rounds else None)

    def process_metrics(self) -> dict[str, float]:
        """Return CPU seconds and memory of the processes, as of their last heartbeats."""
        return summed(worker.process_metrics for worker in self._processes)

    def process_threads(self) -> dict[str, tuple[float, float]]:
        """Return the usage of the processes' threads, as of their last heartbeats.

        The name of a thread includes its process, except for training threads.
        """
        found: dict[str, tuple[float, float]] = {}
        for worker in self._processes:
            process = f"worker-{worker.index}"
            for name, times in worker.threads.items():
                found[process if name == process else f"{process} {name}"] = times
        return found

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of each process; return whether all have ended."""
        ended = super().join(timeout_seconds)
        if ended:
            self._memory.close()
        return ended


def make_worker_pool(job: Job, node: NodeContext) -> WorkerPool:
    """Make the pool of the kind that `trainer.worker_kind` names."""
    return {"thread": ThreadWorkerPool, "process": ProcessWorkerPool}[job.trainer.worker_kind](job, node)
