"""A Hogwild worker thread: batches in, vectors in, one lock-free step, gradients out."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import zmq

from ..pipeline.data.batch import BatchId
from ..pipeline.metrics.quality import QualitySums
from ..pipeline.wire.messages import Delivery
from ..pipeline.wire.sockets import Connection
from .fixed_rate import FixedRate
from .reader_line import ReaderLine
from .replica import Shared
from .role import MemberInfo
from .service import Service
from .shard_line import ShardLines, Slot
from .step import Stepper

POLL_MILLISECONDS = 50
MAX_UNANSWERED_PUSHES = 8


@dataclass(frozen=True, slots=True)
class Trained:
    """A batch that is trained, and whose pushes every shard has answered."""

    worker: int
    reader: str
    sequence: int
    id: BatchId
    examples: int
    loss_sum: float
    positives: int
    finished_at: float


class Worker(Service):
    """One worker of a trainer; owns its sockets to readers and embedding nodes.

    The loop: take what has arrived, ask for the vectors of the batches ahead, compute the batch whose
    vectors are there, push its gradients. A batch is told to `trained` once every shard has answered its
    push. In deterministic mode nothing is looked up ahead, so that the order of lookups and pushes at the
    shards is that of the batches.
    """

    def __init__(
        self,
        index: int,
        shared: Shared,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        token: str,
        trained: Callable[[Trained], None],
        fixed_rate: FixedRate | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"worker-{index}", failed)
        self.index = index
        self._shared = shared
        self._context = context
        self._members = members
        self._identity = f"{token}/{index}"
        self._trained = trained
        self._fixed_rate = fixed_rate
        self._ahead = 1 if shared.job.run.deterministic else 2
        self._confirmed: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._inbox: deque[Slot] = deque()
        self._slots: deque[Slot] = deque()
        self._held_until: Mapping[str, int] | None = None
        self._told_held: Callable[[int], None] | None = None
        self._stranded: list[Slot] = []
        self._pass = 0
        self._sums = QualitySums()
        self._wait_seconds = 0.0
        self._trained_examples = 0

    def confirm(self, reader: str, sequence: int) -> None:
        """The coordinator has noted a batch; any thread may call it."""
        self._confirmed.put((reader, sequence))

    def hold(self, sequences: Mapping[str, int], told: Callable[[int], None]) -> None:
        """Stops training after the batch at hand. Any thread may call it.

        Args:
            sequences: for each reader, the last sequence that it sent to this worker.
            told: called on this thread, with the examples that arrived and were not trained, when all of
                those have arrived and nothing is on its way any more.
        """

        def command() -> None:
            self._held_until, self._told_held = sequences, told

        self._call(command)

    def lose_shard(self, name: str) -> None:
        """An embedding node is gone: nothing is trained any more, and what was pushed to it never ends. Any
        thread may call it."""
        self._call(lambda: self._stranded.extend(self._shards.lose(name)))

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """From now on scores deliveries of this pass with these weights. Any thread may call it."""

        def command() -> None:
            self._pass, self._sums = pass_number, QualitySums()
            self._stepper.score_with(flat)

        self._call(command)

    def collect(self, pass_number: int, told: Callable[[QualitySums], None]) -> None:
        """Hands the sums of a pass to `told`, on this thread. Any thread may call it."""

        def command() -> None:
            told(self._sums if pass_number == self._pass else QualitySums())

        self._call(command)

    def metrics(self) -> dict[str, Any]:
        """Counts so far; any thread may read them."""
        if not self._opened:
            return {}
        connections = [line.connection for line in self._readers.values()] + self._shards.connections
        return {
            "trained_examples": self._trained_examples,
            "wait_seconds": self._wait_seconds,
            "lookups": self._shards.lookups,
            "resent_requests": self._shards.resent,
            "repeated_deliveries": sum(line.repeated_deliveries for line in self._readers.values()),
            "sent_bytes": sum(connection.sent_bytes for connection in connections),
            "received_bytes": sum(connection.received_bytes for connection in connections),
        }

    _opened = False

    def body(self) -> None:
        """Works until told to stop, then closes the sockets."""
        torch.set_num_threads(1)
        self._open()
        try:
            while not self.stopping:
                self._receive(POLL_MILLISECONDS if self._ready() is None else 0)
                self._look_ahead()
                slot = self._ready()
                if slot is not None:
                    self._compute(slot)
                elif self._fixed_rate is not None and not self._slots:
                    self._fixed_rate.nothing_to_train()
                self._report()
        finally:
            for line in self._readers.values():
                line.connection.close()
            for connection in self._shards.connections:
                connection.close()
            if self._fixed_rate is not None:
                self._fixed_rate.close()

    def _open(self) -> None:
        def connect(member: MemberInfo) -> Connection:
            return Connection(self._context, member.endpoint, self._identity)

        job = self._shared.job
        readers = [member for member in self._members if member.role == "reader"]
        shards = sorted((m for m in self._members if m.role == "embedding"), key=lambda m: m.index)
        self._readers = {r.name: ReaderLine(r.name, connect(r), job.trainer.credit) for r in readers}
        names = [member.name for member in shards]
        self._shards = ShardLines(
            [connect(m) for m in shards], names, job.model.embedding_dim, job.codecs.embedding()
        )
        self._stepper = Stepper(self._shared)
        self._poller = zmq.Poller()
        for connection in [line.connection for line in self._readers.values()] + self._shards.connections:
            self._poller.register(connection.socket, zmq.POLLIN)
        self._poller.register(self.waker.fileno(), zmq.POLLIN)
        self._checked_at = time.monotonic()
        self._opened = True

    def _call(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self.waker.wake()

    def _receive(self, timeout_milliseconds: int) -> None:
        before = time.monotonic()
        self._poller.poll(timeout_milliseconds)
        now = time.monotonic()
        self._wait_seconds += now - before
        self.waker.clear()
        while not self._commands.empty():
            self._commands.get()()
        for line in self._readers.values():
            while (message := line.connection.receive()) is not None:
                if isinstance(message, Delivery) and line.arrived(message):
                    self._inbox.append(Slot(line, message))
        for shard, connection in enumerate(self._shards.connections):
            while (message := connection.receive()) is not None:
                finished = self._shards.receive(shard, message)
                if finished is not None:
                    self._finish(finished)
        while not self._confirmed.empty():
            reader, sequence = self._confirmed.get()
            self._readers[reader].finished(sequence)
        if now - self._checked_at > 1.0:
            self._checked_at = now
            self._shards.resend_overdue(now)

    def _look_ahead(self) -> None:
        now = time.monotonic()
        while self._inbox and len(self._slots) < self._ahead:
            slot = self._inbox.popleft()
            if slot.training and self._held_until is not None:
                self._inbox.appendleft(slot)
                return
            if not slot.training and slot.delivery.pass_number != self._pass:
                self._drop(slot)
                continue
            self._shards.look_up(slot, self._shared.router.requests(slot.delivery.rows), now)
            self._slots.append(slot)

    def _ready(self) -> Slot | None:
        if not self._slots or self._slots[0].unanswered:
            return None
        slot = self._slots[0]
        if slot.training and (
            self._held_until is not None
            or self._shards.lost
            or self._shards.open_pushes >= MAX_UNANSWERED_PUSHES
        ):
            return None
        return slot

    def _compute(self, slot: Slot) -> None:
        self._slots.popleft()
        if not slot.training:
            self._stepper.score(slot.delivery, slot.requests, slot.answers, self._sums)
            self._drop(slot)
            return
        if self._fixed_rate is not None:
            self._fixed_rate.before_step()
        slot.loss, gradients = self._stepper.train(slot.delivery, slot.requests, slot.answers)
        self._shards.push(slot, gradients, time.monotonic())
        slot.answers = []
        slot.line.processed()
        self._trained_examples += len(slot.delivery.labels)
        self._shared.examples[self.index] = self._trained_examples
        self._shared.iterations[self.index] += 1
        if self._fixed_rate is not None:
            self._fixed_rate.after_iteration()

    def _finish(self, slot: Slot) -> None:
        labels = slot.delivery.labels
        record = Trained(
            worker=self.index,
            reader=slot.line.reader,
            sequence=slot.delivery.sequence,
            id=slot.delivery.id,
            examples=len(labels),
            loss_sum=slot.loss * len(labels),
            positives=int(labels.sum()),
            finished_at=time.monotonic(),
        )
        self._trained(record)

    def _drop(self, slot: Slot) -> None:
        slot.line.processed()
        slot.line.finished(slot.delivery.sequence)

    def _report(self) -> None:
        now = time.monotonic()
        for line in self._readers.values():
            line.tell(now)
        if self._told_held is not None and self._is_held():
            untrained = [slot for slot in (*self._slots, *self._inbox, *self._stranded) if slot.training]
            self._slots.clear()
            self._stranded = []
            self._inbox = deque(slot for slot in self._inbox if not slot.training)
            self._shards.forget_lookups()
            for slot in untrained:
                self._drop(slot)
            self._told_held(sum(len(slot.delivery.labels) for slot in untrained))
            self._told_held = None

    def _is_held(self) -> bool:
        assert self._held_until is not None
        arrived = all(line.received >= self._held_until.get(name, 0) for name, line in self._readers.items())
        waiting = sum(1 for slot in (*self._slots, *self._inbox, *self._stranded) if slot.training)
        unconfirmed = sum(line.unfinished for line in self._readers.values()) - waiting
        return arrived and self._shards.open_pushes == 0 and unconfirmed <= 0
