"""A trainer's workers: Hogwild threads over one replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ...pipeline.config.job import Job
from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.performance.memory import available_memory_bytes
from ...pipeline.types import RankingSettings
from ...pipeline.wire.control.orders import MemberInfo
from ..replica.nearest_cores import nearest_cores, stay_on
from ..replica.replica import TrainerContext, find_device
from ..runtime.members import summed
from ..runtime.role import NodeContext
from ..runtime.threads import ThreadBridge
from ..shadow.fixed_rate import FixedRate
from ..worker.batches import BatchAck, DrainResult
from ..worker.prefetch import require_memory
from ..worker.worker import Worker


class WorkerPool:
    """The workers of one trainer.

    The pool is created before the other members of the job are known. The control thread calls the methods,
    unless one says otherwise.

    Attributes:
        workers: all workers, after `connect`.
        nearest_cores: after `prepare`, those that the process stays on, since they are nearest to its GPU;
            empty if it stays on all.
    """

    def __init__(self, job: Job, node: NodeContext) -> None:
        self._job = job
        self._node = node
        self.workers: list[Worker] = []
        self.nearest_cores: frozenset[int] = frozenset()

    async def prepare(self) -> TrainerContext:
        """Build what the workers share, in memory of the socket that the trainer's GPU is attached to.

        Raises JobFileError for more lookups ahead than memory has room for, and for a missing device.
        """
        require_memory(self._job, available_memory_bytes())
        node = self._node
        device = find_device(self._job.trainer.device, node.index).torch_device
        self.nearest_cores = await asyncio.to_thread(nearest_cores, device)
        if self.nearest_cores:
            stay_on(self.nearest_cores)
        self._context = await asyncio.to_thread(
            TrainerContext.build, self._job, node.plan, label_rates=node.label_rates, index=node.index
        )
        return self._context

    def connect(
        self,
        members: Sequence[MemberInfo],
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        event: Callable[[str], None],
        rounds: Sequence[FixedRate],
    ) -> None:
        """Make the workers, for these members of the job.

        `trained`, `refused` and `event` may be called by any thread; `refused` with the name of a reader that
        delivered what cannot be, and why; `event` with what a user should know. `rounds` has one element per
        worker, or none if workers take no part in rounds.
        """
        node = self._node
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
                event,
                rounds[index] if rounds else None,
                node.fail,
            )
            for index in range(self._job.trainer.workers)
        ]

    def metrics(self) -> dict[str, Any]:
        """Return counts so far, over all workers."""
        return summed(worker.metrics() for worker in self.workers)

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

    async def drain_reader(self, name: str) -> None:
        """Train a lost reader's batches until confirmed."""
        await self._on_all(lambda worker, done: worker.drain_reader(name, done))

    async def replace_shard(self, member: MemberInfo) -> None:
        """Switch to a replacement embedding node; wait until all workers confirm."""
        await self._on_all(lambda worker, done: worker.replace_shard(member, done))

    async def _on_all(self, call: Callable[[Worker, Callable[[], None]], None]) -> None:
        """Call all workers; wait until each has called back."""
        waits: list[asyncio.Future[None]] = []
        for worker in self.workers:
            bridge = ThreadBridge[None]()
            call(worker, partial(bridge.give, None))
            waits.append(bridge.result)
        await asyncio.gather(*waits)

    async def collect(self, pass_number: int, ranking: RankingSettings | None) -> PassSums:
        """Return the sums of a pass over all workers; `ranking` is the job's."""
        total = PassSums.of(ranking)
        for worker in self.workers:
            bridge = ThreadBridge[PassSums]()
            worker.collect(pass_number, bridge.give)
            total.merge(await bridge.result)
        return total

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of each worker; return whether all have ended.

        Runs on a thread of its own.
        """
        ended = [worker.join(timeout_seconds) for worker in self.workers]
        return all(ended)
