"""A node with a fault that the ledger must show, or that the layer of resends must mend.

Its arguments are those of the command line; SHADOWSYNC_TEST_FAULT names the fault. The faults are put into
the product from outside, before the node starts, and each says in the node's log that it happened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from shadowsync.cli import main
from shadowsync.nodes import delivery_state, shard_line
from shadowsync.nodes.delivery_state import DeliveryState
from shadowsync.nodes.node import Node
from shadowsync.nodes.shard_line import Slot
from shadowsync.nodes.worker import Worker
from shadowsync.pipeline.wire.messages import Ask, Credit, Delivery, Push, Pushed, Vectors
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection, Listener

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


def drop(kinds: Iterable[type[Message]] = (Push, Credit, Delivery, Pushed, Vectors)) -> None:
    """Below the layer that sends again: the AT-th of each kind of message is lost on its way."""
    delivery_state.RESEND_SECONDS = shard_line.RESEND_SECONDS = 0.3
    due = {kind: once(f"a {kind.KIND} was lost") for kind in kinds}
    due_ask = once("a report of trained batches was lost", at=1)

    def lost(message: Message) -> bool:
        return type(message) in due and due[type(message)]()

    connection_send, listener_send, node_send = Connection.send, Listener.send, Node._send

    def from_worker(self: Connection, message: Message) -> list[Any]:
        return [] if lost(message) else connection_send(self, message)

    def from_service(self: Listener, identity: bytes, message: Message) -> list[Any] | None:
        return [] if lost(message) else listener_send(self, identity, message)

    def from_node(self: Node, message: Message) -> None:
        if not (isinstance(message, Ask) and message.verb == "trained" and due_ask()):
            node_send(self, message)

    Connection.send = from_worker  # type: ignore[method-assign]
    Listener.send = from_service  # type: ignore[method-assign]
    Node._send = from_node  # type: ignore[method-assign]


def drop_answers() -> None:
    """An embedding node that applies a push and whose answer is lost, so that the push comes again."""
    drop([Pushed])


FAULTS: dict[str, Callable[[], None]] = {
    "discard": discard,
    "double": double,
    "miscount": miscount,
    "drop": drop,
    "drop answers": drop_answers,
}

if __name__ == "__main__":
    FAULTS[os.environ["SHADOWSYNC_TEST_FAULT"]]()
    main(prog_name="shadowsync")
