"""A node with a fault that the ledger must show, or that the layer of resends must mend.

Its arguments are those of the command line; SHADOWSYNC_TEST_FAULT names the fault. The faults are put into
the product from outside, before the node starts, and each says in the node's log that it happened.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shadowsync.cli import main
from shadowsync.nodes import delivery_state, replica, shard_line, shared_rows
from shadowsync.nodes.cuda_device import CudaDevice
from shadowsync.nodes.delivery_state import DeliveryState
from shadowsync.nodes.node import Node
from shadowsync.nodes.slot import Slot
from shadowsync.nodes.step import Step, Stepper
from shadowsync.nodes.worker import Worker
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.ranges import Range
from shadowsync.pipeline.wire.messages import (
    Ask,
    Attach,
    Attached,
    Credit,
    Delivery,
    Push,
    Pushed,
    Vectors,
)
from shadowsync.pipeline.wire.retransmission import RetransmitPolicy
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener
from shadowsync.tests.support.fake_streams import FakeStreams

log = logging.getLogger("fault")
AT = 5


def once(what: str, at: int = AT) -> Callable[[], bool]:
    """True at the call number `at` and never again."""
    calls = 0

    def now() -> bool:
        nonlocal calls
        calls += 1
        if calls == at:
            log.warning("fault: %s", what)
        return calls == at

    return now


def discard() -> None:
    """A worker that drops a batch untrained and tells nobody."""
    compute, due = Worker._compute, once("a batch was discarded")

    def faulty(self: Worker, slot: Slot) -> None:
        if slot.training and due():
            self._slots.popleft()
            self._drop(slot)
        else:
            compute(self, slot)

    Worker._compute = faulty  # type: ignore[method-assign]


def double() -> None:
    """A worker that trains a batch twice, and acknowledges it twice."""
    compute, finish, due = Worker._compute, Worker._finish, once("a batch was trained twice")
    twice: list[Slot] = []

    def faulty(self: Worker, slot: Slot) -> None:
        if slot.training and due():
            twice.append(slot)
            _, gradients = self._stepper.train(slot.delivery, slot.requests, slot.answers)
            self._shards.push(slot, gradients, 0.0)
        compute(self, slot)

    def finish_twice(self: Worker, slot: Slot) -> None:
        finish(self, slot)
        if slot in twice:
            finish(self, slot)

    Worker._compute = faulty  # type: ignore[method-assign]
    Worker._finish = finish_twice  # type: ignore[method-assign]


def miscount() -> None:
    """A reader that counts one delivery less than it sends."""
    send, due = DeliveryState._send, once("a delivery was not counted")

    def faulty(self: DeliveryState, *arguments: Any) -> Delivery:
        read = self.read_examples
        delivery = send(self, *arguments)
        if due():
            self.read_examples = read
        return delivery

    DeliveryState._send = faulty  # type: ignore[assignment,method-assign]


def stray_row() -> None:
    """A reader that delivers a row that its table does not have."""
    send, due = DeliveryState._send, once("a row was changed on its way")

    def faulty(self: DeliveryState, *arguments: Any) -> Delivery:
        delivery = send(self, *arguments)
        if due():
            rows = delivery.rows.copy()
            rows[3, 7] = -1
            return dataclasses.replace(delivery, rows=rows)
        return delivery

    DeliveryState._send = faulty  # type: ignore[assignment,method-assign]


DROPPED = (Push, Credit, Delivery, Pushed, Vectors, Attach, Attached)


def drop(kinds: Iterable[type[Message]] = DROPPED) -> None:
    """Below the layer that sends again: the AT-th of each kind of message is lost on its way, of those that
    a worker needs but once the first."""
    soon = RetransmitPolicy(0.3)
    for module, name in ((delivery_state, "DELIVERY"), (shard_line, "LOOKUP"), (shared_rows, "ATTACH")):
        assert isinstance(getattr(module, name), RetransmitPolicy)
        setattr(module, name, soon)
    due = {
        kind: once(f"a {kind.KIND} was lost", at=1 if kind in (Attach, Attached) else AT) for kind in kinds
    }
    due_ask = once("a report of trained batches was lost", at=1)

    def lost(message: Message) -> bool:
        return type(message) in due and due[type(message)]()

    connection_send, listener_send, node_send = Connection.send, Listener.send, Node._send

    def from_worker(self: Connection, message: Message) -> None:
        if not lost(message):
            connection_send(self, message)

    def from_service(self: Listener, identity: bytes, message: Message) -> None:
        if not lost(message):
            listener_send(self, identity, message)

    def from_node(self: Node, message: Message) -> None:
        if not (isinstance(message, Ask) and message.verb == "trained" and due_ask()):
            node_send(self, message)

    Connection.send = from_worker  # type: ignore[method-assign]
    Listener.send = from_service  # type: ignore[method-assign]
    Node._send = from_node  # type: ignore[method-assign]


def drop_answers() -> None:
    """An embedding node that applies a push and whose answer is lost, so that the push comes again."""
    drop([Pushed])


def fake_device() -> None:
    """No fault, but a trainer on a device that is not there: it launches a step before it finishes the last,
    and its copies come as late as they may."""
    replica.find_device = lambda _: CudaDevice(FakeStreams())  # type: ignore[assignment,attr-defined]
    launch, due = Stepper.launch, once("a step was launched ahead", at=1)

    def seen(self: Stepper, step: Step) -> None:
        launch(self, step)
        if self.ahead:
            due()

    Stepper.launch = seen  # type: ignore[method-assign]


def tampered_plan() -> None:
    """A node to which the coordinator's plan comes without its last range."""
    from_body = TablePlan.from_body

    def faulty(tables: Sequence[TableSettings], nodes: int, body: dict[str, Any]) -> TablePlan:
        return from_body(tables, nodes, body | {"ranges": body["ranges"][:-1]})

    TablePlan.from_body = faulty  # type: ignore[method-assign]


def other_plan() -> None:
    """A node that goes by a good plan, which is not the coordinator's for any node."""

    def faulty(tables: Sequence[TableSettings], nodes: int, body: dict[str, Any]) -> TablePlan:
        ranges = [
            Range(table, start, stop, (node + 1) % nodes) for table, start, stop, node in body["ranges"]
        ]
        return TablePlan.of_ranges(tables, nodes, ranges)

    TablePlan.from_body = faulty  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "fake device": fake_device,
    "discard": discard,
    "double": double,
    "miscount": miscount,
    "stray row": stray_row,
    "drop": drop,
    "drop answers": drop_answers,
    "tampered plan": tampered_plan,
    "other plan": other_plan,
}

if __name__ == "__main__":
    FAULTS[os.environ["SHADOWSYNC_TEST_FAULT"]]()
    main(prog_name="shadowsync")
