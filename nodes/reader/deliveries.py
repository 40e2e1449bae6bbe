"""Deliveries of a reader's batches to workers: a state machine without I/O.

Events in (offered batches, credit of workers, lost trainers, time), deliveries out. A
delivery is kept until its worker's credit reports it done, so that it can be sent again or given to another.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...pipeline.config.trainer import MOST_CREDIT
from ...pipeline.data.batch import Batch
from ...pipeline.types import BatchId
from ...pipeline.wire.endpoints import token_of
from ...pipeline.wire.messages import Credit, CreditNoted, Delivery
from ...pipeline.wire.rpc.retransmission import DELIVERY
from .waiting_batches import TRAINING, WaitingBatches


@dataclass(slots=True)
class _SentBatch:
    pass_number: int
    batch: Batch
    sent_at: float


@dataclass(slots=True)
class _WorkerState:
    """The record of one worker; sequences count from 1."""

    sent: int = 0
    limit: int = 0
    received: int = 0
    done: int = 0
    credit: Credit | None = None
    unfinished: OrderedDict[int, _SentBatch] = field(default_factory=OrderedDict)


def size_of(batch: Batch) -> int:
    """Return the bytes of a batch in memory."""
    tensors = (batch.labels, batch.dense, batch.rows, batch.weights, batch.bag_rows, batch.bag_lengths)
    further = (batch.other_labels, batch.item_weights, batch.keys, batch.bag_keys, batch.groups)
    return sum(tensor.nbytes for tensor in (*tensors, *further))


class DeliveryState:
    """All deliveries of one reader; owned by its sender.

    Times are seconds of any clock that never goes back.

    Args:
        retain_bytes: `data.retain_bytes`.
        consecutive: `trainer.consecutive_batches`.
        window: most batches that a worker may ask for beyond those that it was sent, `trainer.credit`.

    Attributes:
        delivered_examples: the examples to train that each trainer was sent, by its token; a repeat does not
            count.
    """

    def __init__(self, retain_bytes: int, consecutive: int = 1, window: int = MOST_CREDIT) -> None:
        self._retain_bytes = retain_bytes
        self._window = window
        self._waiting = WaitingBatches(consecutive)
        self._workers: OrderedDict[bytes, _WorkerState] = OrderedDict()
        self._lost_tokens: set[str] = set()
        self._unresolved: dict[tuple[str, BatchId], Batch] = {}
        self._trainers_of_pass: dict[int, frozenset[str]] = {}
        self._newest_pass = TRAINING
        self._draining = False
        self.retained_bytes = 0
        self.read_examples = 0
        self.delivered_examples: Counter[str] = Counter()
        self.read_batches = 0
        self.resent_batches = 0

    @property
    def queued(self) -> int:
        """Number of batches that wait for a worker with credit."""
        return len(self._waiting)

    def needs_more(self, ahead: int) -> bool:
        """Return whether to read more: fewer than `ahead` wait, and memory is left.

        Batches that wait for a certain worker do not count.
        """
        return self._waiting.free < ahead and self.retained_bytes < self._retain_bytes

    def outstanding(self, pass_number: int) -> int:
        """Count the batches of a pass that are waiting, sent or unfinished."""
        waiting = self._waiting.count(pass_number)
        undone = sum(
            1
            for worker in self._workers.values()
            for sent in worker.unfinished.values()
            if sent.pass_number == pass_number
        )
        return waiting + undone + (len(self._unresolved) if pass_number == TRAINING else 0)

    def offer(self, pass_number: int, batch: Batch) -> None:
        """Queue a batch to be sent, unless its pass has been abandoned."""
        if self._is_abandoned(pass_number):
            return
        self._waiting.add(pass_number, batch)
        self.retained_bytes += size_of(batch)

    def open_pass(self, pass_number: int, tokens: Iterable[str]) -> None:
        """Send batches of `pass_number` to these trainers only; abandon older passes."""
        self._trainers_of_pass[pass_number] = frozenset(tokens)
        self._newest_pass = pass_number
        for batch in self._waiting.drop(lambda number: number not in (TRAINING, pass_number)):
            self.retained_bytes -= size_of(batch)

    def drain(self) -> dict[str, int]:
        """Stop sending batches of training; return each worker's last sequence by identity.

        Waiting batches are dropped: a held-out pass may follow, and needs the memory.
        """
        self._draining = True
        for batch in self._waiting.drop(lambda number: number == TRAINING):
            self.retained_bytes -= size_of(batch)
        return {
            identity.decode("ascii", "replace"): worker.sent for identity, worker in self._workers.items()
        }

    def credit(self, identity: bytes, credit: Credit) -> CreditNoted | None:
        """Record a worker's credit; credit that is older than the latest changes nothing.

        Returns a reply if the credit repeats the last one.
        """
        if token_of(identity) in self._lost_tokens:
            return None
        worker = self._workers.setdefault(identity, _WorkerState())
        is_repeat, worker.credit = worker.credit == credit, credit
        worker.limit = max(worker.limit, min(credit.limit, worker.sent + self._window))
        worker.received = max(worker.received, min(credit.received, worker.sent))
        worker.done = max(worker.done, min(credit.done, worker.sent))
        while worker.unfinished and next(iter(worker.unfinished)) <= worker.done:
            _, sent = worker.unfinished.popitem(last=False)
            self.retained_bytes -= size_of(sent.batch)
        return CreditNoted(worker.sent) if is_repeat else None

    def deliveries(self, now: float) -> list[tuple[bytes, Delivery]]:
        """Return the deliveries to send now: workers take turns, each within its credit."""
        out: list[tuple[bytes, Delivery]] = []
        progress = True
        while self._waiting and progress:
            progress = False
            for identity, worker in self._workers.items():
                if worker.sent < worker.limit and (taken := self._take_for(identity)) is not None:
                    if taken[0] == TRAINING:
                        self.delivered_examples[token_of(identity)] += len(taken[1])
                    out.append((identity, self._send(worker, *taken, now)))
                    progress = True
        return out

    def overdue(self, now: float) -> list[tuple[bytes, Delivery]]:
        """Return deliveries to send again, since they may not have arrived."""
        out = []
        for identity, worker in self._workers.items():
            # Skips most unfinished batches, which have arrived and wait to be trained.
            for sequence in range(worker.received + 1, worker.sent + 1):
                sent = worker.unfinished.get(sequence)
                if sent is not None and DELIVERY.due(sent.sent_at, now):
                    sent.sent_at = now
                    self.resent_batches += 1
                    out.append((identity, delivery_of(sequence, sent.pass_number, sent.batch)))
        return out

    def lose(self, token: str) -> list[Batch]:
        """Mark a trainer as lost; return its unfinished training batches.

        These wait for the coordinator's answer (`resolve_lost`). Batches of the newest evaluation pass are
        queued again at once.
        """
        self._lost_tokens.add(token)
        lost: dict[BatchId, Batch] = {}
        for identity in [identity for identity in self._workers if token_of(identity) == token]:
            self._waiting.release(identity)
            for sent in self._workers.pop(identity).unfinished.values():
                if sent.pass_number != TRAINING:
                    if self._is_abandoned(sent.pass_number):
                        self.retained_bytes -= size_of(sent.batch)
                    else:
                        self._waiting.add_again(sent.pass_number, sent.batch)
                    continue
                first = lost.setdefault(sent.batch.id, sent.batch)
                if first is not sent.batch:
                    # One of the two is a replay: the first delivery is trained.
                    lost[sent.batch.id] = first if first.replay else sent.batch
                    self.retained_bytes -= size_of(first)
        self._unresolved.update(((token, batch.id), batch) for batch in lost.values())
        return list(lost.values())

    def resolve_lost(self, token: str, again: Iterable[BatchId]) -> None:
        """Queue a lost trainer's batches that must be trained again; drop the others."""
        needed = set(again)
        for key in [key for key in self._unresolved if key[0] == token]:
            batch = self._unresolved.pop(key)
            if key[1] in needed and not self._draining:
                self._waiting.add_again(TRAINING, batch)
            else:
                self.retained_bytes -= size_of(batch)

    def _is_abandoned(self, pass_number: int) -> bool:
        """Return whether nobody waits for a pass: its trainers may all be dead."""
        return self._draining if pass_number == TRAINING else pass_number < self._newest_pass

    def _take_for(self, identity: bytes) -> tuple[int, Batch] | None:
        def may_have(pass_number: int) -> bool:
            trainers = self._trainers_of_pass.get(pass_number)
            return trainers is None or token_of(identity) in trainers

        return self._waiting.take(identity, may_have)

    def _send(self, worker: _WorkerState, pass_number: int, batch: Batch, now: float) -> Delivery:
        worker.sent += 1
        worker.unfinished[worker.sent] = _SentBatch(pass_number, batch, now)
        if pass_number == TRAINING:
            self.read_examples += len(batch)
            self.read_batches += 1
        return delivery_of(worker.sent, pass_number, batch)


def delivery_of(sequence: int, pass_number: int, batch: Batch) -> Delivery:
    return Delivery(
        sequence=sequence,
        pass_number=pass_number,
        id=batch.id,
        labels=batch.labels,
        dense=batch.dense,
        rows=batch.rows,
        weights=batch.weights,
        bag_rows=batch.bag_rows,
        bag_lengths=batch.bag_lengths,
        replay=batch.replay,
        other_labels=batch.other_labels,
        item_weights=batch.item_weights,
        keys=batch.keys,
        bag_keys=batch.bag_keys,
        groups=batch.groups,
        proof=batch.proof,
    )
