"""A worker process: the thread that trains, and this one, which talks to the trainer.

A worker process's entry: `python -m shadowsync.nodes.worker.worker_main`, started by its trainer.

Its order is the first line of standard input, which stays open as long as the trainer lives.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import zmq

from ...pipeline.data.span import from_runs
from ...pipeline.embedding.placement.plan import TablePlan
from ...pipeline.errors import ExitCode, ShadowSyncError
from ...pipeline.metrics import QualitySums
from ...pipeline.wire.control_orders import MemberInfo
from ...pipeline.wire.field_checks import record_of
from ...pipeline.wire.sockets import Waker
from ..replica.buffer import SharedMemory
from ..replica.replica import TrainerContext
from ..runtime.node import describe, process_metrics
from ..runtime.process import log_to_folder, log_to_stderr, tune_malloc
from ..runtime.tracing import TRACER, thread_figures
from ..shadow.fixed_rate import CenterRounds, FixedRate, RemoteGate, RemoteRoundLog
from ..shadow.links import LinkConfig
from .batches import BatchAck
from .handle import Held
from .process_channel import WorkerChannel, WorkerProcessConfig
from .worker import Worker

PULSE_SECONDS = 0.5
TICK_MILLISECONDS = 25

log = logging.getLogger(__name__)


class WorkerProcessMain:
    """Made and run by the process's first thread, which alone uses the pair; the worker's thread tells it
    what to send. The process ends when the trainer says so, or is gone: then nobody is left to train for."""

    def __init__(self, order: WorkerProcessConfig) -> None:
        torch.set_num_threads(1)
        tune_malloc()
        self._order = order
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._pair = WorkerChannel(self._context, order.endpoint)
        memory = SharedMemory.attach(order.descriptor)
        job = order.job
        plan = TablePlan.from_body(job.tables, job.embedding.nodes, order.plan)
        self._shared = TrainerContext.build(job, plan, memory)
        self._scored = memory.scratch(self._shared.replica.numel)
        memory.close()
        self._waker = Waker()
        self._told: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._unsent: deque[tuple[str, dict[str, Any]]] = deque()
        self._worker: Worker | None = None
        self._rounds: FixedRate | None = None
        self._pulsed_at = 0.0
        self._trace_until = 0.0

    def run(self) -> None:
        """Until the trainer ends it, or ends."""
        poller = zmq.Poller()
        for descriptor in (self._pair.socket, self._waker.fileno(), sys.stdin.fileno()):
            poller.register(descriptor, zmq.POLLIN)
        name, elements = self._order.trainer, self._shared.replica.numel
        log.info("worker %d of %s is ready, on a replica of %d elements", self._order.index, name, elements)
        # What the start cost is told before the trainer says that it is ready, so that training is measured
        # without it.
        self._pulse()
        self._send_later("ready", {})
        stopped = False
        while not stopped:
            ready = dict(poller.poll(TICK_MILLISECONDS))
            if sys.stdin.fileno() in ready:
                # Standard input has ended: the trainer is gone, and nobody hears what would be said.
                os._exit(int(ExitCode.STOPPED_BY_DEATH))
            self._waker.clear()
            while not stopped and (note := self._pair.receive()) is not None:
                stopped = note.verb == "stop"
                if not stopped:
                    self._heard(note.verb, note.body)
            self._send()
        self._close()

    def _close(self) -> None:
        if isinstance(self._rounds, RemoteGate):
            self._rounds.open()
        if self._worker is not None:
            self._worker.stop()
            if not self._worker.join(1.0):
                log.error("the worker's thread did not end within 1 s")
                os._exit(int(ExitCode.INTERNAL))
        self._send()
        self._pair.close()
        self._waker.close()
        self._context.term()

    def _heard(self, verb: str, body: dict[str, Any]) -> None:
        if verb == "meet":
            self._meet([record_of(MemberInfo, values) for values in body["members"]])
            return
        worker, rounds = self._worker, self._rounds
        assert worker is not None
        handlers: dict[str, Callable[[], None]] = {
            "begin": lambda: worker.start(from_runs(body["progressive"])),
            "confirm": lambda: worker.confirm(body["reader"], body["sequence"]),
            "hold": lambda: worker.hold(body["sequences"], self._on_held),
            "lose_shard": lambda: worker.lose_shard(body["name"]),
            "lose_sync": lambda: rounds.mark_lost(body["token"]) if rounds is not None else None,
            "evaluate": lambda: worker.evaluate(body["pass"], self._weights(replica=body["replica"])),
            "collect": lambda: worker.collect(body["pass"], self._on_sums),
            "pass": lambda: rounds.release() if isinstance(rounds, RemoteGate) else None,
            "trace": lambda: self._trace(body["seconds"]),
        }
        handlers[verb]()

    def _meet(self, members: list[MemberInfo]) -> None:
        order = self._order
        self._rounds = self._fixed_rate(members)
        self._worker = Worker(
            order.index,
            self._shared,
            self._context,
            members,
            order.token,
            self._on_trained,
            self._rounds,
            self._on_failed,
        )

    def _fixed_rate(self, members: list[MemberInfo]) -> FixedRate | None:
        from ...sync_algos.registry import make_algorithm

        order, sync = self._order, self._order.job.sync
        if sync.mode != "fixed":
            return None
        algorithm = make_algorithm(sync.algorithm, sync.options)
        if algorithm.needs_peers:
            return RemoteGate(sync.every, self._tell)
        if not algorithm.needs_center:
            return None
        algorithm.start(self._shared.replica)
        syncs = sorted((m for m in members if m.role == "sync"), key=lambda m: m.index)
        trainers = sorted((m for m in members if m.role == "trainer"), key=lambda m: m.index)
        links = LinkConfig(self._context, algorithm, syncs, trainers, order.trainer_index, order.token)
        return CenterRounds(order.index, self._shared, links, RemoteRoundLog(self._shared, self._tell))

    def _weights(self, *, replica: bool) -> torch.Tensor:
        return self._shared.replica.flat if replica else self._scored

    def _tell(self, verb: str, body: dict[str, Any]) -> None:
        """Any thread may call; what is told is sent in this order."""
        self._told.put((verb, body))
        self._waker.wake()

    def _on_trained(self, record: BatchAck) -> None:
        # Sent with the next tick, several at once: the trainer gathers them for longer.
        self._told.put(("trained", record.to_wire()))

    def _on_held(self, held: Held) -> None:
        self._tell(
            "held", {"in_flight": held.in_flight, "progressive": held.progressive.to_array().tobytes()}
        )

    def _on_sums(self, sums: QualitySums) -> None:
        self._tell("sums", {"sums": sums.to_array().tobytes()})

    def _on_failed(self, error: BaseException) -> None:
        if not isinstance(error, ShadowSyncError):
            log.error("the worker failed", exc_info=error)
        code = error.exit_code if isinstance(error, ShadowSyncError) else ExitCode.INTERNAL
        self._tell("failed", {"what": describe(error), "exit_code": int(code)})

    def _trace(self, seconds: float) -> None:
        TRACER.start()
        self._trace_until = time.monotonic() + seconds

    def _send(self) -> None:
        records: list[Any] = []
        while not self._told.empty():
            verb, body = self._told.get()
            if verb == "trained":
                records.append(body)
                continue
            if records:
                self._send_later("trained", {"records": records})
                records = []
            if verb in ("held", "sums"):
                # Who asks for an end result reads the counts that belong to it.
                self._pulse()
            self._send_later(verb, body)
        if records:
            self._send_later("trained", {"records": records})
        if TRACER.on and time.monotonic() >= self._trace_until:
            self._send_later("traced", TRACER.stop() | {"pid": os.getpid()})
        if time.monotonic() - self._pulsed_at >= PULSE_SECONDS:
            self._pulse()
        while self._unsent and self._pair.send(*self._unsent[0]):
            self._unsent.popleft()

    def _send_later(self, verb: str, body: dict[str, Any]) -> None:
        self._unsent.append((verb, body))

    def _pulse(self) -> None:
        self._pulsed_at = time.monotonic()
        metrics = self._worker.metrics() if self._worker is not None else {}
        own = self._rounds if isinstance(self._rounds, CenterRounds) else None
        body = {
            "metrics": metrics,
            "process": process_metrics(),
            "threads": thread_figures(),
            "bytes": list(own.bytes) if own is not None else [0, 0],
            "links": own.link_metrics() if own is not None else {},
        }
        self._send_later("pulse", body)


def main() -> int:
    """The exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A terminal's Ctrl-C reaches this process too; when it ends is for the trainer to say.
        signal.signal(number, signal.SIG_IGN)
    log_to_stderr()
    line = sys.stdin.buffer.readline()
    if not line:
        return int(ExitCode.STOPPED_BY_DEATH)
    order = WorkerProcessConfig.from_line(line)
    log_to_folder(order.folder, f"{order.trainer}-worker-{order.index}")

    WorkerProcessMain(order).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
