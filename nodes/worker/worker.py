"""A Hogwild worker's thread: batches in, vectors in, one lock-free step, gradients out."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import zmq

from ...pipeline.embedding.lookup.request import LookupPlan
from ...pipeline.errors import JobFileError, ProtocolError
from ...pipeline.metrics import QualitySums
from ...pipeline.wire.control_orders import MemberInfo
from ..replica.replica import TrainerContext
from ..runtime.threads import Service
from ..runtime.tracing import TRACER, Activity
from ..shadow.fixed_rate import FixedRate
from .batches import BatchAck, InFlightBatch
from .connections import MAX_UNANSWERED_PUSHES, WorkerConnections
from .handle import Held
from .step import Step, Stepper

POLL_MILLISECONDS = 50
WAITS = ("reader", "vectors", "pushes", "end")


class Worker(Service):
    """One worker of a trainer; owns its sockets to readers and embedding nodes. As a thread of the trainer it
    is a `WorkerHandle`, whose methods are described there; in a worker process it is the one thread that
    trains.

    The loop: take what has arrived, ask for the vectors of the batches ahead, compute the batch whose
    vectors are there, push its gradients. A batch is told to `trained` once every shard has answered its
    push; one whose loss or gradients are not finite at once, as left out, and nothing of it is pushed. In
    deterministic mode nothing is looked up ahead, so that the order of lookups and pushes at the shards is
    that of the batches. On a GPU the next step is launched before the results of the last are waited for and
    pushed.
    """

    def __init__(
        self,
        index: int,
        shared: TrainerContext,
        context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        token: str,
        trained: Callable[[BatchAck], None],
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
        self._ahead = 1 if shared.job.run.deterministic else 1 + shared.job.trainer.lookups_ahead
        self._confirmed: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._inbox: deque[InFlightBatch] = deque()
        self._slots: deque[InFlightBatch] = deque()
        self._launched: deque[tuple[InFlightBatch, Step]] = deque()
        self._held_until: Mapping[str, int] | None = None
        self._told_held: Callable[[Held], object] | None = None
        self._progressive: frozenset[int] = frozenset()
        self._progressive_sums = QualitySums()
        self._stranded: list[InFlightBatch] = []
        self._pass = 0
        self._sums = QualitySums()
        self._waits: dict[str, float] = dict.fromkeys(WAITS, 0.0)
        self._computing = Activity("compute", cpu=True)
        self._asking = Activity("ask for vectors")
        self._pushing = Activity("push gradients")
        self._in_round = Activity("wait for synchronization")
        self._trained_examples = 0
        self._left_out_batches = 0
        self._links: WorkerConnections | None = None

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """See `WorkerHandle.start`."""
        self._progressive = progressive
        super().start()

    def confirm(self, reader: str, sequence: int) -> None:
        """See `WorkerHandle.confirm`."""
        self._confirmed.put((reader, sequence))

    def hold(self, sequences: Mapping[str, int], told: Callable[[Held], object]) -> None:
        """See `WorkerHandle.hold`."""

        def command() -> None:
            self._held_until, self._told_held = sequences, told

        self._call(command)

    def lose_shard(self, name: str) -> None:
        """See `WorkerHandle.lose_shard`."""
        self._call(lambda: self._stranded.extend(self._shards.lose(name)))

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """See `WorkerHandle.evaluate`."""

        def command() -> None:
            self._pass, self._sums = pass_number, QualitySums()
            self._stepper.score_with(flat)

        self._call(command)

    def collect(self, pass_number: int, told: Callable[[QualitySums], object]) -> None:
        """See `WorkerHandle.collect`."""

        def command() -> None:
            told(self._sums if pass_number == self._pass else QualitySums())

        self._call(command)

    def trace(self, seconds: float, told: Callable[[dict[str, Any]], object]) -> bool:  # noqa: ARG002
        """See `WorkerHandle.trace`."""
        return False

    def metrics(self) -> dict[str, Any]:
        """See `WorkerHandle.metrics`. What it waited for, in seconds: a batch, the vectors of one, answers to
        pushes, the end of a hold; at a fixed rate also rounds, which `wait_seconds` has not. What it did:
        steps of the dense model (`compute`), and the routing of lookups and gradients (`route`)."""
        if self._links is None:
            return {}
        return {
            "trained_examples": self._trained_examples,
            "wait_seconds": sum(self._waits.values()),
            **{f"wait_for_{cause}_seconds": self._waits[cause] for cause in WAITS},
            "wait_for_sync_seconds": self._in_round.seconds,
            "compute_seconds": self._computing.seconds,
            "compute_cpu_seconds": self._computing.cpu_seconds,
            "route_seconds": self._asking.seconds + self._pushing.seconds,
            "clipped_steps": self._stepper.clipped_steps,
            "left_out_batches": self._left_out_batches,
            **self._links.metrics(),
        }

    def body(self) -> None:
        """Works until told to stop, then closes the sockets."""
        torch.set_num_threads(1)
        self._stepper = Stepper(self._shared)
        links = WorkerConnections(
            self._context,
            self._members,
            self._identity,
            self._shared.job,
            self.waker.fileno(),
        )
        self._readers, self._shards, self._links = links.readers, links.shards, links
        try:
            while not self.stopping:
                idle = self._ready() is None and not self._launched
                self._receive(links, POLL_MILLISECONDS if idle else 0)
                self._look_ahead()
                slot = self._ready()
                if slot is not None:
                    self._compute(slot)
                elif self._launched:
                    self._land()
                elif self._fixed_rate is not None and not self._slots:
                    with self._in_round:
                        self._fixed_rate.nothing_to_train()
                self._report()
        finally:
            links.close()
            if self._fixed_rate is not None:
                self._fixed_rate.close()

    def _call(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self.waker.wake()

    def _receive(self, links: WorkerConnections, timeout_milliseconds: int) -> None:
        lacks = self._lacks()
        waited = links.poll(timeout_milliseconds)
        self._waits[lacks] += waited
        if TRACER.on:
            TRACER.note(f"wait for {lacks}", time.monotonic() - waited, waited)
        self.waker.clear()
        while not self._commands.empty():
            self._commands.get()()
        delivered, pushed = links.receive()
        self._inbox.extend(delivered)
        for slot in pushed:
            self._finish(slot)
        while not self._confirmed.empty():
            reader, sequence = self._confirmed.get()
            self._readers[reader].finished(sequence)

    def _lacks(self) -> str:
        """What the next step lacks, of WAITS."""
        if self._held_until is not None:
            return "end"
        if not self._slots:
            return "reader"
        return "vectors" if self._slots[0].unanswered else "pushes"

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
            with self._asking:
                self._shards.look_up(slot, self._requests(slot), now)
            self._slots.append(slot)

    def _requests(self, slot: InFlightBatch) -> list[LookupPlan]:
        """Raises ProtocolError for a batch that is none of this job's: nothing of it is asked for."""
        asked = slot.delivery
        try:
            return self._shared.router.requests(asked.rows, asked.bag_rows, asked.bag_lengths)
        except ValueError as error:
            raise ProtocolError(
                f"{slot.line.reader} delivered batch {tuple(asked.id)}, and {error}",
                where="reader",
                remedy="use one version of shadowsync, and of a prepared folder, on all nodes",
            ) from error

    def _ready(self) -> InFlightBatch | None:
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

    def _compute(self, slot: InFlightBatch) -> None:
        self._slots.popleft()
        if not slot.training:
            # What was looked up for a pass that was given up meanwhile belongs to no sums.
            if slot.delivery.pass_number == self._pass:
                self._score(slot)
            self._drop(slot)
            return
        if self._fixed_rate is not None:
            with self._in_round:
                self._fixed_rate.before_step()
        with self._computing:
            step = self._stepper.stage(slot.delivery, slot.requests, slot.answers)
            targets = self._shards.targets(slot)
            step.vectors.gradients_into([None if lease is None else lease.values for lease in targets])
            self._stepper.launch(step)
        self._launched.append((slot, step))
        slot.line.processed()
        if not step.left_out:
            self._count_examples(len(slot.delivery.labels))
            self._shared.iterations[self.index] += 1
            if self._fixed_rate is not None:
                with self._in_round:
                    self._fixed_rate.after_iteration()
        while len(self._launched) > self._stepper.ahead:
            self._land()

    def _score(self, slot: InFlightBatch) -> None:
        """Raises JobFileError for a batch with a logit that is not finite: the pass would have no figure."""
        asked = slot.delivery
        try:
            self._stepper.score(asked, slot.requests, slot.answers, self._sums)
        except ValueError as error:
            raise JobFileError(
                f"batch {tuple(asked.id)} of scoring pass {asked.pass_number}, over held-out data, cannot be"
                f" scored: {error}",
                where=slot.line.reader,
                remedy="lower trainer.lr or embedding.lr, or mend what the model makes of these rows",
            ) from error

    def _count_examples(self, trained: int) -> None:
        self._trained_examples += trained
        self._shared.examples[self.index] = self._trained_examples

    def _land(self) -> None:
        """Of the batch that was launched first: its results, to where they belong."""
        slot, step = self._launched.popleft()
        counted = not step.left_out
        if self._shards.lost:
            # It was computed when the node was there, and can be pushed nowhere.
            self._stranded.append(slot)
            return
        id = slot.delivery.id
        scored = self._progressive_sums if id.epoch == 0 and id.span in self._progressive else None
        with self._computing:
            slot.loss, gradients = self._stepper.finish(step, scored)
        if step.left_out:
            if counted:
                self._count_examples(-len(slot.delivery.labels))
            self._left_out_batches += 1
            self._trained(BatchAck.leaving_out(self.index, slot.line.reader, slot.delivery, step.left_out))
            return
        slot.lr_scale = step.rows_scale
        with self._pushing:
            self._shards.push(slot, gradients, time.monotonic())
        slot.answers = []

    def _finish(self, slot: InFlightBatch) -> None:
        self._trained(BatchAck.of(self.index, slot.line.reader, slot.delivery, slot.loss))

    def _drop(self, slot: InFlightBatch) -> None:
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
            in_flight = sum(len(slot.delivery.labels) for slot in untrained)
            self._told_held(Held(in_flight, self._progressive_sums))
            self._told_held = None

    def _is_held(self) -> bool:
        assert self._held_until is not None
        arrived = all(line.received >= self._held_until.get(name, 0) for name, line in self._readers.items())
        waiting = sum(1 for slot in (*self._slots, *self._inbox, *self._stranded) if slot.training)
        unconfirmed = sum(line.unfinished for line in self._readers.values()) - waiting
        return arrived and self._shards.open_pushes == 0 and unconfirmed <= 0
