"""Any order of events at a reader, against a model: no batch is lost, none is with two living trainers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shadowsync.nodes.reader.deliveries import DeliveryState, size_of
from shadowsync.nodes.reader.waiting_batches import TRAINING
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.endpoints import token_of
from shadowsync.pipeline.wire.messages import Credit, Delivery
from shadowsync.pipeline.wire.rpc.retransmission import DELIVERY
from shadowsync.tests.support.data.batches import make_batch

WORKERS = [b"a/0", b"a/1", b"b/0", b"c/0"]
EXAMPLES = 3


@dataclass
class Worker:
    """A worker as it sees itself: what came, by sequence, and which of it is trained and confirmed."""

    window: int
    arrived: dict[int, BatchId] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)

    def up_to(self, sequences: set[int]) -> int:
        last = 0
        while last + 1 in sequences:
            last += 1
        return last

    def credit(self) -> Credit:
        received = self.up_to(set(self.arrived))
        return Credit(len(self.trained) + self.window, received, self.up_to(self.trained))


class Deliveries(RuleBasedStateMachine):
    """The model: where each offered batch is. `holders` names the living worker that it was given to."""

    def __init__(self) -> None:
        super().__init__()
        self.state = DeliveryState(1 << 40)
        self.now = 0.0
        self.offered: list[BatchId] = []
        self.workers: dict[bytes, Worker] = {}
        self.dead: set[str] = set()
        self.holders: dict[BatchId, tuple[bytes, int]] = {}
        self.judging: dict[str, list[BatchId]] = {}
        self.trained: set[BatchId] = set()
        self.sent: dict[bytes, int] = {}
        self.returned = 0
        self.sendings = 0
        self.held = False
        self.dropped = 0

    @initialize(
        windows=st.lists(st.integers(1, 4), min_size=len(WORKERS), max_size=len(WORKERS)),
        consecutive=st.integers(1, 4),
    )
    def workers_come(self, windows: list[int], consecutive: int) -> None:
        self.state = DeliveryState(1 << 40, consecutive)
        self.workers = {name: Worker(window) for name, window in zip(WORKERS, windows, strict=True)}

    def living(self) -> list[bytes]:
        return [name for name in self.workers if token_of(name) not in self.dead]

    @rule(count=st.integers(1, 4))
    def offer(self, count: int) -> None:
        for _ in range(count):
            batch = make_batch(len(self.offered), EXAMPLES)
            self.offered.append(batch.id)
            self.state.offer(TRAINING, batch)
            self.dropped += self.held

    @rule(name=st.sampled_from(WORKERS))
    def send_credit(self, name: bytes) -> None:
        # The dead may still be heard.
        self.state.credit(name, self.workers[name].credit())

    @rule(arrives=st.booleans())
    def send(self, arrives: bool) -> None:
        for name, delivery in self.state.deliveries(self.now):
            assert not self.held
            assert name in self.living()
            assert delivery.id not in self.holders
            assert delivery.id not in self.trained
            assert delivery.sequence == self.sent.get(name, 0) + 1
            assert delivery.sequence <= self.workers[name].credit().limit
            self.sent[name] = delivery.sequence
            self.sendings += 1
            self.holders[delivery.id] = (name, delivery.sequence)
            if arrives:
                self.arrive(name, delivery)

    @rule(seconds=st.sampled_from([0.5, DELIVERY.interval_seconds + 1]), arrives=st.booleans())
    def time_passes(self, seconds: float, arrives: bool) -> None:
        self.now += seconds
        for name, delivery in self.state.overdue(self.now):
            assert self.holders[delivery.id] == (name, delivery.sequence)
            if arrives:
                self.arrive(name, delivery)

    def arrive(self, name: bytes, delivery: Delivery) -> None:
        before = self.workers[name].arrived.setdefault(delivery.sequence, delivery.id)
        assert before == delivery.id

    @rule(name=st.sampled_from(WORKERS), place=st.integers(0, 20), confirmed=st.booleans())
    def train(self, name: bytes, place: int, confirmed: bool) -> None:
        worker = self.workers[name]
        ready = sorted(worker.arrived.keys() - worker.trained)
        if name not in self.living() or not ready:
            return
        sequence = ready[place % len(ready)]
        self.trained.add(worker.arrived[sequence])
        # Without the confirmation the coordinator knows of it, and the worker does not know that it does.
        if confirmed:
            worker.trained.add(sequence)

    @precondition(lambda self: len(self.living()) > 1)
    @rule(name=st.sampled_from(WORKERS))
    def die(self, name: bytes) -> None:
        token = token_of(name)
        if token in self.dead or len({token_of(other) for other in self.living()}) == 1:
            return
        self.dead.add(token)
        lost = self.state.lose(token)
        assert all(len(batch) == EXAMPLES for batch in lost)
        batches = [batch.id for batch in lost]
        held = {batch for batch, (holder, _) in self.holders.items() if token_of(holder) == token}
        assert len(batches) == len(set(batches))
        assert set(batches) <= held
        # What is not named is known to be done.
        assert held - set(batches) <= self.trained
        self.judging[token] = batches
        self.holders = {batch: holder for batch, holder in self.holders.items() if batch not in held}

    @precondition(lambda self: self.judging)
    @rule()
    def judge(self) -> None:
        token, batches = self.judging.popitem()
        again = [batch for batch in batches if batch not in self.trained]
        self.returned += len(again)
        self.dropped += len(again) if self.held else 0
        self.state.resolve_lost(token, again)

    @rule()
    def drain(self) -> None:
        # Nobody has been sent these, and nobody will be: no book has them.
        self.dropped += self.state.queued
        reported = self.state.drain()
        assert self.state.queued == 0
        self.held = True
        for name in self.living():
            assert reported.get(name.decode(), 0) == self.sent.get(name, 0)

    @invariant()
    def every_batch_is_somewhere(self) -> None:
        forgotten = len(self.offered) - self.state.outstanding(TRAINING)
        assert forgotten <= len(self.trained) + self.dropped
        assert self.state.retained_bytes == self.state.outstanding(TRAINING) * size_of(
            make_batch(0, EXAMPLES)
        )
        held = sum(1 for batch in self.holders if batch not in self.trained)
        judged = sum(batch not in self.trained for batches in self.judging.values() for batch in batches)
        untrained = len(self.offered) - len(self.trained) - self.dropped
        assert self.state.queued + held + judged == untrained

    @invariant()
    def read_is_trained_returned_or_out(self) -> None:
        out = sum(1 for batch in self.holders if batch not in self.trained)
        out += sum(batch not in self.trained for batches in self.judging.values() for batch in batches)
        assert self.state.read_batches == self.sendings == len(self.trained) + self.returned + out
        assert self.state.read_examples == self.state.read_batches * EXAMPLES

    def teardown(self) -> None:
        """Whatever happened, the living finish all of it."""
        if not self.workers or self.held:
            return
        while self.judging:
            self.judge()
        for _ in range(len(self.offered) + 2):
            self.send(arrives=True)
            self.time_passes(DELIVERY.interval_seconds + 1, arrives=True)
            for name in self.living():
                worker = self.workers[name]
                self.trained |= set(worker.arrived.values())
                worker.trained = set(worker.arrived)
                self.state.credit(name, worker.credit())
        assert self.trained == set(self.offered)
        assert self.state.outstanding(TRAINING) == 0
        assert self.state.retained_bytes == 0


TestDeliveries = Deliveries.TestCase
TestDeliveries.settings = settings(max_examples=150, stateful_step_count=40)
