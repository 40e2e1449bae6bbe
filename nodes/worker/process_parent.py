"""A worker process as seen by its trainer: start, messages and monitoring."""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, assert_never

import torch
import zmq

from ...pipeline.data.span import to_runs
from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.text.format import duration
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.control.profile import ProcessTrace
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
    GateArrive,
    GatePass,
    GateStarve,
    GateWork,
    RefusedReader,
    ReplaceShard,
    RoundEnded,
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
from ..runtime.main_loop import PauseAwareClock
from ..runtime.process import WORKER, exit_status_text, python
from ..runtime.threads import Service
from ..shadow.fixed_rate import GatedRounds, RemoteRounds, WorkerRounds
from .handle import DrainResult
from .process_channel import WorkerChannel, WorkerProcessConfig, open_trainer_end

POLL_MILLISECONDS = 100
END_SECONDS = 1.5

Channel = WorkerChannel[WorkerOrder, WorkerReport]

log = logging.getLogger(__name__)


class WorkerDied(ShadowSyncError):
    """A worker process died or hangs; its trainer ends with it."""

    exit_code = ExitCode.STOPPED_BY_DEATH


class WorkerProcessMonitor(Service):
    """A thread that starts one worker process and lives as long as it.

    Args:
        config: the configuration of the process; the endpoint is filled in here.
        on_message: called on this thread with each message of the process; while it runs, no other is
            received.
        failed: called on this thread when the process dies or is silent for `run.node_timeout_seconds`, and
            with an exception of `on_message`.
    """

    def __init__(
        self,
        zmq_context: zmq.Context[zmq.Socket[bytes]],
        config: WorkerProcessConfig,
        on_message: Callable[[WorkerReport], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"worker-{config.index}-monitor", failed)
        self._zmq_context = zmq_context
        self._config = config
        self._on_message = on_message
        self._queued: queue.SimpleQueue[WorkerOrder] = queue.SimpleQueue()
        self._unsent: deque[WorkerOrder] = deque()
        self._limit_seconds = config.job.run.start_timeout_seconds

    def send(self, message: WorkerOrder) -> None:
        """Send a message to the process; any thread may call."""
        self._queued.put(message)
        self.waker.wake()

    def body(self) -> None:
        """Start the process and exchange messages until either ends."""
        channel = open_trainer_end(self._zmq_context)
        try:
            process = self._start(channel.endpoint)
            try:
                self._exchange_messages(channel, process)
            finally:
                self._end_process(process)
        finally:
            channel.close()

    def _start(self, endpoint: str) -> subprocess.Popen[bytes]:
        config = replace(self._config, endpoint=endpoint)
        process = subprocess.Popen(
            python(WORKER),
            stdin=subprocess.PIPE,
            pass_fds=(config.descriptor,),
        )
        log.info("worker %d is process %d", config.index, process.pid)
        assert process.stdin is not None
        # The pipe stays open: when it closes, the process knows that the trainer is gone.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(config.to_line())
            process.stdin.flush()
        return process

    def _exchange_messages(self, channel: Channel, process: subprocess.Popen[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(channel.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        # Excludes pauses: if this process was paused, messages sent meanwhile are still to be received.
        clock = PauseAwareClock()
        received_at, end_at = clock.now(), None
        while True:
            poller.poll(POLL_MILLISECONDS)
            self.waker.clear()
            code = process.poll()
            now = clock.now()
            if self._receive(channel):
                received_at = now
            if self.stopping and end_at is None:
                end_at = now + END_SECONDS
                self.send(StopProcess())
            if code is not None:
                if end_at is None:
                    raise self._death_error(process, exit_status_text(code))
                return
            self._flush(channel)
            if end_at is not None and now > end_at:
                return
            if end_at is None and now - received_at > self._limit_seconds:
                raise self._death_error(process, f"was silent for {duration(self._limit_seconds)}")

    def _receive(self, channel: Channel) -> bool:
        """Pass on the messages that have arrived; return whether there were any."""
        received = False
        while (message := channel.receive()) is not None:
            received = True
            self._limit_seconds = self._config.job.run.node_timeout_seconds
            self._on_message(message)
        return received

    def _flush(self, channel: Channel) -> None:
        """Send queued messages, as many as the process accepts now."""
        while not self._queued.empty():
            self._unsent.append(self._queued.get())
        while self._unsent and channel.send(self._unsent[0]):
            self._unsent.popleft()

    def _death_error(self, process: subprocess.Popen[bytes], how: str) -> WorkerDied:
        return WorkerDied(f"worker process {self._config.index} (pid {process.pid}) died: {how}")

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        """End the process, whatever state it is in."""
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class WorkerFailed(ShadowSyncError):
    """A worker process ended with an error of its own."""

    def __init__(self, text: str, exit_code: ExitCode) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class ProcessWorker:
    """A `WorkerHandle` of a process, which starts with the construction.

    Attributes:
        process_metrics: CPU seconds and memory of the process, as of its last heartbeat.
        threads: usage of each of its threads, as of its last heartbeat; see `thread_figures`.

    Args:
        flat: the trainer's replica, float32 [numel], in the shared memory.
        scratch: float32 [numel] in the shared memory, for weights to score that are not the replica's.
        ready: called, on a thread of the worker, when the process has built its model.
        failed: called, on a thread of the worker, when the process dies, hangs or fails.
    """

    def __init__(
        self,
        zmq_context: zmq.Context[zmq.Socket[bytes]],
        config: WorkerProcessConfig,
        flat: torch.Tensor,
        scratch: torch.Tensor,
        ready: Callable[[], object],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.index = config.index
        self._flat = flat
        self._scratch = scratch
        self._ready = ready
        self._trained: Callable[[BatchAck], None] | None = None
        self._refused: Callable[[str, str], None] | None = None
        self._rounds: WorkerRounds | None = None
        self._lock = threading.Lock()
        self._drain_reply: Callable[[DrainResult], object] | None = None
        self._trace_reply: Callable[[ProcessTrace], object] | None = None
        self._settling: list[tuple[str, Callable[[], object]]] = []
        self._sums_replies: list[Callable[[QualitySums], object]] = []
        self._metrics: dict[str, Any] = {}
        self.process_metrics: Mapping[str, float] = {}
        self.threads: Mapping[str, tuple[float, float]] = {}
        self._monitor = WorkerProcessMonitor(zmq_context, config, self._handle, failed)
        self._monitor.start()

    def connect(
        self,
        members: Iterable[MemberInfo],
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        rounds: WorkerRounds | None,
    ) -> None:
        """Send the worker the members of the job, once all have joined.

        The control thread calls it. `trained` and `refused` are called on a thread of the worker.
        """
        self._trained, self._refused, self._rounds = trained, refused, rounds
        self._monitor.send(ConnectMembers(tuple(members)))
        # This sends the sync nodes that are already lost; before `connect` the process could not handle them.
        if isinstance(rounds, RemoteRounds):
            rounds.bind(self._monitor.send)

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """Begin to train; see `WorkerHandle.start`."""
        self._monitor.send(BeginTraining(tuple(to_runs(progressive))))

    def confirm(self, reader: str, sequence: int) -> None:
        """Let the reader forget a batch; see `WorkerHandle.confirm`."""
        self._monitor.send(ConfirmBatch(reader, sequence))

    def drain(
        self, sequences: Mapping[str, int], reply: Callable[[DrainResult], object], *, leaving: bool = False
    ) -> None:
        """Stop training after the current batch; see `WorkerHandle.drain`."""
        self._drain_reply = reply
        self._monitor.send(DrainWorker(dict(sequences), leaving))

    def node_lost(self, name: str) -> None:
        """Expect nothing more from a reader or an embedding node; see `WorkerHandle.node_lost`."""
        self._monitor.send(DropNode(name))

    def settle_reader(self, name: str, reply: Callable[[], object]) -> None:
        """Train what a lost reader has delivered; see `WorkerHandle.settle_reader`."""
        with self._lock:
            self._settling.append((name, reply))
        self._monitor.send(SettleLostReader(name))

    def connect_reader(self, member: MemberInfo) -> None:
        """Connect to a reader that has joined; see `WorkerHandle.connect_reader`."""
        self._monitor.send(ConnectReader(member))

    def replace_shard(self, member: MemberInfo, reply: Callable[[], object]) -> None:
        """Switch to a replacement embedding node; see `WorkerHandle.replace_shard`."""
        with self._lock:
            self._settling.append((member.name, reply))
        self._monitor.send(ReplaceShard(member))

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """Score this pass with these weights; see `WorkerHandle.evaluate`.

        Weights that are not the replica's are copied into shared memory.
        """
        is_replica = flat.data_ptr() == self._flat.data_ptr()
        if not is_replica:
            self._scratch.copy_(flat)
        self._monitor.send(ScorePass(pass_number, is_replica))

    def collect(self, pass_number: int, reply: Callable[[QualitySums], object]) -> None:
        """Pass the sums of a pass to `reply`; see `WorkerHandle.collect`."""
        with self._lock:
            self._sums_replies.append(reply)
            self._monitor.send(CollectSums(pass_number))

    def trace(self, seconds: float, reply: Callable[[ProcessTrace], object]) -> bool:
        """Trace the process; see `WorkerHandle.trace`."""
        self._trace_reply = reply
        self._monitor.send(TraceProcess(seconds))
        return True

    def metrics(self) -> dict[str, Any]:
        """Return counts as of the last heartbeat; see `WorkerHandle.metrics`."""
        return self._metrics

    def stop(self) -> None:
        """Tell the process to end."""
        self._monitor.stop()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the end of the process; return whether it has ended."""
        return self._monitor.join(timeout_seconds)

    def _handle(self, message: WorkerReport) -> None:
        match message:
            case WorkerReady():
                self._ready()
            case AckedBatches():
                self._on_acked(message)
            case RefusedReader():
                assert self._refused is not None
                self._refused(message.reader, message.why)
            case WorkerHeartbeat():
                self._on_heartbeat(message)
            case RoundEnded():
                assert isinstance(self._rounds, RemoteRounds)
                self._rounds.count_round(message)
            case GateWork() | GateArrive() | GateStarve():
                self._pass_gate(message)
            case DrainedWorker():
                assert self._drain_reply is not None
                self._drain_reply(DrainResult(message.in_flight, QualitySums.from_bytes(message.progressive)))
            case SettledReader() | SettledPushes():
                self._on_settled(message.name)
            case CollectedSums():
                with self._lock:
                    reply = self._sums_replies.pop(0)
                reply(QualitySums.from_bytes(message.sums))
            case TracedProcess():
                if self._trace_reply is not None:
                    self._trace_reply(message.trace)
            case WorkerError():
                raise WorkerFailed(message.what, message.exit_code)
            case _:
                assert_never(message)

    def _on_acked(self, acked: AckedBatches) -> None:
        assert self._trained is not None
        for batch in acked.batches:
            self._trained(batch)

    def _on_settled(self, name: str) -> None:
        with self._lock:
            replies = [reply for node, reply in self._settling if node == name]
            self._settling = [one for one in self._settling if one[0] != name]
        for reply in replies:
            reply()

    def _on_heartbeat(self, heartbeat: WorkerHeartbeat) -> None:
        self._metrics, self.process_metrics, self.threads = (
            heartbeat.metrics,
            heartbeat.process,
            heartbeat.threads,
        )
        if isinstance(self._rounds, RemoteRounds):
            self._rounds.update(heartbeat)

    def _pass_gate(self, message: GateWork | GateArrive | GateStarve) -> None:
        """Wait at the gate of the trainer's workers on behalf of the process."""
        assert isinstance(self._rounds, GatedRounds)
        if isinstance(message, GateStarve):
            self._rounds.nothing_to_train()
            return
        if isinstance(message, GateWork):
            self._rounds.before_step()
        else:
            self._rounds.arrive()
        self._monitor.send(GatePass())
