"""A worker's client adds its own pushes to rows, refuses what cannot be, and keeps nothing for long."""

from __future__ import annotations

import dataclasses
import weakref

import numpy as np
import pytest
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient, LookupRefused
from shadowsync.pipeline.embedding.in_flight.rows_in_flight import RowsInFlight
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.messages import Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.rpc.retransmission import LOOKUP
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection
from shadowsync.tests.support.tables.lookups import DIM, in_flight, plan, vectors
from shadowsync.tests.support.tables.tables import make_tables

LR = 0.5
Client = EmbeddingClient[InFlightBatch]


class Trainer:
    """What a trainer's workers share, and its links to one node."""

    def __init__(self, optimizer: str = "sgd") -> None:
        tables = make_tables([20], DIM, optimizer=optimizer, lr=LR)
        self.rows = RowsInFlight(TablePlan.make(tables, 1), seed=0)
        self.box = RecordedConnection()

    def client(self, worker: int = 0) -> Client:
        return EmbeddingClient([self.box.connection], ["embedding-0"], rows=self.rows, worker=worker)

    def looked_up(self, client: Client, number: int, *rows: int) -> tuple[InFlightBatch, int]:
        """A batch whose lookup is sent, and the number of that request."""
        batch = in_flight(number)
        client.look_up(batch, [plan(0, *rows)], 0.0, exact=True)
        sent = self.box.only(Lookup)
        assert sent.with_state
        return batch, sent.request

    def pushed(self, client: Client, batch: InFlightBatch, *gradients: float) -> Push:
        """The push of a batch whose rows are complete."""
        client.complete(batch)
        client.push(batch, [np.repeat(np.array(gradients, np.float32), DIM)], 0.0)
        return self.box.only(Push)


def test_a_batch_has_what_its_worker_and_others_pushed_meanwhile() -> None:
    trainer = Trainer()
    one, other = trainer.client(), trainer.client(worker=1)
    first, asked = trainer.looked_up(one, 0, 4, 5)
    second, asked_second = trainer.looked_up(one, 1, 5, 6)
    of_other, asked_other = trainer.looked_up(other, 2, 5)
    one.receive(0, vectors(asked, 1.0, 2.0))
    one.receive(0, vectors(asked_second, 2.0, 3.0, version=7))
    other.receive(0, vectors(asked_other, 2.0))
    push = trainer.pushed(one, first, 1.0, 1.0)
    assert (push.sequence, push.answered_below) == (1, 1)
    trainer.pushed(other, of_other, 4.0)
    one.complete(second)
    assert second.replies[0].reshape(-1, DIM)[:, 0].tolist() == [2.0 - LR * 1.0 - LR * 4.0, 3.0]
    # The node will have applied both, so they make the rows no older.
    assert second.versions == [9]
    # The control: an answer with both of them, and one that was not asked exactly.
    third, asked_third = trainer.looked_up(one, 3, 5)
    one.receive(0, Vectors(asked_third, 9, np.zeros(DIM, np.float32), applied=(0, 1, 0, 1, 0, 1, 1)))
    one.complete(third)
    assert third.replies[0].tolist() == [0.0] * DIM
    scored = in_flight(9, pass_number=1)
    one.look_up(scored, [plan(0, 5)], 0.0)
    sent = trainer.box.only(Lookup)
    assert not sent.with_state
    one.receive(0, vectors(sent.request, 2.0))
    one.complete(scored)
    assert scored.replies[0].tolist() == [2.0] * DIM


def test_pushes_are_kept_until_they_are_answered_and_no_earlier_lookup_is_left() -> None:
    trainer = Trainer()
    client = trainer.client()
    batches = [trainer.looked_up(client, number, 4) for number in range(4)]
    for _, asked in batches[:3]:
        client.receive(0, vectors(asked, 1.0))
    push = trainer.pushed(client, batches[0][0], 1.0)
    assert len(trainer.rows) == 1
    client.receive(0, Pushed(push.request, repeated=False))
    assert len(trainer.rows) == 1
    later, asked = trainer.looked_up(client, 5, 4)
    # One is computed, one dropped, and one whose answer is not awaited any more.
    client.complete(batches[1][0])
    client.release(batches[2][0])
    assert len(trainer.rows) == 1
    client.forget_lookups()
    assert len(trainer.rows) == 0
    assert later.ticket == 0
    # Twice, and of a batch without a ticket: nothing.
    client.release(later)
    client.complete(later)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_a_push_keeps_nothing_of_the_answer_that_its_batch_had(optimizer: str) -> None:
    """The answer may lie in memory that is lent to one request at a time."""
    trainer = Trainer(optimizer)
    client = trainer.client()
    earlier, _ = trainer.looked_up(client, 0, 5)
    batch, asked = trainer.looked_up(client, 1, 4, 5)
    state = {"sgd": 0, "rowwise_adagrad": 1, "adam": 2 * DIM + 1}[optimizer]
    memory: Float32Array = np.ones(2 * (DIM + state), np.float32)
    client.receive(0, Vectors(asked, 0, memory[: 2 * DIM], state=memory[2 * DIM :]))
    ended = weakref.ref(memory)
    del memory
    push = trainer.pushed(client, batch, 1.0, 1.0)
    batch.replies = []
    assert len(trainer.rows) == 1
    assert ended() is None
    client.receive(0, Pushed(push.request, repeated=False))
    assert len(trainer.rows) == 1
    client.release(earlier)
    assert len(trainer.rows) == 0


def test_gradients_are_kept_with_their_push_without_a_copy() -> None:
    """Memory that is lent for them is lent again once they are gone."""
    trainer = Trainer()
    client = trainer.client()
    earlier, asked_earlier = trainer.looked_up(client, 0, 5)
    batch, asked = trainer.looked_up(client, 1, 4, 5)
    client.receive(0, vectors(asked, 1.0, 2.0))
    client.complete(batch)
    gradients: Float32Array = np.ones(2 * DIM, np.float32)
    ended = weakref.ref(gradients)
    client.push(batch, [gradients], 0.0)
    del gradients
    push = trainer.box.only(Push)
    client.receive(0, Pushed(push.request, repeated=False))
    del push
    client.receive(0, vectors(asked_earlier, 2.0))
    assert ended() is not None
    client.complete(earlier)
    assert earlier.replies[0].tolist() == [2.0 - LR] * DIM
    assert ended() is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"values": 3}, "3 floats and 2 of state, not the 4 and 2 requested"),
        ({"state": 1}, "4 floats and 1 of state, not the 4 and 2"),
        ({"state": 3}, "4 floats and 3 of state"),
        ({"absent": [2]}, "positions of absent keys that do not ascend within 2"),
        ({"absent": [-1, 0]}, "positions of absent keys"),
        ({"absent": [1, 0]}, "positions of absent keys"),
        ({"absent": [0, 0]}, "positions of absent keys"),
        # Differences of 32 bits would be above 0.
        ({"absent": [0, 2**31 - 1, -(2**31), 1]}, "positions of absent keys"),
        ({"applied": (0, 1)}, "2 numbers of applied pushes do not fit together"),
        ({"applied": (0, 1, 2, 5)}, "4 numbers of applied pushes do not fit together"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer: dict[str, object], why: str) -> None:
    trainer = Trainer("rowwise_adagrad")
    client = trainer.client()
    _, asked = trainer.looked_up(client, 0, 4, 5)

    def of(**parts: object) -> Vectors:
        given = {"values": 2 * DIM, "state": 2, "absent": [], "applied": ()} | parts
        values, state = (np.ones(given[name], np.float32) for name in ("values", "state"))
        absent = np.array(given["absent"], np.int32)
        return Vectors(asked, 0, values, applied=given["applied"], state=state, absent=absent)  # type: ignore[arg-type]

    with pytest.raises(LookupRefused, match=f"embedding-0: its answer cannot be: {why}"):
        client.receive(0, of(**answer))
    assert client.receive(0, of()) is None
    assert client.outstanding == 0


def test_a_node_in_a_dead_ones_place_gets_pushes_before_lookups() -> None:
    """It may have them, as one that was cut off has; its answers then have to say so."""
    trainer = Trainer()
    client = trainer.client()
    first, asked = trainer.looked_up(client, 0, 4)
    waiting, asked_waiting = trainer.looked_up(client, 1, 4)
    client.receive(0, vectors(asked, 1.0))
    push = trainer.pushed(client, first, 1.0)
    client.lose("embedding-0")
    new = RecordedConnection()
    client.replace(0, "embedding-1", new.connection, 1.0)
    assert [message.request for message in new.take()] == [push.request, asked_waiting]  # type: ignore[attr-defined]
    client.receive(0, Vectors(asked_waiting, 1, np.full(DIM, 0.5, np.float32), applied=(0, 1, 0)))
    client.complete(waiting)
    assert waiting.replies[0].tolist() == [0.5] * DIM


def test_what_the_dead_node_answered_lacks_what_the_other_one_confirms() -> None:
    trainer = Trainer()
    client = trainer.client()
    first, asked = trainer.looked_up(client, 0, 4)
    second, asked_second = trainer.looked_up(client, 1, 4)
    third, asked_third = trainer.looked_up(client, 2, 4)
    client.receive(0, vectors(asked, 1.0))
    client.receive(0, vectors(asked_second, 1.0))
    push = trainer.pushed(client, first, 1.0)
    client.lose("embedding-0")
    client.replace(0, "embedding-1", trainer.box.connection, 1.0)
    client.receive(0, Pushed(push.request, repeated=False))
    client.complete(second)
    assert second.replies[0].tolist() == [1.0 - LR] * DIM
    # What the dead one has confirmed the other one has, or gets as a batch that is trained again.
    client.receive(0, vectors(asked_third, 3.0))
    trainer.rows.answered(0, 0, push.sequence, "embedding-0", changed=True, is_resent=False)
    client.complete(third)
    assert third.replies[0].tolist() == [3.0] * DIM


def test_a_batch_that_is_pushed_waits_for_no_rows() -> None:
    """Whether they were complete or not: nothing is kept for it, and there is nothing to complete."""
    trainer = Trainer()
    client = trainer.client()
    batch, asked = trainer.looked_up(client, 0, 4)
    client.receive(0, vectors(asked, 1.0))
    client.push(batch, [np.ones(DIM, np.float32)], 0.0)
    push = trainer.box.only(Push)
    client.complete(batch)
    client.receive(0, Pushed(push.request, repeated=False))
    assert len(trainer.rows) == 0


def test_a_batch_that_is_trained_again_counts_where_its_node_lacked_it() -> None:
    trainer = Trainer()
    client = trainer.client()
    (first, asked), *others = (trainer.looked_up(client, number, 4) for number in range(4))
    first.delivery = dataclasses.replace(first.delivery, replay=True)
    client.receive(0, vectors(asked, 1.0))
    for _, number in others:
        client.receive(0, vectors(number, 1.0))
    push = trainer.pushed(client, first, 1.0)

    def row_of(batch: InFlightBatch) -> float:
        client.complete(batch)
        return float(batch.replies[0][0])

    assert row_of(others[0][0]) == 1.0
    client.receive(0, Pushed(push.request, repeated=False))
    assert row_of(others[1][0]) == 1.0 - LR
    trainer.rows.answered(0, 0, push.sequence, "embedding-0", changed=False, is_resent=False)
    assert row_of(others[2][0]) == 1.0


def test_a_push_that_is_sent_again_keeps_its_number() -> None:
    trainer = Trainer()
    client = trainer.client()
    batches = [trainer.looked_up(client, number, 4) for number in range(3)]
    pushes = []
    for batch, asked in batches:
        client.receive(0, vectors(asked, 1.0))
        pushes.append(trainer.pushed(client, batch, 1.0))
    assert [(push.sequence, push.answered_below) for push in pushes] == [(1, 1), (2, 1), (3, 1)]
    client.receive(0, Pushed(pushes[1].request, repeated=False))
    client.resend_overdue(LOOKUP.interval_seconds + 1)
    assert trainer.box.take() == [pushes[0], pushes[2]]
    client.receive(0, Pushed(pushes[0].request, repeated=True))
    batch, asked = trainer.looked_up(client, 3, 4)
    client.receive(0, vectors(asked, 1.0))
    last = trainer.pushed(client, batch, 1.0)
    assert (last.sequence, last.answered_below) == (4, 3)
