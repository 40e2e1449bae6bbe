"""A worker that is a process of its own, over memory that it shares with its trainer.

A trainer's side of a worker process: it starts it, talks to it, and notices when it is gone.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import zmq

from ...pipeline.data.span import to_runs
from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.metrics import QualitySums
from ...pipeline.wire.control_orders import MemberInfo
from ...pipeline.wire.field_checks import values_of
from ...pipeline.wire.messages import WorkerMessage
from ..runtime.process import WORKER, exit_status_text, python
from ..runtime.threads import Service
from ..shadow.fixed_rate import GatedRounds, RemoteRounds, WorkerRounds
from .batches import BatchAck
from .handle import Held
from .process_channel import WorkerChannel, WorkerProcessConfig

POLL_MILLISECONDS = 100
END_SECONDS = 1.5

log = logging.getLogger(__name__)


class WorkerDied(ShadowSyncError):
    """A worker process is gone, or stands still; its trainer ends with it."""

    exit_code = ExitCode.STOPPED_BY_DEATH


class WorkerProcessMonitor(Service):
    """One thread for one worker process, which lives no longer than it.

    Args:
        order: what the process is started with; its endpoint is filled in here.
        heard: called on this thread with each note of the process; while it waits, nothing else is heard.
        failed: called on this thread when the process dies, is silent for `run.node_timeout_seconds`, or
            what `heard` raises.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        order: WorkerProcessConfig,
        heard: Callable[[WorkerMessage], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"worker-{order.index}-line", failed)
        self._context = context
        self._order = order
        self._heard = heard
        self._posts: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
        self._unsent: deque[tuple[str, dict[str, Any]]] = deque()
        self._limit_seconds = order.job.run.start_timeout_seconds

    def post(self, verb: str, body: dict[str, Any]) -> None:
        """Tells the process something; any thread may call it."""
        self._posts.put((verb, body))
        self.waker.wake()

    def body(self) -> None:
        """Starts the process and talks to it until one of the two ends."""
        pair = WorkerChannel(self._context)
        try:
            process = self._start(pair.endpoint)
            try:
                self._converse(pair, process)
            finally:
                self._end(process)
        finally:
            pair.close()

    def _start(self, endpoint: str) -> subprocess.Popen[bytes]:
        order = replace(self._order, endpoint=endpoint)
        process = subprocess.Popen(
            python(WORKER),
            stdin=subprocess.PIPE,
            pass_fds=(order.descriptor,),
        )
        log.info("worker %d is process %d", order.index, process.pid)
        assert process.stdin is not None
        # The pipe stays open: its end tells the process that the trainer is gone.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(order.to_line())
            process.stdin.flush()
        return process

    def _converse(self, pair: WorkerChannel, process: subprocess.Popen[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(pair.socket, zmq.POLLIN)
        poller.register(self.waker.fileno(), zmq.POLLIN)
        heard_at, end_at = time.monotonic(), None
        while True:
            poller.poll(POLL_MILLISECONDS)
            self.waker.clear()
            code = process.poll()
            if self._receive(pair):
                heard_at = time.monotonic()
            if self.stopping and end_at is None:
                end_at = time.monotonic() + END_SECONDS
                self.post("stop", {})
            if code is not None:
                if end_at is None:
                    raise self._death(process, exit_status_text(code))
                return
            self._send(pair)
            if end_at is not None and time.monotonic() > end_at:
                return
            if end_at is None and time.monotonic() - heard_at > self._limit_seconds:
                raise self._death(process, f"was silent for {self._limit_seconds:g} s")

    def _receive(self, pair: WorkerChannel) -> bool:
        """Hands on what has come; whether anything has."""
        came = False
        while (note := pair.receive()) is not None:
            came = True
            self._limit_seconds = self._order.job.run.node_timeout_seconds
            self._heard(note)
        return came

    def _send(self, pair: WorkerChannel) -> None:
        """Sends what can be sent; a process that is only starting hears it later."""
        while not self._posts.empty():
            self._unsent.append(self._posts.get())
        while self._unsent and pair.send(*self._unsent[0]):
            self._unsent.popleft()

    def _death(self, process: subprocess.Popen[bytes], how: str) -> WorkerDied:
        return WorkerDied(f"worker process {self._order.index} (pid {process.pid}) died: {how}")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Whatever state it is in, it is gone after this."""
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

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = ExitCode(exit_code)


class ProcessWorker:
    """A `WorkerHandle` of a process, which starts when this is made.

    Attributes:
        process_metrics: CPU seconds and memory of the process, as of its last pulse.
        threads: what each of its threads used, as of its last pulse; see `thread_figures`.

    Args:
        flat: the trainer's replica, float32 [numel], in the shared memory.
        scored: float32 [numel] in the shared memory, for weights to be scored that are not the replica's.
        ready: called, on a thread of the worker's, when the process has built its model.
        failed: called, on a thread of the worker's, when the process dies, stands still or fails.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        order: WorkerProcessConfig,
        flat: torch.Tensor,
        scored: torch.Tensor,
        ready: Callable[[], object],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.index = order.index
        self._flat = flat
        self._scored = scored
        self._ready = ready
        self._trained: Callable[[BatchAck], None] | None = None
        self._rounds: WorkerRounds | None = None
        self._lock = threading.Lock()
        self._told_held: Callable[[Held], object] | None = None
        self._told_traced: Callable[[dict[str, Any]], object] | None = None
        self._told_sums: list[Callable[[QualitySums], object]] = []
        self._metrics: dict[str, Any] = {}
        self.process_metrics: dict[str, float] = {}
        self.threads: dict[str, list[float]] = {}
        self._line = WorkerProcessMonitor(context, order, self._heard, failed)
        self._line.start()

    def meet(
        self, members: Iterable[MemberInfo], trained: Callable[[BatchAck], None], rounds: WorkerRounds | None
    ) -> None:
        """Whom it works with, once all are there; by the control thread. `trained` is called on a thread of
        the worker's."""
        self._trained, self._rounds = trained, rounds
        self._line.post("meet", {"members": [values_of(member) for member in members]})
        # It tells of sync nodes that were lost already, which the process knows what to do with only now.
        if isinstance(rounds, RemoteRounds):
            rounds.bind(self._line.post)

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """See `WorkerHandle.start`."""
        self._line.post("begin", {"progressive": to_runs(progressive)})

    def confirm(self, reader: str, sequence: int) -> None:
        """See `WorkerHandle.confirm`."""
        self._line.post("confirm", {"reader": reader, "sequence": sequence})

    def hold(self, sequences: Mapping[str, int], told: Callable[[Held], object]) -> None:
        """See `WorkerHandle.hold`."""
        self._told_held = told
        self._line.post("hold", {"sequences": dict(sequences)})

    def lose_shard(self, name: str) -> None:
        """See `WorkerHandle.lose_shard`."""
        self._line.post("lose_shard", {"name": name})

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """See `WorkerHandle.evaluate`. Weights that are not the replica's are copied into shared memory."""
        is_replica = flat.data_ptr() == self._flat.data_ptr()
        if not is_replica:
            self._scored.copy_(flat)
        self._line.post("evaluate", {"pass": pass_number, "replica": is_replica})

    def collect(self, pass_number: int, told: Callable[[QualitySums], object]) -> None:
        """See `WorkerHandle.collect`."""
        with self._lock:
            self._told_sums.append(told)
            self._line.post("collect", {"pass": pass_number})

    def trace(self, seconds: float, told: Callable[[dict[str, Any]], object]) -> bool:
        """See `WorkerHandle.trace`."""
        self._told_traced = told
        self._line.post("trace", {"seconds": seconds})
        return True

    def metrics(self) -> dict[str, Any]:
        """See `WorkerHandle.metrics`; as of the last pulse."""
        return self._metrics

    def stop(self) -> None:
        """See `WorkerHandle.stop`."""
        self._line.stop()

    def join(self, timeout_seconds: float) -> bool:
        """See `WorkerHandle.join`."""
        return self._line.join(timeout_seconds)

    def _heard(self, note: WorkerMessage) -> None:
        handlers: dict[str, Callable[[dict[str, Any]], object]] = {
            "ready": lambda _: self._ready(),
            "trained": self._on_trained,
            "pulse": self._on_pulse,
            "round": self._on_round,
            "held": self._on_held,
            "sums": self._on_sums,
            "traced": self._on_traced,
            "failed": self._on_failed,
        }
        if note.verb in ("work", "arrive", "starve"):
            self._at_gate(note.verb)
        else:
            handlers[note.verb](note.body)

    def _on_trained(self, body: dict[str, Any]) -> None:
        assert self._trained is not None
        for record in body["records"]:
            self._trained(BatchAck.from_wire(self.index, record))

    def _on_pulse(self, body: dict[str, Any]) -> None:
        self._metrics, self.process_metrics = body["metrics"], body["process"]
        self.threads = body["threads"]
        if isinstance(self._rounds, RemoteRounds):
            self._rounds.update(body)

    def _on_round(self, body: dict[str, Any]) -> None:
        assert isinstance(self._rounds, RemoteRounds)
        self._rounds.round(body)

    def _at_gate(self, verb: str) -> None:
        """Plays the worker at the gate where all workers of the trainer wait."""
        assert isinstance(self._rounds, GatedRounds)
        if verb == "starve":
            self._rounds.nothing_to_train()
            return
        if verb == "work":
            self._rounds.before_step()
        else:
            self._rounds.arrive()
        self._line.post("pass", {})

    def _on_held(self, body: dict[str, Any]) -> None:
        assert self._told_held is not None
        self._told_held(Held(int(body["in_flight"]), sums_of(body["progressive"])))

    def _on_sums(self, body: dict[str, Any]) -> None:
        with self._lock:
            told = self._told_sums.pop(0)
        told(sums_of(body["sums"]))

    def _on_traced(self, body: dict[str, Any]) -> None:
        if self._told_traced is not None:
            self._told_traced(body | {"process": f"worker-{self.index}"})

    def _on_failed(self, body: dict[str, Any]) -> None:
        raise WorkerFailed(str(body["what"]), int(body["exit_code"]))


def sums_of(data: bytes) -> QualitySums:
    """Of what a process told; raises ValueError."""
    return QualitySums.from_array(np.frombuffer(data, dtype=np.float64))
