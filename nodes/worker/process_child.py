"""A worker process: a thread that trains, and this thread, the trainer's counterpart.

Started by its trainer as `python -m shadowsync.nodes.worker.process_child`. Its configuration is the first
line of standard input, which stays open as long as the trainer lives.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import time
from collections import deque
from typing import assert_never

import torch
import zmq

from ...pipeline.data.span import from_runs
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ExitCode, ShadowSyncError, describe
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.open_files import require_files
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.sockets import Waker
from ...pipeline.wire.worker_messages import (
    AckedBatches,
    BatchAck,
    BeginTraining,
    CollectedSums,
    CollectSums,
    ConfirmBatch,
    ConnectMembers,
    ConnectReader,
    DrainedWorker,
    DrainWorker,
    DropNode,
    DropSyncNode,
    GatePass,
    RefusedReader,
    ReplaceShard,
    ReplaceSyncNode,
    ScorePass,
    SettledPushes,
    SettledReader,
    SettleLostReader,
    StopProcess,
    TracedProcess,
    TraceProcess,
    WorkerError,
    WorkerHeartbeat,
    WorkerOrder,
    WorkerReady,
    WorkerReport,
)
from ..replica.buffer import SharedMemory
from ..replica.replica import TrainerContext
from ..runtime.process import HEARTBEAT_SECONDS, log_to_folder, log_to_stderr, tune_malloc
from ..runtime.process_figures import process_metrics, process_trace
from ..runtime.tracing import TRACER, thread_figures
from ..shadow.fixed_rate import CenterRounds, FixedRate, RemoteGate, RemoteRoundLog
from ..shadow.zmq_peers import ConnectionConfig
from .handle import DrainResult
from .process_channel import WorkerProcessConfig, open_worker_end
from .worker import Worker

TICK_MILLISECONDS = 25

log = logging.getLogger(__name__)


class WorkerProcessMain:
    """Main loop of a worker process.

    The process's first thread creates and runs this object, and alone uses the channel. The worker's thread
    queues messages for it. The process ends when the trainer stops it or ends.
    """

    def __init__(self, config: WorkerProcessConfig) -> None:
        torch.set_num_threads(1)
        tune_malloc()
        self._config = config
        require_files()
        self._zmq_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._channel = open_worker_end(self._zmq_context, config.endpoint)
        memory = SharedMemory.attach(config.descriptor)
        job = config.job
        plan = TablePlan.from_body(job.tables, job.embedding.nodes, config.plan)
        self._context = TrainerContext.build(job, plan, memory)
        self._scratch = memory.scratch(self._context.layout.numel)
        memory.close()
        self._waker = Waker()
        self._outgoing: queue.SimpleQueue[WorkerReport | BatchAck] = queue.SimpleQueue()
        self._unsent: deque[WorkerReport] = deque()
        self._worker: Worker | None = None
        self._rounds: FixedRate | None = None
        self._heartbeat_at = 0.0
        self._trace_until = 0.0

    def run(self) -> None:
        """Run until the trainer stops it or ends."""
        poller = zmq.Poller()
        for descriptor in (self._channel.socket, self._waker.fileno(), sys.stdin.fileno()):
            poller.register(descriptor, zmq.POLLIN)
        name, elements = self._config.trainer, self._context.layout.numel
        log.info("worker %d of %s is ready, on a replica of %d elements", self._config.index, name, elements)
        # Report the cost of the start before the trainer is ready, so that it does not count as training.
        self._queue_heartbeat()
        self._unsent.append(WorkerReady())
        stopped = False
        while not stopped:
            ready = dict(poller.poll(TICK_MILLISECONDS))
            if sys.stdin.fileno() in ready:
                # The end of standard input means that the trainer is gone, and nobody receives a report.
                os._exit(int(ExitCode.STOPPED_BY_DEATH))
            self._waker.clear()
            while not stopped and (message := self._channel.receive()) is not None:
                stopped = isinstance(message, StopProcess)
                self._handle(message)
            self._flush()
        self._close()

    def _close(self) -> None:
        if isinstance(self._rounds, RemoteGate):
            self._rounds.open()
        if self._worker is not None:
            self._worker.stop()
            if not self._worker.join(1.0):
                log.error("the worker's thread did not end within 1 s")
                os._exit(int(ExitCode.INTERNAL))
        self._flush()
        self._channel.close()
        self._waker.close()
        self._zmq_context.term()

    def _handle(self, message: WorkerOrder) -> None:
        if isinstance(message, StopProcess):
            return
        if isinstance(message, ConnectMembers):
            self._meet(list(message.members))
            return
        worker, rounds = self._worker, self._rounds
        assert worker is not None
        match message:
            case BeginTraining():
                worker.start(from_runs(message.progressive))
            case ConfirmBatch():
                worker.confirm(message.reader, message.sequence)
            case DrainWorker():
                worker.drain(message.sequences, self._on_drained, leaving=message.leaving)
            case DropNode():
                worker.node_lost(message.name)
            case SettleLostReader():
                worker.settle_reader(message.name, lambda: self._report(SettledReader(message.name)))
            case ConnectReader():
                worker.connect_reader(message.member)
            case ReplaceShard():
                member = message.member
                worker.replace_shard(member, lambda: self._report(SettledPushes(member.name)))
            case DropSyncNode():
                if rounds is not None:
                    rounds.mark_lost(message.token)
            case ReplaceSyncNode():
                if rounds is not None:
                    rounds.replace(message.number, message.member)
            case ScorePass():
                worker.evaluate(message.pass_number, self._weights(replica=message.use_replica))
            case CollectSums():
                worker.collect(message.pass_number, self._on_sums)
            case GatePass():
                if isinstance(rounds, RemoteGate):
                    rounds.release()
            case TraceProcess():
                self._trace(message.seconds)
            case _:
                assert_never(message)

    def _meet(self, members: list[MemberInfo]) -> None:
        config = self._config
        self._rounds = self._fixed_rate(members)
        self._worker = Worker(
            config.index,
            self._context,
            self._zmq_context,
            members,
            config.token,
            config.grant_key,
            self._on_trained,
            self._on_refused,
            self._rounds,
            self._on_failed,
        )

    def _fixed_rate(self, members: list[MemberInfo]) -> FixedRate | None:
        from ...sync_algos.catalog.registry import make_algorithm

        config, sync = self._config, self._config.job.sync
        if sync.mode != "fixed":
            return None
        algorithm = make_algorithm(sync.algorithm, sync.options)
        if algorithm.has_common_rounds:
            return RemoteGate(sync.every, self._report)
        if not algorithm.needs_center:
            return None
        algorithm.start(self._context.replica)
        syncs = sorted((m for m in members if m.role == "sync"), key=lambda m: m.index)
        trainers = sorted((m for m in members if m.role == "trainer"), key=lambda m: m.index)
        opening = ConnectionConfig(
            self._zmq_context, algorithm, syncs, trainers, config.trainer_index, config.token
        )
        return CenterRounds(config.index, self._context, opening, RemoteRoundLog(self._context, self._report))

    def _weights(self, *, replica: bool) -> torch.Tensor:
        return self._context.replica.flat if replica else self._scratch

    def _report(self, message: WorkerReport) -> None:
        """Queue a message, in order; any thread may call."""
        self._outgoing.put(message)
        self._waker.wake()

    def _on_trained(self, record: BatchAck) -> None:
        # Sent with the next tick, several at once: the trainer gathers them even longer.
        self._outgoing.put(record)

    def _on_refused(self, reader: str, why: str) -> None:
        self._report(RefusedReader(reader, why))

    def _on_drained(self, held: DrainResult) -> None:
        self._report(DrainedWorker(held.in_flight, held.progressive.to_bytes()))

    def _on_sums(self, sums: QualitySums) -> None:
        self._report(CollectedSums(sums.to_bytes()))

    def _on_failed(self, error: BaseException) -> None:
        if not isinstance(error, ShadowSyncError):
            log.error("the worker failed", exc_info=error)
        code = error.exit_code if isinstance(error, ShadowSyncError) else ExitCode.INTERNAL
        self._report(WorkerError(describe(error), code))

    def _trace(self, seconds: float) -> None:
        TRACER.start()
        self._trace_until = time.monotonic() + seconds

    def _flush(self) -> None:
        batches: list[BatchAck] = []
        while not self._outgoing.empty():
            message = self._outgoing.get()
            if isinstance(message, BatchAck):
                batches.append(message)
                continue
            self._queue_acked(batches)
            if isinstance(message, DrainedWorker | CollectedSums):
                # The trainer reads the counts along with the final result.
                self._queue_heartbeat()
            self._unsent.append(message)
        self._queue_acked(batches)
        if TRACER.on and time.monotonic() >= self._trace_until:
            trace = process_trace(f"worker-{self._config.index}", os.getpid(), TRACER.stop())
            self._unsent.append(TracedProcess(trace))
        if time.monotonic() - self._heartbeat_at >= HEARTBEAT_SECONDS:
            self._queue_heartbeat()
        while self._unsent and self._channel.send(self._unsent[0]):
            self._unsent.popleft()

    def _queue_acked(self, batches: list[BatchAck]) -> None:
        if batches:
            self._unsent.append(AckedBatches(tuple(batches)))
            batches.clear()

    def _queue_heartbeat(self) -> None:
        self._heartbeat_at = time.monotonic()
        rounds = self._rounds if isinstance(self._rounds, CenterRounds) else None
        sent_bytes, received_bytes = rounds.bytes if rounds is not None else (0, 0)
        heartbeat = WorkerHeartbeat(
            metrics=self._worker.metrics() if self._worker is not None else {},
            process=process_metrics(),
            threads=thread_figures(),
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            connections=rounds.connection_metrics() if rounds is not None else {},
        )
        self._unsent.append(heartbeat)


def main() -> int:
    """Run the process; return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Ctrl-C in a terminal reaches this process, too, but the trainer decides when it ends.
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    line = sys.stdin.buffer.readline()
    if not line:
        return int(ExitCode.STOPPED_BY_DEATH)
    config = WorkerProcessConfig.from_line(line)
    log_to_folder(config.folder, f"{config.trainer}-worker-{config.index}")

    WorkerProcessMain(config).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
