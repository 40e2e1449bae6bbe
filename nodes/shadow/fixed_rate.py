"""Fixed-rate synchronization: rounds after every k iterations, for which workers wait.

This is the baseline of ShadowSync (the paper's FR-EASGD-k, FR-MA-k, FR-BMUF-k). Both modes use the same
algorithms, clients and messages; only the waiting differs. With worker processes, `RemoteGate` and
`RemoteRoundLog` represent the trainer in the worker process, `RemoteRounds` the worker in the trainer.
"""

from __future__ import annotations

import asyncio
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.tasks import post
from ...pipeline.wire.worker_messages import (
    CompletedRound,
    DropSyncNode,
    GateArrive,
    GateStarve,
    GateWork,
    ReplaceSyncNode,
    RoundEnded,
    WorkerHeartbeat,
    WorkerReport,
)
from ..replica.replica import ReplicaContext
from ..runtime.main_loop import PauseAwareLoop
from .center_client import CenterClient
from .rounds import RoundCounter, RoundGate
from .zmq_peers import ConnectionConfig, ZmqPeers


class RoundLog(Protocol):
    """Log of a worker's own rounds; see `RoundCounter`."""

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """Count a complete round, which synchronized the replica as of `started_iterations`."""
        ...

    def incomplete(self) -> None:
        """Count a round that ended without all of its slices."""
        ...


class WorkerRounds:
    """A worker's rounds as seen by its trainer; any thread may call."""

    def mark_lost(self, token: str) -> None:
        """Mark a sync node as lost."""

    def replace(self, number: int, member: MemberInfo) -> None:
        """Use another sync node for the slice of this number."""

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes that this worker's own client sent and received so far."""
        return 0, 0

    def connection_metrics(self) -> dict[str, int]:
        """See `CenterClient.metrics`, of this worker's own client."""
        return {}


class FixedRate(WorkerRounds, ABC):
    """One worker's part in fixed-rate rounds. Called by the worker's thread."""

    def before_step(self) -> None:
        """Prepare for training a batch."""

    @abstractmethod
    def after_iteration(self) -> None:
        """Count a trained batch, and wait for a round if one is due."""

    def nothing_to_train(self) -> None:
        """Note that the worker has no batch."""

    def close(self) -> None:
        """Close the sockets, if any."""


class GatedRounds(FixedRate):
    """Rounds of the shadow thread while all workers wait at a gate (all-reduce)."""

    def __init__(self, index: int, gate: RoundGate) -> None:
        self._index = index
        self._gate = gate

    def before_step(self) -> None:
        """Wait for the end of the current round."""
        self._gate.work(self._index)

    def after_iteration(self) -> None:
        """Wait at the gate, every k-th time."""
        self._gate.iterated(self._index)

    def nothing_to_train(self) -> None:
        """Note that the worker has no batch.

        If this lasts, rounds do not wait for it.
        """
        self._gate.starve(self._index)

    def arrive(self) -> None:
        """Wait at the gate now, for a worker that counts its iterations itself."""
        self._gate.arrive(self._index)


class CenterRounds(FixedRate):
    """A worker's own rounds with the center, with its own loop and client.

    Any thread may create it and call `mark_lost` and `replace`; only the worker's thread may use and close
    it.
    """

    def __init__(
        self, index: int, context: ReplicaContext, connection_config: ConnectionConfig, rounds: RoundLog
    ) -> None:
        self._index = index
        self._context = context
        self._connection_config = connection_config
        self._rounds = rounds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._center: CenterClient | None = None
        # Events of sync nodes in order; each round first handles the new ones.
        self._happened: queue.SimpleQueue[str | tuple[int, MemberInfo]] = queue.SimpleQueue()

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received so far; any thread may read them."""
        return (self._center.sent_bytes, self._center.received_bytes) if self._center is not None else (0, 0)

    def connection_metrics(self) -> dict[str, int]:
        """See `CenterClient.metrics`; any thread may read it."""
        return self._center.metrics() if self._center is not None else {}

    def after_iteration(self) -> None:
        """Run a round if one is due, and wait for its end."""
        if self._context.iterations[self._index] % self._context.job.sync.every:
            return
        if self._loop is None:
            self._loop = PauseAwareLoop()
        self._loop.run_until_complete(self._round())

    def mark_lost(self, token: str) -> None:
        """Mark a sync node as lost; any thread may call."""
        self._happened.put(token)
        if self._loop is not None and self._center is not None:
            post(self._loop, partial(self._center.mark_lost, token))

    def replace(self, number: int, member: MemberInfo) -> None:
        """Replace a slice's sync node from the next round on; any thread."""
        self._happened.put((number, member))

    def close(self) -> None:
        """Close the sockets, on the worker's thread."""
        if self._loop is None:
            return
        try:
            if self._center is not None:
                self._center.close()
        finally:
            self._loop.close()

    async def _round(self) -> None:
        if self._center is None:
            self._center = self._connection_config.open_center(self._context, f"fixed-{self._index}")
            assert self._center is not None
        while not self._happened.empty():
            happened = self._happened.get()
            if isinstance(happened, str):
                self._center.mark_lost(happened)
            else:
                await self._center.replace(*happened)
        started, cpu = time.monotonic(), time.thread_time()
        iterations = self._context.total_iterations()
        peers = ZmqPeers(self._connection_config.index, self._center, None)
        if await self._connection_config.algorithm.round(self._context.replica, peers):
            self._rounds.completed(iterations, time.monotonic() - started, time.thread_time() - cpu)
        else:
            self._rounds.incomplete()


SendReport = Callable[[WorkerReport], None]


class RemoteGate(FixedRate):
    """The trainer's gate as seen in a worker process, for algorithms with peers.

    Called by the worker's thread unless a method says otherwise. The worker keeps its own count and status,
    so it notifies the trainer only of changes, and only waiting needs a reply.
    """

    def __init__(self, every: int, report: SendReport) -> None:
        self._every = every
        self._report = report
        self._iterations = 0
        self._working = False
        self._passes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._opened = False

    def before_step(self) -> None:
        """Wait for the end of a round begun without this worker."""
        if not self._working:
            self._report(GateWork())
            self._wait()
            self._working = True

    def after_iteration(self) -> None:
        """Wait at the gate, every k-th time."""
        self._iterations += 1
        if self._iterations % self._every == 0:
            self._report(GateArrive())
            self._wait()

    def nothing_to_train(self) -> None:
        """Note that the worker has no batch.

        If this lasts, rounds do not wait for it.
        """
        if self._working:
            self._working = False
            self._report(GateStarve())

    def release(self) -> None:
        """Release the waiting worker, as the trainer replied; any thread may call."""
        self._passes.put(None)

    def open(self) -> None:
        """Open the gate for good.

        Call it when no replies will come; any thread may.
        """
        self._opened = True
        self._passes.put(None)

    def _wait(self) -> None:
        # If it is opened after this check, `open` leaves a pass for the waiting worker.
        if not self._opened:
            self._passes.get()


class RemoteRoundLog:
    """A log in a worker process that reports its rounds to the trainer.

    Called by the worker's thread.
    """

    def __init__(self, context: ReplicaContext, report: SendReport) -> None:
        self._context = context
        self._report = report

    def completed(self, started_iterations: int, seconds: float, cpu_seconds: float) -> None:
        """See `RoundCounter.completed`."""
        now = self._context.total_iterations()
        self._report(RoundEnded(CompletedRound(started_iterations, seconds, cpu_seconds, now)))

    def incomplete(self) -> None:
        """See `RoundCounter.incomplete`."""
        self._report(RoundEnded(None))


class RemoteRounds(WorkerRounds):
    """A worker process's rounds with the center, as seen in the trainer.

    Any thread may call unless a method says otherwise.
    """

    def __init__(self, rounds: RoundCounter) -> None:
        self._rounds = rounds
        self._happened: list[DropSyncNode | ReplaceSyncNode] = []
        self._send: Callable[[DropSyncNode | ReplaceSyncNode], None] | None = None
        self._bytes = (0, 0)
        self._connection_counts: dict[str, int] = {}

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes sent and received as of the last update."""
        return self._bytes

    def connection_metrics(self) -> dict[str, int]:
        """See `CenterClient.metrics`; as of the last update."""
        return self._connection_counts

    def bind(self, send: Callable[[DropSyncNode | ReplaceSyncNode], None]) -> None:
        """Set how to notify the worker process; on the control thread, like `mark_lost`."""
        self._send = send
        for order in self._happened:
            send(order)

    def mark_lost(self, token: str) -> None:
        """Mark a sync node as lost; on the control thread."""
        self._send_order(DropSyncNode(token))

    def replace(self, number: int, member: MemberInfo) -> None:
        """Use another sync node for a slice; on the control thread."""
        self._send_order(ReplaceSyncNode(number, member))

    def _send_order(self, order: DropSyncNode | ReplaceSyncNode) -> None:
        if self._send is not None:
            self._send(order)
        else:
            self._happened.append(order)

    def update(self, heartbeat: WorkerHeartbeat) -> None:
        """Take over the counts that the worker process last sent."""
        self._bytes = (heartbeat.sent_bytes, heartbeat.received_bytes)
        self._connection_counts = heartbeat.connections

    def count_round(self, ended: RoundEnded) -> None:
        """Count an ended round of the worker process; see `RemoteRoundLog`."""
        if (completed := ended.completed) is None:
            self._rounds.incomplete()
        else:
            self._rounds.completed(
                completed.started_iterations,
                completed.seconds,
                completed.cpu_seconds,
                completed.ended_iterations,
            )
