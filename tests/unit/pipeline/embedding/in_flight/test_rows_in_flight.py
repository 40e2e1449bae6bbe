"""Any order of lookups, pushes, answers, losses and deaths: a batch has its nodes' rows and its trainer's own
pushes that they lack."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.pipeline.config.row_bytes import state_floats
from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings
from shadowsync.pipeline.embedding.in_flight.applied_pushes import AppliedPushes
from shadowsync.pipeline.embedding.in_flight.id_finder import IdFinder
from shadowsync.pipeline.embedding.in_flight.rows_in_flight import Answer, RowsInFlight
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import BatchId, Float32Array, IndexArray
from shadowsync.tests.support.tables.tables import make_table

SEED, BATCH, LR, TRAINER = 3, 5, 0.25, "trainer"
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
# Of rows and gradients of about 1; the plain definition is in float64.
CLOSE, PLAIN = 1e-6, 1e-4
Floats: TypeAlias = NDArray[np.float64]
Row: TypeAlias = tuple[int, int]
Action: TypeAlias = Callable[[], object]


def tables_of(
    optimizer: str, kind: str = "hashed", init_scale: float = 1.0, weight_decay: float = 0.0
) -> tuple[TableSettings, ...]:
    """Few rows, so that nearly every push has rows of every other; two dims and optimizers, a list."""
    shared: dict[str, Any] = {
        "optimizer": optimizer,
        "lr": LR,
        "init_scale": init_scale,
        "weight_decay": weight_decay,
    }
    if kind == "growing":
        own = [make_table(f"C{n}", 64, 3, growth=Growth(), **shared) for n in (1, 2)]
        return *own, make_table("C3", 6, 3, **shared)
    if kind in ("shared", "shared growing"):
        shared["growth"] = Growth() if kind == "shared growing" else None
        one, other = TableColumn("C1"), TableColumn("before")
        return (
            make_table("C1", 16, 3, columns=(one, other), **shared),
            make_table("C2", 16, 4, **shared),
            make_table(
                "C3", 18, 3, columns=(TableColumn("C3"), TableColumn("list", "weighted_sum")), **shared
            ),
        )
    shared["storage"] = kind if kind == "bfloat16" else "float32"
    return (
        make_table("C1", 6, 3, **shared),
        make_table("C2", 4, 4, **shared),
        make_table("C3", 5, 3, **shared | {"optimizer": "sgd"}),
        make_table("C4", 8, 3, pooling="weighted_sum", **shared),
    )


@dataclass(eq=False)
class Push:
    """A push to one node; of each row what it adds to the row's floats and its state, plainly computed."""

    worker: int
    sequence: int
    lookup: LookupPlan
    gradients: Float32Array
    batch: BatchId
    adds: dict[Row, Floats]
    answered_by: Node | None = None
    answered_below: int = 1

    def apply_to(self, store: ShardStore) -> None:
        asked = self.lookup
        lengths, keys = asked.bag_lengths, asked.keys
        store.apply(asked.rows, self.gradients, asked.counts, 1.0, lengths, self.batch, keys)


@dataclass(eq=False)
class Node:
    """A node, which is the one after `term` others in its place, and the pushes that it has."""

    number: int
    term: int
    store: ShardStore
    batches: set[BatchId] = field(default_factory=set)
    numbers: AppliedPushes = field(default_factory=AppliedPushes)
    pushes: set[Push] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"embedding-{self.number}-{self.term}"

    def look_up(self, lookup: LookupPlan, rows: RowsInFlight) -> Answer:
        values = np.empty(lookup.floats, np.float32)
        sizes = len(lookup.rows) + len(lookup.keys), lookup.counts, lookup.bag_lengths
        state = np.empty(self.store.state_floats_of(*sizes), np.float32)
        asked = lookup.rows, values, lookup.counts, lookup.bag_lengths, lookup.keys, state
        work = self.store.lookup_work(*asked)
        work.run(0, 1)
        work.finish()
        # As received frames are.
        values.flags.writeable = state.flags.writeable = False
        applied = self.numbers.of_trainer(TRAINER)
        return rows.answer(lookup, self.name, values, state, work.absent, applied)

    def take(self, push: Push) -> bool:
        """Whether the push changes the rows."""
        changes = push.batch not in self.batches
        if changes:
            push.apply_to(self.store)
        self.batches.add(push.batch)
        self.pushes.add(push)
        self.numbers.add(TRAINER, push.worker, push.sequence, push.answered_below)
        return changes


@dataclass(eq=False)
class Batch:
    """A batch of a worker; each node's answer comes with the node and the pushes that it had."""

    id: BatchId
    lookups: list[LookupPlan]
    ticket: int
    answers: dict[int, tuple[Answer, Node, set[Push]]] = field(default_factory=dict)


@dataclass(eq=False)
class Link:
    """A worker's link to a node: what is on its way there and back, what got lost, what is unanswered."""

    there: deque[Batch | Push] = field(default_factory=deque)
    back: deque[Action] = field(default_factory=deque)
    lost: deque[Batch | Push] = field(default_factory=deque)
    unanswered: list[Push] = field(default_factory=list)
    sequence: int = 0


def plain_step(optimizer: str, row: Floats, dim: int, gradient: Floats) -> Floats:
    """What a gradient adds to a row's floats and its state."""
    state = row[dim:]
    if optimizer == "sgd":
        return -LR * gradient
    if optimizer == "adam":
        means, squares, steps = state[:dim], state[dim : 2 * dim], state[2 * dim :] + 1
        means, squares = 0.9 * means + 0.1 * gradient, 0.999 * squares + 0.001 * gradient**2
        roots = np.sqrt(squares / (1 - 0.999**steps)) + 1e-8
        step = -LR * means / (1 - 0.9**steps) / roots
        return np.concatenate([step, np.concatenate([means, squares, steps]) - state])
    added = gradient**2 if optimizer == "adagrad" else np.mean(gradient**2, keepdims=True)
    return np.concatenate([-LR * gradient / (np.sqrt(state + added) + 1e-8), added])


def split_rows(
    plan: TablePlan, lookup: LookupPlan, values: Float32Array, state: Float32Array
) -> Iterator[tuple[Row, str, int, Floats]]:
    """Each row of a lookup: bank and id, optimizer, dim, floats and state."""
    rows, keys = iter(lookup.rows.tolist()), iter(lookup.keys.tolist())
    value = at = 0
    for bank, count in zip(plan.banks, lookup.counts, strict=True):
        width = state_floats(bank.optimizer, bank.dim)
        for _ in range(count):
            both = values[value : value + bank.dim], state[at : at + width]
            value, at = value + bank.dim, at + width
            which = plan.banks.index(bank), next(keys if bank.growing else rows)
            yield which, bank.optimizer, bank.dim, np.concatenate(both).astype(np.float64)


def _move(source: deque[Any], target: deque[Any]) -> None:
    target.append(source.popleft())


def _run_next(actions: deque[Action]) -> None:
    actions.popleft()()


class Simulation:
    """A trainer and its nodes, and beside them what a batch is to be trained on.

    `off` has how far rows are from the plain definition, `late` from those of a trainer that does one batch
    after the other: equal to the bit, or how far.
    """

    def __init__(self, tables: Sequence[TableSettings], workers: int, depth: int, nodes: int = 2) -> None:
        self.plan = TablePlan.make(tables, nodes)
        self.router = ShardRouter(self.plan, distinct=True)
        self.rows, self.finder = RowsInFlight(self.plan, SEED), IdFinder()
        self.completes = True
        self.nodes = [Node(n, 0, self.store(n)) for n in range(nodes)]
        for node in self.nodes:
            self.rows.connect(node.number, node.name)
        self.truth = [self.store(n) for n in range(nodes)]
        self.links = [[Link() for _ in range(nodes)] for _ in range(workers)]
        self.ahead: list[deque[Batch]] = [deque() for _ in range(workers)]
        self.pushes: list[list[Push]] = [[] for _ in range(nodes)]
        self.depth, self.made, self.deaths = depth, 0, 0
        self.draw = np.random.default_rng(7)
        self.off: list[float] = []
        self.late: list[float] = []

    def store(self, node: int) -> ShardStore:
        return ShardStore(self.plan, node, seed=SEED, memory_fraction=1.0)

    def actions(self, kinds: str) -> list[Action]:
        """What may happen now, of these kinds."""
        found: list[Action] = []
        for worker, links in enumerate(self.links):
            ahead = self.ahead[worker]
            if "look up" in kinds and len(ahead) <= self.depth:
                found.append(partial(self.look_up, worker))
            if ahead and len(ahead[0].answers) == len(links):
                found.append(partial(self.step, worker))
            for node, link in enumerate(links):
                if link.there:
                    found.append(partial(self.arrive, link, node))
                    if "lose" in kinds:
                        found.append(partial(_move, link.there, link.lost))
                if link.back:
                    found.append(partial(_run_next, link.back))
                if link.lost:
                    found.append(partial(_move, link.lost, link.there))
        if "die" in kinds and self.deaths < 3:
            found += [partial(self.replace, node) for node in range(len(self.nodes))]
        return found

    def look_up(self, worker: int) -> None:
        self.made += 1
        items = int(self.draw.integers(0, 9))
        single = [column for column in self.plan.columns if not column.pooling]
        growing = [column.number for column in single if column.grows]
        most = np.array([[column.table.rows] for column in single])
        rows = self.draw.integers(0, np.minimum(most, 8), (len(single), BATCH)).astype(np.int32)
        # Ids of different tables have different keys.
        tables_bits = np.array(growing, dtype=np.uint64)[:, None] << np.uint64(40)
        keys = rows[: len(growing)].astype(np.uint64) + tables_bits
        more: dict[str, Any] = {"keys": keys} if growing else {}
        for lists in (column for column in self.plan.columns if column.pooling):
            lengths = np.array([[items, 0, 0, 0, 1]], np.int32)
            more["bag_rows"] = self.draw.integers(0, 8, items + 1).astype(np.int32)
            more |= {"bag_lengths": lengths, "item_weights": np.ones(items + 1, np.float32)}
            if lists.grows:
                own_bits = np.uint64(lists.number) << np.uint64(40)
                more["bag_keys"] = more["bag_rows"].astype(np.uint64) + own_bits
        lookups = self.router.requests(rows, **more)
        batch = Batch(BatchId(0, 0, self.made, SEED), lookups, self.rows.begin())
        self.ahead[worker].append(batch)
        for link in self.links[worker]:
            link.there.append(batch)

    def arrive(self, link: Link, number: int) -> None:
        node, message = self.nodes[number], link.there.popleft()
        if isinstance(message, Batch):
            answer = node.look_up(message.lookups[number], self.rows), node, set(node.pushes)
            link.back.append(lambda: message.answers.setdefault(number, answer))
        else:
            link.back.append(partial(self.answered, link, number, node, message, node.take(message)))

    def answered(self, link: Link, number: int, node: Node, push: Push, changed: bool) -> None:
        if push not in link.unanswered:
            return
        link.unanswered.remove(push)
        push.answered_by = node
        self.rows.answered(
            number, push.worker, push.sequence, node.name, changed=changed, is_resent=not changed
        )

    def step(self, worker: int) -> None:
        """Complete a batch's rows, compare them, and push drawn gradients."""
        batch, below = self.ahead[worker].popleft(), []
        for number, lookup in enumerate(batch.lookups):
            answer, node, contained = batch.answers[number]
            raw = answer.values.copy(), answer.state.copy()
            if self.completes:
                self.rows.complete(lookup, answer, self.finder)
            self._compare(lookup, answer, raw, self._lacking(number, node, contained))
        self.rows.end(batch.ticket)
        for number, (link, lookup) in enumerate(zip(self.links[worker], batch.lookups, strict=True)):
            answer, link.sequence = batch.answers[number][0], link.sequence + 1
            gradients = self.draw.standard_normal(lookup.floats).astype(np.float32)
            adds, start = {}, 0
            for row, optimizer, dim, floats in split_rows(self.plan, lookup, answer.values, answer.state):
                adds[row] = plain_step(optimizer, floats, dim, gradients[start : start + dim].astype(float))
                start += dim
            push = Push(worker, link.sequence, lookup, gradients, batch.id, adds)
            below = [other.sequence for other in link.unanswered]
            push.answered_below = min(below, default=push.sequence)
            link.unanswered.append(push)
            link.there.append(push)
            self.pushes[number].append(push)
            push.apply_to(self.truth[number])
            numbers: dict[str, int] = {"worker": worker, "sequence": push.sequence}
            self.rows.pushed(lookup, answer, gradients, **numbers, lr_scale=1.0, batch=batch.id, again=False)

    def _lacking(self, number: int, node: Node, contained: set[Push]) -> list[Push]:
        """This trainer's pushes that an answer lacks.

        What a node before this one has confirmed, this one has or gets as a batch that is trained again.
        """

        def is_past(push: Push) -> bool:
            return push.answered_by is not None and push.answered_by.term < node.term

        return [push for push in self.pushes[number] if push not in contained and not is_past(push)]

    def _compare(
        self, lookup: LookupPlan, answer: Answer, raw: tuple[Float32Array, Float32Array], lacking: list[Push]
    ) -> None:
        got = split_rows(self.plan, lookup, answer.values, answer.state)
        before = split_rows(self.plan, lookup, *raw)
        for (row, _, _, now), (_, _, _, then) in zip(got, before, strict=True):
            wanted = then + sum((push.adds[row] for push in lacking if row in push.adds), np.zeros(len(then)))
            self.off.append(float(np.abs(now - wanted).max(initial=0)))
        truth = np.empty(lookup.floats, np.float32)
        store = self.truth[lookup.node]
        store.lookup(lookup.rows, truth, lookup.counts, lookup.bag_lengths, lookup.keys)
        self.late.append(float(np.abs(truth - answer.values).max(initial=0)))

    def replace(self, number: int) -> None:
        """A node dies, and another one without its rows takes its place; unanswered pushes come first."""
        self.deaths += 1
        self.nodes[number] = Node(number, self.nodes[number].term + 1, self.store(number))
        self.rows.connect(number, self.nodes[number].name)
        for worker, links in enumerate(self.links):
            link = links[number]
            # What has come back is in the worker's socket, which is closed.
            link.back.clear()
            link.lost.clear()
            waiting = [batch for batch in self.ahead[worker] if number not in batch.answers]
            link.there = deque([*link.unanswered, *waiting])

    def run(self, choices: Sequence[int], kinds: str = "look up") -> Simulation:
        """Have these things happen, then everything that is left."""
        for choice in choices:
            actions = self.actions(kinds)
            actions[choice % len(actions)]()
        while actions := self.actions(""):
            actions[0]()
        return self


CHOICES = st.lists(st.integers(0, 1 << 16), max_size=120)
DEPTHS = st.integers(0, 16)
# One batch after the other until many are in flight.
BUSY = [0, *range(0, 4000, 7)]


@given(
    CHOICES,
    DEPTHS,
    st.sampled_from(OPTIMIZERS),
    st.sampled_from(["hashed", "growing", "shared", "shared growing"]),
)
def test_one_worker_has_the_rows_of_one_batch_after_the_other(
    choices: list[int], depth: int, optimizer: str, kind: str
) -> None:
    """To the bit where pushes arrive in their order and the rule's own rounding is repeated."""
    ran = Simulation(tables_of(optimizer, kind), 1, depth).run(choices)
    assert max(ran.late, default=0.0) <= (0.0 if optimizer in ("sgd", "rowwise_adagrad") else CLOSE)
    assert max(ran.off, default=0.0) <= PLAIN
    assert len(ran.rows) == 0


@pytest.mark.parametrize("kind", ["hashed", "growing", "bfloat16", "shared", "shared growing"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_control_without_completing_is_another_row(optimizer: str, kind: str) -> None:
    ran = Simulation(tables_of(optimizer, kind), 1, 4)
    assert max(ran.run(BUSY).late) <= CLOSE
    control = Simulation(tables_of(optimizer, kind), 1, 4)
    control.completes = False
    assert max(control.run(BUSY).late) > 0.1
    # Where each batch waits for the one before, nothing lacks.
    waits = Simulation(tables_of(optimizer, kind), 1, 0)
    waits.completes = False
    for _ in range(20):
        waits.run([0])
    assert max(waits.late) == 0.0
    assert len(waits.late) == 40


# A row becomes a power of 2 there, and its difference from the small one before has too many digits.
@example(choices=[0, 0, 0], depth=2, optimizer="sgd", init_scale=1e-7)
@given(CHOICES, DEPTHS, st.sampled_from(["sgd", "rowwise_adagrad"]), st.sampled_from([1.0, 1e-7]))
def test_bfloat16_is_rounded_as_the_node_rounds_it(
    choices: list[int], depth: int, optimizer: str, init_scale: float
) -> None:
    """To the bit, also where a step is far larger than its row."""
    ran = Simulation(tables_of(optimizer, "bfloat16", init_scale), 1, depth).run(choices)
    assert max(ran.late, default=0.0) == 0.0


@pytest.mark.parametrize("kind", ["hashed", "growing", "bfloat16", "shared", "shared growing"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_push_in_flight_decays_its_rows_as_the_node_does(optimizer: str, kind: str) -> None:
    ran = Simulation(tables_of(optimizer, kind, weight_decay=0.3), 1, 4).run(BUSY)
    assert max(ran.late) <= (0.0 if optimizer in ("sgd", "rowwise_adagrad") else CLOSE)
    assert len(ran.late) > 100
    # The control: a trainer that knows of no decay.
    control = Simulation(tables_of(optimizer, kind, weight_decay=0.3), 1, 4)
    control.rows = RowsInFlight(TablePlan.make(tables_of(optimizer, kind), 2), SEED)
    for node in control.nodes:
        control.rows.connect(node.number, node.name)
    assert max(control.run(BUSY).late) > 0.01


@given(CHOICES, DEPTHS, st.sampled_from(OPTIMIZERS), st.sampled_from(["hashed", "growing", "bfloat16"]))
def test_rows_that_decay_are_exact_in_any_order(
    choices: list[int], depth: int, optimizer: str, kind: str
) -> None:
    ran = Simulation(tables_of(optimizer, kind, weight_decay=0.3), 1, depth).run(choices)
    assert max(ran.late, default=0.0) <= (0.0 if optimizer in ("sgd", "rowwise_adagrad") else CLOSE)
    assert len(ran.rows) == 0


@pytest.mark.parametrize("late", ["C1", "C2"])
def test_a_key_without_a_row_gets_one_by_the_rule_of_its_own_table(late: str) -> None:
    """Tables of equal settings are one bank, whatever each says of new keys."""
    tables = [
        make_table(name, 64, 3, lr=LR, growth=Growth(admit_after=3 if name == late else 1))
        for name in ("C1", "C2")
    ]
    ran = Simulation(tables, 1, 0, nodes=1)
    store, rows = ran.nodes[0].store, np.zeros((2, BATCH), np.int32)
    keys = np.array([[7, 8, 7, 8, 7], [107, 108, 107, 108, 107]], np.uint64)
    (lookup,) = ran.router.requests(rows, keys=keys)
    answers = [ran.nodes[0].look_up(lookup, ran.rows) for _ in range(2)]
    ran.rows.begin()
    gradients, batch = np.ones(lookup.floats, np.float32), BatchId(0, 0, 1, SEED)
    numbers: dict[str, int] = {"worker": 0, "sequence": 1}
    ran.rows.pushed(lookup, answers[0], gradients, **numbers, lr_scale=1.0, batch=batch, again=False)
    assert ran.rows.complete(lookup, answers[1], ran.finder) == 1
    store.apply(lookup.rows, gradients, lookup.counts, keys=lookup.keys)
    wanted = np.empty(lookup.floats, np.float32)
    store.lookup(lookup.rows, wanted, lookup.counts, keys=lookup.keys)
    np.testing.assert_array_equal(answers[1].values, wanted)
    moved = (wanted != answers[0].values).reshape(2, -1).any(axis=1)
    assert moved.tolist() == [late != "C1", late != "C2"]


def test_rows_of_a_table_with_bags_that_nodes_sum_are_those_of_the_node() -> None:
    """A trainer does not know what its pushes change there; in other tables it does."""
    columns = (TableColumn("C1"), TableColumn("bags", "sum", place=2))
    tables = (make_table("C1", 6, 3, lr=LR, columns=columns), make_table("C2", 6, 3, lr=LR))
    ran = Simulation(tables, 1, 0, nodes=1)
    (lookup,) = ran.router.requests(
        np.array([[0, 1], [0, 1]], np.int32), np.array([1, 2], np.int32), np.array([[2, 0]], np.int32)
    )
    answers = [ran.nodes[0].look_up(lookup, ran.rows) for _ in range(2)]
    before = answers[1].values.copy()
    ran.rows.begin()
    numbers: dict[str, int] = {"worker": 0, "sequence": 1}
    gradients, batch = np.ones(lookup.floats, np.float32), BatchId(0, 0, 1, SEED)
    ran.rows.pushed(lookup, answers[0], gradients, **numbers, lr_scale=1.0, batch=batch, again=False)
    assert ran.rows.complete(lookup, answers[1], ran.finder) == 1
    changed = (answers[1].values != before).reshape(-1, 3).any(axis=1)
    # Two rows of C2, whose bank is the first; two of C1 and two bags.
    assert changed.tolist() == [True, True, False, False, False, False]


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("begun", [False, True], ids=["without a row", "begun anew"])
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
# SGD has no state, and a push changes its rows by the same, but for rounding.
@pytest.mark.parametrize("optimizer", OPTIMIZERS[1:])
def test_a_push_changes_an_evicted_row_from_its_first_value(
    optimizer: str, storage: str, begun: bool, weight_decay: float
) -> None:
    """Not by the difference that it would have made to the row's former state."""
    shared: dict[str, Any] = {"optimizer": optimizer, "storage": storage, "lr": LR, "growth": Growth()}
    shared["weight_decay"] = weight_decay
    ran = Simulation([make_table("C1", 2, 3, **shared)], 1, 0, nodes=1)
    store, made = ran.nodes[0].store, iter(range(1, 100))
    first, other = (
        ran.router.requests(np.zeros((1, BATCH), np.int32), keys=np.array([keys], np.uint64))[0]
        for keys in ([7, 8, 7, 8, 7], [9, 10, 9, 10, 9])
    )

    def apply(lookup: LookupPlan, size: float) -> tuple[Float32Array, BatchId]:
        gradients = np.full(lookup.floats, size, np.float32)
        batch = BatchId(0, 0, next(made), SEED)
        store.apply(lookup.rows, gradients, lookup.counts, 1.0, batch=batch, keys=lookup.keys)
        return gradients, batch

    for _ in range(3):
        apply(first, 4.0)
    before = ran.nodes[0].look_up(first, ran.rows)
    assert len(before.absent) == 0
    apply(other, 1.0)
    if begun:
        apply(first, 0.5)
    evicted = ran.nodes[0].look_up(first, ran.rows)
    assert len(evicted.absent) == (0 if begun else 2)
    ran.rows.begin()
    gradients, batch = apply(first, 0.5)
    numbers: dict[str, int] = {"worker": 0, "sequence": 1}
    ran.rows.pushed(first, before, gradients, **numbers, lr_scale=1.0, batch=batch, again=False)
    assert ran.rows.complete(first, evicted, ran.finder) == 1
    after = ran.nodes[0].look_up(first, ran.rows)
    np.testing.assert_allclose(evicted.values, after.values, rtol=CLOSE)
    np.testing.assert_allclose(evicted.state, after.state, rtol=CLOSE)


class Forgetful(IdFinder):
    """Finds all but the first."""

    def find(self, ids: Any, others: Any) -> list[tuple[IndexArray, IndexArray]]:
        return [(sources[1:], targets[1:]) for sources, targets in super().find(ids, others)]


def test_a_finder_that_loses_ids_is_noticed() -> None:
    ran = Simulation(tables_of("sgd"), 1, 4)
    ran.finder = Forgetful()
    assert max(ran.run(BUSY).late) > 0.1


@given(CHOICES, DEPTHS, st.integers(1, 4), st.sampled_from(OPTIMIZERS))
def test_several_workers_have_an_answer_and_what_it_lacks(
    choices: list[int], depth: int, workers: int, optimizer: str
) -> None:
    ran = Simulation(tables_of(optimizer), workers, depth).run(choices, "look up, lose")
    assert max(ran.off, default=0.0) <= PLAIN
    assert len(ran.rows) == 0


@settings(max_examples=200)
@given(CHOICES, DEPTHS, st.integers(1, 4), st.sampled_from(["hashed", "growing"]))
def test_nodes_may_be_replaced_meanwhile(choices: list[int], depth: int, workers: int, kind: str) -> None:
    ran = Simulation(tables_of("rowwise_adagrad", kind), workers, depth)
    ran.run(choices, "look up, lose, die")
    assert max(ran.off, default=0.0) <= PLAIN
    assert len(ran.rows) == 0
