"""A Hogwild worker: batches in, vectors in, one lock-free step, gradients out."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

import torch
import zmq

from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.wire.control.orders import MemberInfo
from ...pipeline.wire.messages import Delivery
from ..replica.replica import TrainerContext
from ..runtime.threads import Service
from ..runtime.tracing import TRACER, Activity
from ..shadow.fixed_rate import FixedRate
from .batches import BatchAck, DrainResult, InFlightBatch, UnconfirmedBatches
from .connections import WorkerConnections
from .delivery_check import DeliveryCheck
from .prefetch import WorkerClock
from .reader_client import ReaderClient
from .scoring import Scoring
from .step import Step, Stepper

POLL_MILLISECONDS = 50
WAITS = ("reader", "vectors", "pushes", "validation", "end")


@dataclass
class _Drain:
    """The end of training.

    Attributes:
        until: each reader's last sequence to this worker.
        reply: called once it has come; None afterwards, until it is asked for again.
        leaving: whether the readers take untrained deliveries back.
    """

    until: Mapping[str, int]
    reply: Callable[[DrainResult], object] | None
    leaving: bool


class Worker(Service):
    """One worker of a trainer, a thread; owns its sockets to readers and embedding nodes.

    Any thread may call its public methods; only `join` waits.

    The loop: receive messages, look up the vectors of the batches ahead, compute the batch whose vectors have
    arrived, push its gradients. A batch is passed to `trained` once every embedding node has answered its
    push. A batch with non-finite loss or gradients is passed at once, as left out, and nothing is pushed. A
    delivery that cannot be is thrown away, and `refused` is called with its reader's name and the reason;
    `event` is called with what a user should know. In
    deterministic mode nothing is looked up ahead, so that embedding nodes see lookups and pushes in the order
    of the batches. On a GPU the next step is launched before the results of the last are awaited and pushed.
    At the start of a job (`Job.start_examples`) the first worker trains alone, each batch with rows
    that have the gradients of those before; the others begin one after the other (`Job.begins_at`).
    """

    def __init__(
        self,
        index: int,
        context: TrainerContext,
        zmq_context: zmq.Context[zmq.Socket[bytes]],
        members: Sequence[MemberInfo],
        token: str,
        grant_key: str,
        trained: Callable[[BatchAck], None],
        refused: Callable[[str, str], None],
        event: Callable[[str], None],
        fixed_rate: FixedRate | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(f"worker-{index}", failed)
        self.index = index
        self._context = context
        self._connect = partial(
            WorkerConnections[InFlightBatch],
            zmq_context,
            members,
            f"{token}/{index}",
            context.job,
            page_lock=context.device.page_lock,
            rows=context.rows_in_flight,
            worker=index,
        )
        self._early = True
        self._warms_up = context.job.rows_warmup_examples > 0
        self._depth_is_exact = context.job.depth_is_exact
        self._trained = trained
        self._refused = refused
        self._event = event
        self._check = DeliveryCheck(context.job, context.router, grant_key)
        self._fixed_rate = fixed_rate
        self._confirmed: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._inbox: deque[InFlightBatch] = deque()
        self._batches: deque[InFlightBatch] = deque()
        self._launched: deque[tuple[InFlightBatch, Step]] = deque()
        self._drain: _Drain | None = None
        self._discarded_examples = 0
        self._draining_readers: list[tuple[str, Callable[[], object]]] = []
        self._unconfirmed = UnconfirmedBatches()
        self._scoring = Scoring(context.job.ranking)
        self._stranded: list[InFlightBatch] = []
        self._waits: dict[str, float] = dict.fromkeys(WAITS, 0.0)
        self._computing = Activity("compute", cpu=True)
        self._looking_up = Activity("request vectors")
        self._completing = Activity("add own pushes")
        self._pushing = Activity("push gradients")
        self._waiting_for_round = Activity("wait for synchronization")
        self._trained_examples = 0
        self._left_out_batches = 0
        self._has_begun = False

    def start(self, progressive: frozenset[int] = frozenset()) -> None:
        """Connect, and begin to train.

        Batches of the `progressive` spans are scored before their step, in the first epoch.
        """
        self._scoring.score_before_steps(progressive)
        # The thread takes the sockets over, and closes them.
        self._connections = self._connect(self.waker.fileno(), waits=not self._context.has_begun(self.index))
        super().start()

    def confirm(self, reader: str, sequence: int) -> None:
        """Let the reader forget a batch that the coordinator has recorded."""
        self._confirmed.put((reader, sequence))

    def drain(
        self, sequences: Mapping[str, int], reply: Callable[[DrainResult], object], *, leaving: bool = False
    ) -> None:
        """Stop training after the current batch.

        Args:
            sequences: each reader's last sequence to this worker.
            reply: called on this thread when all of those have arrived and nothing is in flight.
            leaving: whether the readers take untrained deliveries back; they are then not marked as done.
        """
        self._call(lambda: self._end_training(_Drain(sequences, reply, leaving)))

    def node_lost(self, name: str) -> None:
        """Expect nothing more from a reader or an embedding node.

        Requests to an embedding node wait for its replacement, or until `drain`.
        """
        self._call(lambda: self._lose(name))

    def drain_reader(self, name: str, reply: Callable[[], object]) -> None:
        """Accept nothing more from a lost reader, and train what it has delivered.

        Calls `reply`, on this thread, when all of that is confirmed; for an unknown reader at once, and never
        connects to it.
        """
        self._call(lambda: self._connections.lose(name))
        self._call(lambda: self._draining_readers.append((name, reply)))

    def connect_reader(self, member: MemberInfo) -> None:
        """Connect to a reader that has joined, unless it is known."""
        self._call(lambda: self._connections.connect_reader(member))

    def replace_shard(self, member: MemberInfo, reply: Callable[[], object]) -> None:
        """Switch to a replacement embedding node.

        Calls `reply`, on this thread, when everything pushed before is confirmed.
        """
        self._call(lambda: self._connections.replace_shard(member))
        self._call(lambda: self._unconfirmed.when_confirmed(reply))

    def evaluate(self, pass_number: int, flat: torch.Tensor) -> None:
        """Score deliveries of this pass with these weights from now on.

        `flat` is float32 [numel] and must not change meanwhile. Deliveries of this pass that are already here
        have waited; those of earlier passes are dropped.
        """
        self._call(lambda: self._begin_pass(pass_number, flat))

    def collect(self, pass_number: int, reply: Callable[[PassSums], object]) -> None:
        """Pass the sums of a pass so far to `reply`, on this thread."""
        self._call(lambda: reply(self._scoring.sums_of(pass_number)))

    def metrics(self) -> dict[str, Any]:
        """Return the counts so far, which add up over workers.

        The seconds of waiting are for a batch (`reader`), its vectors, replies to pushes, a validation, and
        the end of a drain. `wait_seconds` leaves out waits for rounds. `compute` is the dense model's steps.
        """
        if not self._has_begun:
            return {}
        return {
            "trained_examples": self._trained_examples,
            "wait_seconds": sum(self._waits.values()),
            **{f"wait_for_{cause}_seconds": self._waits[cause] for cause in WAITS},
            "wait_for_sync_seconds": self._waiting_for_round.seconds,
            "compute_seconds": self._computing.seconds,
            "compute_cpu_seconds": self._computing.cpu_seconds,
            "captured_steps": self._stepper.captured_steps,
            "clipped_steps": self._stepper.clipped_steps,
            "left_out_batches": self._left_out_batches,
            **self._connections.metrics(),
        }

    def body(self) -> None:
        """Work until told to stop, then close the sockets."""
        torch.set_num_threads(1)
        connections = self._connections
        self._shards = connections.shards
        try:
            self._stepper = Stepper(self._context, self._event)
            self._has_begun = True
            while not self.stopping:
                # Before it waits: with one batch in flight, the next one has arrived, but is not looked up.
                self._look_ahead()
                idle = self._next_ready() is None and not self._launched
                self._receive(POLL_MILLISECONDS if idle else 0)
                self._look_ahead()
                batch = self._next_ready()
                if batch is not None:
                    self._compute(batch)
                elif self._launched:
                    self._finish_step()
                elif self._fixed_rate is not None and not self._batches:
                    with self._waiting_for_round:
                        self._fixed_rate.nothing_to_train()
                self._report()
        finally:
            connections.close()
            if self._fixed_rate is not None:
                self._fixed_rate.close()

    @property
    def _readers(self) -> Mapping[str, ReaderClient]:
        return self._connections.readers

    def _call(self, command: Callable[[], object]) -> None:
        self._commands.put(command)
        self.waker.wake()

    def _end_training(self, drain: _Drain) -> None:
        self._drain = drain
        if not drain.leaving:
            self._connections.end_training(drain.until)
        self._stranded.extend(self._shards.give_up())

    def _lose(self, name: str) -> None:
        self._connections.lose(name)
        if self._drain is not None:
            # A drain brings no more replacements.
            self._stranded.extend(self._shards.give_up())

    def _begin_pass(self, pass_number: int, flat: torch.Tensor) -> None:
        self._scoring.begin(pass_number)
        self._stepper.score_with(flat)

    def _receive(self, timeout_milliseconds: int) -> None:
        connections, missing = self._connections, self._missing()
        waited = connections.poll(timeout_milliseconds)
        self._waits[missing] += waited
        if TRACER.on:
            TRACER.note(f"wait for {missing}", time.monotonic() - waited, waited)
        self.waker.clear()
        while not self._commands.empty():
            self._commands.get()()
        self._inbox.extend(connections.take_deliveries(self._is_impossible))
        for batch in connections.take_replies():
            self._acknowledge(batch)
        while not self._confirmed.empty():
            reader, sequence = self._confirmed.get()
            self._readers[reader].mark_finished(sequence)
            self._unconfirmed.confirmed(reader, sequence)

    def _is_impossible(self, reader: ReaderClient, delivery: Delivery) -> bool:
        """Check a delivery before anything of it is used; report one that cannot be."""
        try:
            reader.require_granted(delivery)
            self._check.require(reader.name, delivery)
        except ValueError as error:
            self._refused(reader.name, str(error))
            return True
        return False

    def _missing(self) -> str:
        """Return what the next step waits for, of WAITS."""
        if self._drain is not None:
            return "end"
        if self._context.pause.is_on:
            return "validation"
        if not self._batches:
            return "reader"
        return "vectors" if self._batches[0].pending_lookups else "pushes"

    def _look_ahead(self) -> None:
        now = time.monotonic()
        is_shallow = self._begins_alone() and not self._depth_is_exact
        ahead = 0 if is_shallow else self._connections.prefetch.lookups_ahead
        while self._inbox and len(self._batches) <= ahead:
            batch = self._inbox[0]
            # A reader is sometimes faster than the trainer's order with the weights of a pass.
            pass_number = self._scoring.pass_number
            if batch.delivery.pass_number > pass_number or (batch.training and self._drain is not None):
                return
            self._inbox.popleft()
            if not batch.training and batch.delivery.pass_number < pass_number:
                self._drop(batch)
                continue
            with self._looking_up:
                requests = self._context.router.requests_of_checked(batch.delivery)
                self._shards.look_up(batch, requests, now, exact=batch.training)
            self._batches.append(batch)

    def _next_ready(self) -> InFlightBatch | None:
        if not self._batches or self._batches[0].pending_lookups:
            return None
        batch = self._batches[0]
        if batch.training and (
            self._drain is not None
            or self._context.pause.is_on
            or self._shards.lost
            or not self._connections.takes_pushes
        ):
            return None
        return batch

    def _compute(self, batch: InFlightBatch) -> None:
        self._batches.popleft()
        if not batch.training:
            if batch.delivery.pass_number == self._scoring.pass_number:  # And not abandoned meanwhile.
                self._scoring.score(batch, self._stepper)
            self._drop(batch)
            return
        self._measure_depth()
        if self._fixed_rate is not None:
            with self._waiting_for_round:
                # A replay writes nothing to the replica, so no round waits for it.
                rounds = self._fixed_rate
                (rounds.nothing_to_train if batch.delivery.replay else rounds.before_step)()
        with self._completing:
            self._shards.complete(batch)
        with self._computing:
            step = self._stepper.stage(batch.delivery, batch.requests, batch.replies)
            targets = self._shards.targets(batch)
            step.targets = [None if lease is None else lease.values for lease in targets]
            self._stepper.launch(step)
        self._launched.append((batch, step))
        batch.reader.mark_processed()
        if not step.left_out and not batch.delivery.replay:
            self._count_trained(len(batch.delivery.labels))
            self._context.iterations[self.index] += 1
            if self._fixed_rate is not None:
                with self._waiting_for_round:
                    self._fixed_rate.after_iteration()
        while len(self._launched) > (0 if self._begins_alone() else self._stepper.ahead):
            self._finish_step()

    def _is_early(self) -> bool:
        """Return whether the start goes on; once it is over for this worker, readers send it more."""
        if self._early and not self._context.is_early() and self._context.has_begun(self.index):
            self._early = False
            self._connections.widen_credit()
        return self._early

    def _begins_alone(self) -> bool:
        """Return whether the first worker trains alone, one batch after the other."""
        return self._warms_up and self._is_early()

    def _measure_depth(self) -> None:
        if self._is_early() and not self._depth_is_exact:
            return
        waits = self._waits
        clock = WorkerClock(
            seconds=time.monotonic(),
            other_seconds=waits["validation"] + waits["end"] + self._waiting_for_round.seconds,
            reader_seconds=waits["reader"],
            vectors_seconds=waits["vectors"] + waits["pushes"],
        )
        ready = sum(1 for _ in takewhile(lambda batch: not batch.pending_lookups, self._batches))
        self._connections.stepped(clock, ready)

    def _count_trained(self, trained: int) -> None:
        self._trained_examples += trained
        self._context.examples[self.index] = self._trained_examples

    def _finish_step(self) -> None:
        """Finish the oldest launched step, and push its gradients."""
        batch, step = self._launched.popleft()
        counted = not step.left_out and not batch.delivery.replay
        if self._shards.lost:
            # It was computed while the node still lived; now its push has no target.
            self._stranded.append(batch)
            return
        with self._computing:
            batch.loss, gradients = self._stepper.finish(step, self._scoring.progressive_of(batch))
        if step.left_out:
            if counted:
                self._count_trained(-len(batch.delivery.labels))
            self._left_out_batches += 1
            self._trained(BatchAck.leaving_out(self.index, batch.reader.name, batch.delivery, step.left_out))
            return
        batch.lr_scale, batch.other_losses = step.rows_scale, step.other_losses
        self._unconfirmed.pushed(batch.reader.name, batch.delivery.sequence)
        with self._pushing:
            self._shards.push(batch, gradients, time.monotonic())
        batch.replies = []

    def _acknowledge(self, batch: InFlightBatch) -> None:
        self._trained(BatchAck.of(self.index, batch.reader.name, batch.delivery, batch.losses))

    def _drop(self, batch: InFlightBatch) -> None:
        self._shards.release(batch)
        batch.reader.mark_processed()
        batch.reader.mark_finished(batch.delivery.sequence)

    def _report(self) -> None:
        now = time.monotonic()
        for reader in self._readers.values():
            reader.send_credit(now)
        self._confirm_drained_readers()
        self._unconfirmed.call_due_replies()
        if self._drain is not None:
            self._answer(self._drain)

    def _answer(self, drain: _Drain) -> None:
        """Reply to the end of training, once all has come and nothing is in flight."""
        if drain.reply is not None and self._is_drained(drain):
            untrained = [batch for batch in (*self._batches, *self._inbox, *self._stranded) if batch.training]
            # A coordinator that takes over at the end asks again.
            in_flight = self._discarded_examples + sum(len(batch.delivery.labels) for batch in untrained)
            # While its trainer leaves, keep them open: the whole job may still end first.
            if not drain.leaving:
                self._discarded_examples = in_flight
                self._discard(untrained)
            drain.reply(DrainResult(in_flight, self._scoring.progressive))
            drain.reply = None

    def _discard(self, untrained: Sequence[InFlightBatch]) -> None:
        self._batches.clear()
        self._stranded = []
        self._inbox = deque(batch for batch in self._inbox if not batch.training)
        self._shards.forget_lookups()
        for batch in untrained:
            self._drop(batch)

    def _confirm_drained_readers(self) -> None:
        for name, reply in tuple(self._draining_readers):
            reader = self._readers.get(name)
            if reader is None or not reader.unfinished:
                self._draining_readers.remove((name, reply))
                reply()

    def _is_drained(self, drain: _Drain) -> bool:
        arrived = all(
            client.is_lost or client.received >= drain.until.get(name, 0)
            for name, client in self._readers.items()
        )
        waiting = sum(1 for batch in (*self._batches, *self._inbox, *self._stranded) if batch.training)
        unconfirmed = sum(reader.unfinished for reader in self._readers.values()) - waiting
        return arrived and self._shards.pending_pushes == 0 and unconfirmed <= 0
