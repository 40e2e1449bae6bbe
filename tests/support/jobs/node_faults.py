"""Faults of nodes that the ledger must show, or that the layer of resends must mend.

Each is put into the product from outside, for the nodes of the test's own process, and says in the node's log
that it happened.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.coordinator.validation import process, scoring
from shadowsync.nodes.coordinator.validation.scoring import CheckpointScore, CheckpointScorer
from shadowsync.nodes.embedding import shared_memory
from shadowsync.nodes.embedding.role import EmbeddingRole
from shadowsync.nodes.reader import deliveries
from shadowsync.nodes.reader.deliveries import DeliveryState
from shadowsync.nodes.reader.role import ReaderRole
from shadowsync.nodes.replica import replica
from shadowsync.nodes.replica.cuda import CudaDevice
from shadowsync.nodes.runtime.node import Node
from shadowsync.nodes.runtime.role import NodeContext, Role
from shadowsync.nodes.sync.role import SyncRole
from shadowsync.nodes.trainer.role import TrainerRole
from shadowsync.nodes.worker import embedding_client
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.step import Step, Stepper
from shadowsync.nodes.worker.worker import Worker
from shadowsync.pipeline.checkpoint.saved import Location
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.placement.ranges import Range
from shadowsync.pipeline.text import wall_clock
from shadowsync.pipeline.wire.control.messages import NodeFacts
from shadowsync.pipeline.wire.messages import (
    Attach,
    Attached,
    Credit,
    Delivery,
    Push,
    Pushed,
    RequestMessage,
    Vectors,
)
from shadowsync.pipeline.wire.rpc.retransmission import RetransmitPolicy
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener

from ..fake_streams import FakeStreams
from .in_process_node import InProcess, current_node

log = logging.getLogger("fault")
AT = 5
SLOW_SECONDS = 0.2
ROLES: dict[str, type[Role]] = {
    "reader": ReaderRole,
    "trainer": TrainerRole,
    "embedding": EmbeddingRole,
    "sync": SyncRole,
}
Fault = Callable[[pytest.MonkeyPatch], None]


def once(what: str, at: int = AT) -> Callable[[], bool]:
    """True at the call number `at`, of any thread, and never again."""
    count = itertools.count(1)

    def now() -> bool:
        calls = next(count)
        if calls == at:
            log.warning("fault: %s", what)
        return calls == at

    return now


def discard(patch: pytest.MonkeyPatch) -> None:
    """A worker that drops a batch untrained and tells nobody."""
    compute, due = Worker._compute, once("a batch was discarded")

    def faulty(self: Worker, batch: InFlightBatch) -> None:
        if batch.training and due():
            self._batches.popleft()
            self._drop(batch)
        else:
            compute(self, batch)

    patch.setattr(Worker, "_compute", faulty)


def double(patch: pytest.MonkeyPatch) -> None:
    """A worker that trains a batch twice, and acknowledges it once."""
    compute, due = Worker._compute, once("a batch was trained twice")
    # However long the machine stands still, no push is sent again.
    patch.setattr(embedding_client, "LOOKUP", RetransmitPolicy(60.0))

    def faulty(self: Worker, batch: InFlightBatch) -> None:
        if batch.training and due():
            _, gradients = self._stepper.train(batch.delivery, batch.requests, batch.replies)
            self._shards.push(batch, gradients, 0.0)
        compute(self, batch)

    patch.setattr(Worker, "_compute", faulty)


def miscount(patch: pytest.MonkeyPatch) -> None:
    """A reader that counts one delivery less than it sends."""
    send, due = DeliveryState._send, once("a delivery was not counted")

    def faulty(self: DeliveryState, *arguments: Any) -> Delivery:
        read = self.read_examples
        delivery = send(self, *arguments)
        if due():
            self.read_examples = read
        return delivery

    patch.setattr(DeliveryState, "_send", faulty)


def stray_row(patch: pytest.MonkeyPatch) -> None:
    """A reader that delivers a row that its table does not have."""
    send, due = DeliveryState._send, once("a row was changed on its way")

    def faulty(self: DeliveryState, *arguments: Any) -> Delivery:
        delivery = send(self, *arguments)
        if due():
            rows = delivery.rows.copy()
            rows[3, 7] = -1
            return dataclasses.replace(delivery, rows=rows)
        return delivery

    patch.setattr(DeliveryState, "_send", faulty)


DROPPED = (Push, Credit, Delivery, Pushed, Vectors, Attach, Attached)


def lose_messages(
    patch: pytest.MonkeyPatch, kinds: Iterable[type[Message]] = DROPPED, *, reports: bool = True
) -> None:
    """The AT-th of each kind of message is lost on its way, of those that a worker needs but once the first;
    with `reports` also the first report of trained batches."""
    resends_soon(patch)
    due = {
        kind: once(f"a {kind.KIND} was lost", at=1 if kind in (Attach, Attached) else AT) for kind in kinds
    }
    report_due = once("a report of trained batches was lost", at=1)

    def lost(message: Message) -> bool:
        if isinstance(message, RequestMessage):
            return reports and message.verb == "trained" and report_due()
        return type(message) in due and due[type(message)]()

    _lose(patch, lost)


def resends_soon(patch: pytest.MonkeyPatch) -> None:
    """No fault, but what is not answered is sent again at once, as a test that waits for it wants."""
    soon = RetransmitPolicy(0.3)
    for module, name in ((deliveries, "DELIVERY"), (embedding_client, "LOOKUP"), (shared_memory, "ATTACH")):
        assert isinstance(getattr(module, name), RetransmitPolicy)
        patch.setattr(module, name, soon)


def lose_push_replies(patch: pytest.MonkeyPatch) -> None:
    """An embedding node that applies a push and whose answer is lost, so that the push comes again."""
    lose_messages(patch, [Pushed], reports=False)


def fake_device(patch: pytest.MonkeyPatch) -> None:
    """No fault, but a trainer on a device that is not there: it launches a step before it finishes the last,
    and its copies come as late as they may."""
    patch.setattr(replica, "find_device", lambda *_: CudaDevice(FakeStreams()))
    launch, due = Stepper.launch, once("a step was launched ahead", at=1)

    def seen(self: Stepper, step: Step) -> None:
        launch(self, step)
        if self.ahead:
            due()

    patch.setattr(Stepper, "launch", seen)


def tampered_plan(role: str) -> Fault:
    """A node of a role to which the coordinator's plan comes without its last range."""
    from_body = TablePlan.from_body

    def faulty(tables: Sequence[TableSettings], nodes: int, body: dict[str, Any]) -> TablePlan:
        return from_body(tables, nodes, body | {"ranges": body["ranges"][:-1]})

    return _of_the_first(role, TablePlan, "from_body", faulty)


def other_plan(role: str) -> Fault:
    """A node of a role that goes by a good plan, which is not the coordinator's for any node."""

    def faulty(tables: Sequence[TableSettings], nodes: int, body: dict[str, Any]) -> TablePlan:
        ranges = [
            Range(table, start, stop, (node + 1) % nodes) for table, start, stop, node in body["ranges"]
        ]
        return TablePlan.of_ranges(tables, nodes, ranges)

    return _of_the_first(role, TablePlan, "from_body", faulty)


def never_ready(role: str) -> Fault:
    """The first node of a role that joins prepares for ever."""

    async def faulty(self: Role, node: NodeContext) -> NodeFacts:
        del self, node
        log.warning("fault: a node prepares for ever")
        await asyncio.Event().wait()
        raise AssertionError

    return _of_the_first(role, ROLES[role], "prepare", faulty)


def wrong_clock(where: str, seconds: float) -> Fault:
    """The wall clock of a role or a node is wrong by so much."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(wall_clock, "offset_seconds", lambda: seconds if is_here(where) else 0.0)

    return plant


def drop(where: str, kind: type[Message] | str, nth: int = 1) -> Fault:
    """The nth message of a kind, or question with a verb, that a role or a node sends is lost."""
    due = once(f"a message was lost: {kind if isinstance(kind, str) else kind.KIND}", at=nth)

    def lost(message: Message) -> bool:
        verb = isinstance(kind, str) and isinstance(message, RequestMessage) and message.verb == kind
        return is_here(where) and (verb or type(message) is kind) and due()

    return lambda patch: _lose(patch, lost)


def break_path(trainer: str, other: str) -> Fault:
    """From the AT-th message of another node to a trainer on, nothing passes between the two, either way."""
    due, broken = once("the path is broken"), threading.Event()
    names: dict[str, str] = {}

    def plant(patch: pytest.MonkeyPatch) -> None:
        connection_send, listener_send = Connection.send, Listener.send

        def from_worker(self: Connection, message: Message) -> None:
            if not (broken.is_set() and is_here(trainer) and names.get(self.endpoint) == other):
                connection_send(self, message)

        def from_service(self: Listener, identity: bytes, message: Message) -> None:
            if (node := current_node()) is not None:
                names[self.endpoint] = node.name
            if not (is_here(other) and names.get(identity.decode()) == trainer):
                listener_send(self, identity, message)
            elif due():
                broken.set()
            elif not broken.is_set():
                listener_send(self, identity, message)

        connect = Connection.__init__

        def noted(self: Connection, context: Any, endpoint: str, identity: str) -> None:
            connect(self, context, endpoint, identity)
            if (node := current_node()) is not None:
                names[identity] = node.name

        patch.setattr(Connection, "__init__", noted)
        patch.setattr(Connection, "send", from_worker)
        patch.setattr(Listener, "send", from_service)

    return plant


def die(where: str, at_step: int) -> Fault:
    """A trainer, by role or name, is killed when it is about to train its nth batch."""
    due = once(f"killed at step {at_step}", at=at_step)

    def plant(patch: pytest.MonkeyPatch) -> None:
        compute = Worker._compute

        def faulty(self: Worker, batch: InFlightBatch) -> None:
            node = current_node()
            if node is not None and is_here(where) and batch.training and due():
                node.kill()
                # The rest of the node is gone at this instant, so nothing of the batch is done.
                self._stop.wait()
            else:
                compute(self, batch)

        patch.setattr(Worker, "_compute", faulty)

    return plant


class Slowed:
    """No fault, but training that goes on slowly from the nth batch on, until `release`.

    So what a test does meanwhile does happen while the job trains, on a machine of any speed. A batch takes
    `seconds` more: the longer, the fewer of them are trained while a test waits for a silence. `Cluster` has
    it for trainers that are processes.
    """

    def __init__(self, at: int = AT, seconds: float = SLOW_SECONDS) -> None:
        self.at, self.seconds = at, seconds
        self.file: Path | None = None
        self._due = once("training is slowed", at)
        self._slow = threading.Event()
        self._released = threading.Event()

    def __call__(self, patch: pytest.MonkeyPatch) -> None:
        compute = Worker._compute

        def slow(self_: Worker, batch: InFlightBatch) -> None:
            if batch.training and self._due():
                self._slow.set()
            if batch.training and self._slow.is_set():
                self._released.wait(self.seconds)
            compute(self_, batch)

        patch.setattr(Worker, "_compute", slow)

    def release(self) -> None:
        """Train at full speed again."""
        self._released.set()
        if self.file is not None:
            self.file.unlink()


def scored_on_a_thread(patch: pytest.MonkeyPatch) -> None:
    """No fault, but checkpoints are scored in this process: another one would import torch for seconds."""

    async def score(scorer: CheckpointScorer, checkpoint: Location, spans: Sequence[Span]) -> CheckpointScore:
        request = scorer._request(checkpoint, spans) | {"nice": 0}
        return scoring._score_of(await asyncio.to_thread(process.reply, request, threading.Event()))

    patch.setattr(CheckpointScorer, "_score", score)


def is_here(where: str) -> bool:
    """Whether this thread works for a node of that role or name."""
    node = current_node()
    return node is not None and where in (node.role, node.name)


def _of_the_first(role: str, owner: type, name: str, faulty: Callable[..., Any]) -> Fault:
    """Another function of a class, for the first node of a role that calls it; the others have their own."""
    faithful = getattr(owner, name)
    chosen: list[InProcess] = []

    def either(*arguments: Any) -> Any:
        node = current_node()
        if node is not None and is_here(role):
            chosen.append(node)
        return (faulty if node in chosen[:1] else faithful)(*arguments)

    return lambda patch: patch.setattr(owner, name, either)


def _lose(patch: pytest.MonkeyPatch, lost: Callable[[Message], bool]) -> None:
    """Below the layer that sends again."""
    connection_send, listener_send, node_send = Connection.send, Listener.send, Node._send

    def from_worker(self: Connection, message: Message) -> None:
        if not lost(message):
            connection_send(self, message)

    def from_service(self: Listener, identity: bytes, message: Message) -> None:
        if not lost(message):
            listener_send(self, identity, message)

    def from_node(self: Node, message: Message) -> None:
        if not lost(message):
            node_send(self, message)

    patch.setattr(Connection, "send", from_worker)
    patch.setattr(Listener, "send", from_service)
    patch.setattr(Node, "_send", from_node)
