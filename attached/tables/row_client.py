"""The thread that exchanges rows and gradients with the embedding nodes."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import zmq

from ...nodes.runtime.threads import POLL_MILLISECONDS, Service
from ...nodes.worker.batches import RowRequests
from ...nodes.worker.connections import WorkerConnections
from ...pipeline.config.job import Job
from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.errors import ClusterError
from ...pipeline.types import BatchId, Float32Array
from ...pipeline.wire.control.orders import MemberInfo
from ..tables_job import EPOCH

_NO_PUSH: Final = BatchId(EPOCH, 0, 0, 0)


@dataclass(slots=True)
class TableRequest(RowRequests):
    """A lookup, or a push of the gradients of what it got.

    `number` is that of the push.
    """

    push: BatchId = _NO_PUSH
    answered: Future[None] = field(default_factory=Future)

    @property
    def id(self) -> BatchId:
        return self.push


class RowsLost(ClusterError):
    """The embedding nodes do not answer any more."""


class RowClient(Service):
    """The thread with the connections of one module to the embedding nodes.

    A module's pushes and lookups are sent in the order of the calls, so a lookup that is called after a push
    sees it. Any thread may call `look_up`, `push` and `flush`, which raise RowsLost once the thread has
    ended.

    Args:
        members: the embedding nodes, and the module.
        token, index: those of the module.
        job: the job of the tables.
        max_pending: pushes that may be unanswered before `push` waits.
        first: number of the first push; nodes ignore a number that they had.

    Attributes:
        passes: number of the next push.
        pushes: how many pushes all nodes have applied.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        token: str,
        index: int,
        job: Job,
        failed: Callable[[BaseException], None],
        max_pending: int,
        first: int = 0,
    ) -> None:
        super().__init__("table rows", failed)
        self._context, self._members, self._job = context, list(members), job
        self._identity, self._span = f"{token}/0", index
        self._max_pending = max_pending
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        # Read and written only while the condition is held: the requests that wait for an answer, and whether
        # the thread takes no more.
        self._looking_up: set[Future[None]] = set()
        self._pending = 0
        self._is_over = False
        self._connections: WorkerConnections[TableRequest] | None = None
        self._lookups: list[TableRequest] = []
        self.passes, self.pushes = first, 0

    def metrics(self) -> dict[str, float]:
        """Return counts so far; any thread may call."""
        connections = self._connections
        counts = {} if connections is None else connections.metrics()
        return counts | {
            "passes": float(self.passes),
            "pushes": float(self.pushes),
            "pending_pushes": float(self._pending),
        }

    def look_up(self, plans: Sequence[LookupPlan]) -> TableRequest:
        """Ask each node for its part, and wait for the answers."""
        request = TableRequest()
        with self._changed:
            self._require_here()
            self._looking_up.add(request.answered)
        self._call(lambda: self._send_lookup(request, plans))
        request.answered.result()
        return request

    def push(self, looked_up: TableRequest, gradients: Sequence[Float32Array], lr_scale: float) -> None:
        """Send each node the gradients of its part; they are not changed.

        Waits only while too many pushes are unanswered.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._pending < self._max_pending or self._is_over)
            self._require_here()
            self._pending += 1
            request = TableRequest(
                push=BatchId(EPOCH, self._span, self.passes, self._job.run.seed),
                requests=looked_up.requests,
                versions=looked_up.versions,
                lr_scale=lr_scale,
            )
            self.passes += 1
            # The queue has the order of the numbers.
            self._call(lambda: self._send_push(request, gradients))

    def flush(self) -> None:
        """Wait until all pushes are applied."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending or self._is_over)
            if self._pending:
                self._require_here()

    def body(self) -> None:
        """Exchange messages until told to stop."""
        connections = self._connections = WorkerConnections[TableRequest](
            self._context, self._members, self._identity, self._job, self.waker.fileno()
        )
        try:
            while not self.stopping:
                connections.poll(POLL_MILLISECONDS)
                self.waker.clear()
                while not self._commands.empty():
                    self._commands.get()()
                self._answer(len(connections.take_replies()))
        finally:
            connections.close()
            self._end()

    def _call(self, command: Callable[[], object]) -> None:
        self._commands.put(command)
        self.waker.wake()

    def _send_lookup(self, request: TableRequest, plans: Sequence[LookupPlan]) -> None:
        assert self._connections is not None
        self._connections.shards.look_up(request, plans, time.monotonic())
        self._lookups.append(request)

    def _send_push(self, request: TableRequest, gradients: Sequence[Float32Array]) -> None:
        assert self._connections is not None
        self._connections.shards.push(request, gradients, time.monotonic())

    def _answer(self, pushed: int) -> None:
        """Wake those whose answers are there."""
        done = [request.answered for request in self._lookups if not request.pending_lookups]
        if done:
            self._lookups = [request for request in self._lookups if request.pending_lookups]
        with self._changed:
            self._looking_up.difference_update(done)
            self._pending -= pushed
            self.pushes += pushed
            self._changed.notify_all()
        for future in done:
            future.set_result(None)

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            waiting, self._looking_up = self._looking_up, set()
            self._changed.notify_all()
        for future in waiting:
            future.set_exception(_lost())

    def _require_here(self) -> None:
        if self._is_over:
            raise _lost()


def _lost() -> RowsLost:
    return RowsLost("the embedding nodes do not answer any more")
