"""Which batch goes to which worker: a reader's deliveries as a state machine without I/O.

Events in (a batch is offered, a worker states its credit, a trainer is gone, time passes), deliveries out.
A delivery is kept until its worker says `done`, so that it can be sent again or given to another.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...pipeline.data.batch import Batch
from ...pipeline.types import BatchId
from ...pipeline.wire.messages import Credit, Delivery
from ...pipeline.wire.retransmission import DELIVERY

TRAINING = 0


@dataclass(slots=True)
class _Kept:
    pass_number: int
    batch: Batch
    sent_at: float


@dataclass(slots=True)
class _Line:
    """What is known of one worker. Sequences count from 1."""

    sent: int = 0
    limit: int = 0
    received: int = 0
    done: int = 0
    kept: OrderedDict[int, _Kept] = field(default_factory=OrderedDict)


def token_of(identity: bytes) -> str:
    """The trainer's token in a worker's identity, `TOKEN/WORKER`."""
    return identity.decode("ascii", "replace").partition("/")[0]


def size_of(batch: Batch) -> int:
    """Bytes that a batch keeps in memory."""
    tensors = (batch.labels, batch.dense, batch.rows, batch.weights, batch.bag_rows, batch.bag_lengths)
    return sum(tensor.nbytes for tensor in tensors)


class DeliveryState:
    """All deliveries of one reader; owned by its sender thread. Times are seconds of any steady clock."""

    def __init__(self, retain_bytes: int) -> None:
        self._retain_bytes = retain_bytes
        self._queue: deque[tuple[int, Batch]] = deque()
        self._lines: OrderedDict[bytes, _Line] = OrderedDict()
        self._gone: set[str] = set()
        self._awaiting_verdict: dict[tuple[str, BatchId], Batch] = {}
        self._audience: dict[int, frozenset[str]] = {}
        self._held = False
        self.kept_bytes = 0
        self.read_examples = 0
        self.read_batches = 0
        self.resent_batches = 0

    @property
    def queued(self) -> int:
        """Batches that wait for a worker with credit."""
        return len(self._queue)

    def hungry(self, ahead: int) -> bool:
        """Whether the parser should go on: fewer than `ahead` batches wait, and memory is left."""
        return len(self._queue) < ahead and self.kept_bytes < self._retain_bytes

    def outstanding(self, pass_number: int) -> int:
        """Batches of a pass that wait, are on their way, or are not done."""
        waiting = sum(1 for number, _ in self._queue if number == pass_number)
        kept = sum(
            1 for line in self._lines.values() for k in line.kept.values() if k.pass_number == pass_number
        )
        return waiting + kept + (len(self._awaiting_verdict) if pass_number == TRAINING else 0)

    def offer(self, pass_number: int, batch: Batch) -> None:
        """A batch is ready to be sent."""
        if pass_number == TRAINING and self._held:
            return
        self._queue.append((pass_number, batch))
        self.kept_bytes += size_of(batch)

    def open_pass(self, pass_number: int, tokens: Iterable[str]) -> None:
        """From now on batches of `pass_number` go to these trainers only; older passes are dropped."""
        self._audience[pass_number] = frozenset(tokens)
        keep: deque[tuple[int, Batch]] = deque()
        for number, batch in self._queue:
            if number in (TRAINING, pass_number):
                keep.append((number, batch))
            else:
                self.kept_bytes -= size_of(batch)
        self._queue = keep

    def hold(self) -> dict[str, int]:
        """Sends nothing of training any more; gives each worker's last sequence by identity. What waits is
        dropped: a held-out pass may follow, and has to find room."""
        self._held = True
        waiting, self._queue = self._queue, deque()
        for number, batch in waiting:
            if number == TRAINING:
                self.kept_bytes -= size_of(batch)
            else:
                self._queue.append((number, batch))
        return {identity.decode("ascii", "replace"): line.sent for identity, line in self._lines.items()}

    def credit(self, identity: bytes, credit: Credit) -> None:
        """A worker states where it stands. What contradicts its own past is ignored: it was sent before."""
        if token_of(identity) in self._gone:
            return
        line = self._lines.setdefault(identity, _Line())
        line.limit = max(line.limit, credit.limit)
        line.received = max(line.received, min(credit.received, line.sent))
        line.done = max(line.done, min(credit.done, line.sent))
        while line.kept and next(iter(line.kept)) <= line.done:
            _, kept = line.kept.popitem(last=False)
            self.kept_bytes -= size_of(kept.batch)

    def deliveries(self, now: float) -> list[tuple[bytes, Delivery]]:
        """What can be sent now: to each worker in turn, as far as its credit goes."""
        out: list[tuple[bytes, Delivery]] = []
        progress = True
        while self._queue and progress:
            progress = False
            for identity, line in self._lines.items():
                if line.sent < line.limit and (found := self._take(identity)) is not None:
                    out.append((identity, self._send(line, *found, now)))
                    progress = True
        return out

    def overdue(self, now: float) -> list[tuple[bytes, Delivery]]:
        """Deliveries that are due to be sent again: they are not known to have arrived."""
        out = []
        for identity, line in self._lines.items():
            # Not over all that is kept, of which most has arrived and waits to be trained.
            for sequence in range(line.received + 1, line.sent + 1):
                kept = line.kept.get(sequence)
                if kept is not None and DELIVERY.due(kept.sent_at, now):
                    kept.sent_at = now
                    self.resent_batches += 1
                    out.append((identity, _delivery(sequence, kept.pass_number, kept.batch)))
        return out

    def lose(self, token: str) -> list[tuple[BatchId, int]]:
        """A trainer is gone: gives its training batches that are not done, with their examples.

        They wait for the coordinator's verdict (`settle`); evaluation batches are queued again at once.
        """
        self._gone.add(token)
        lost = []
        for identity in [identity for identity in self._lines if token_of(identity) == token]:
            for kept in self._lines.pop(identity).kept.values():
                if kept.pass_number == TRAINING:
                    self._awaiting_verdict[token, kept.batch.id] = kept.batch
                    lost.append((kept.batch.id, len(kept.batch)))
                else:
                    self._queue.appendleft((kept.pass_number, kept.batch))
        return lost

    def settle(self, token: str, again: Iterable[BatchId]) -> None:
        """The coordinator's verdict on a lost trainer's batches: `again` are to be trained, the rest were."""
        wanted = set(again)
        for key in [key for key in self._awaiting_verdict if key[0] == token]:
            batch = self._awaiting_verdict.pop(key)
            if key[1] in wanted and not self._held:
                self._queue.appendleft((TRAINING, batch))
            else:
                self.kept_bytes -= size_of(batch)

    def _take(self, identity: bytes) -> tuple[int, Batch] | None:
        for at, (number, batch) in enumerate(self._queue):
            audience = self._audience.get(number)
            if audience is None or token_of(identity) in audience:
                del self._queue[at]
                return number, batch
        return None

    def _send(self, line: _Line, pass_number: int, batch: Batch, now: float) -> Delivery:
        line.sent += 1
        line.kept[line.sent] = _Kept(pass_number, batch, now)
        if pass_number == TRAINING:
            self.read_examples += len(batch)
            self.read_batches += 1
        return _delivery(line.sent, pass_number, batch)


def _delivery(sequence: int, pass_number: int, batch: Batch) -> Delivery:
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
    )
