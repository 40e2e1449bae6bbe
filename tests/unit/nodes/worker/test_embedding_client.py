"""A worker's requests to the embedding nodes."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient, LookupRefused
from shadowsync.pipeline.wire.messages import Failure, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.rpc.retransmission import LOOKUP
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.lookups import DIM, in_flight, plan, vectors

Client = EmbeddingClient[InFlightBatch]
Boxes = list[RecordedConnection]


@pytest.fixture
def boxes() -> Boxes:
    return [RecordedConnection(), RecordedConnection(), RecordedConnection()]


@pytest.fixture
def client(boxes: Boxes) -> Client:
    return EmbeddingClient([box.connection for box in boxes], ["embedding-0", "embedding-1", "embedding-2"])


def test_each_node_is_asked_for_its_part_even_of_nothing(client: Client, boxes: Boxes) -> None:
    one = in_flight()
    client.look_up(one, [plan(0, 4, 5), plan(1), plan(2, 6)], 0.0)
    for box, rows in zip(boxes, ([4, 5], [], [6]), strict=True):
        requested = box.only(Lookup)
        assert requested.rows.tolist() == rows
    assert (one.pending_lookups, client.outstanding, client.lookups) == (3, 3, 3)
    assert client.receive(2, vectors(3, 0.5, version=9)) is None
    assert client.receive(0, vectors(1, 1.5, 2.5, version=3)) is None
    assert one.pending_lookups == 1
    assert client.receive(1, vectors(2, version=7)) is None
    assert one.pending_lookups == client.outstanding == 0
    assert one.versions == [3, 7, 9]
    assert [reply.tolist() for reply in one.replies] == [[1.5, 1.5, 2.5, 2.5], [], [0.5, 0.5]]
    assert one.replies[1].shape == (0,)


def test_a_push_carries_the_batch_and_the_lookups_version(client: Client, boxes: Boxes) -> None:
    one = in_flight(7)
    client.look_up(one, [plan(0, 4), plan(1), plan(2, 6)], 0.0)
    client.receive(0, vectors(1, 1.0, version=3))
    client.receive(1, vectors(2, version=5))
    client.receive(2, vectors(3, 1.0, version=9))
    for box in boxes:
        box.take()
    gradients = [np.full(count * DIM, 0.25, np.float32) for count in (1, 0, 1)]
    client.push(one, gradients, 0.0)
    # A node that has none of its rows is told of the batch too: its ledger have every batch.
    reported = boxes[1].only(Push)
    assert (reported.request, reported.id, reported.version, reported.rows.size) == (5, batch_id(7), 5, 0)
    push = boxes[2].only(Push)
    assert (push.request, push.id, push.version) == (6, batch_id(7), 9)
    assert push.rows.tolist() == [6]
    assert push.gradients is gradients[2]
    # The batch is finished by the last of its answers, once.
    assert client.receive(2, Pushed(6, repeated=True)) is None
    assert client.receive(2, Pushed(6, repeated=True)) is None
    assert client.receive(0, Pushed(4, repeated=False)) is None
    assert client.receive(1, Pushed(5, repeated=False)) is one
    assert client.receive(1, Pushed(5, repeated=False)) is None
    assert (one.unpushed, client.outstanding) == (0, 0)


def test_an_answer_counts_once_and_from_whom_was_asked(client: Client) -> None:
    one = in_flight()
    client.look_up(one, [plan(0, 4), plan(1, 5)], 0.0)
    client.receive(1, vectors(1, 9.0))
    client.receive(0, vectors(99, 9.0))
    client.receive(0, Pushed(1, repeated=False))
    assert (one.pending_lookups, one.unpushed) == (2, 0)
    client.receive(0, vectors(1, 1.0))
    client.receive(0, vectors(1, 2.0))
    assert one.pending_lookups == 1
    assert one.replies[0].tolist() == [1.0, 1.0]


def test_only_what_is_overdue_is_sent_again_and_is_the_same(client: Client, boxes: Boxes) -> None:
    early, late = in_flight(0), in_flight(1)
    client.look_up(early, [plan(0, 4), plan(1, 5)], 100.0)
    client.look_up(late, [plan(0, 6)], 102.0)
    first = boxes[0].take()[0]
    boxes[1].take()
    client.receive(1, vectors(2, 1.0))
    client.resend_overdue(99.9 + LOOKUP.interval_seconds)
    assert boxes[0].sent == []
    client.resend_overdue(100.5 + LOOKUP.interval_seconds)
    assert boxes[0].take() == [first]
    assert boxes[1].take() == []
    client.resend_overdue(100.6 + LOOKUP.interval_seconds)
    assert boxes[0].take() == []
    client.resend_overdue(100.7 + 2 * LOOKUP.interval_seconds)
    assert len(boxes[0].take()) == 2
    assert (client.resent, client.resent_pushes) == (3, 0)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Failure(1, "row 9 is not one of node 0's 4"), "embedding-0: row 9 is not one of"),
        (Failure(0, "the header's checksum does not match"), "embedding-0: the header"),
        (vectors(1, 1.0, 2.0), "embedding-0: it answered 4 floats, not the 2 requested"),
        (Vectors(1, 0, np.zeros(3, np.float32)), "it answered 3 floats, not the 2 requested"),
    ],
)
def test_a_refusal_or_a_wrong_answer_is_an_error_by_name(
    client: Client, message: Failure | Vectors, why: str
) -> None:
    client.look_up(in_flight(), [plan(0, 4)], 0.0)
    with pytest.raises(LookupRefused, match=why):
        client.receive(0, message)


def test_forgetting_lookups_keeps_pushes(client: Client, boxes: Boxes) -> None:
    trained, waiting = in_flight(0), in_flight(1)
    client.look_up(trained, [plan(0, 4)], 0.0)
    client.receive(0, vectors(1, 1.0))
    client.push(trained, [np.zeros(DIM, np.float32)], 0.0)
    client.look_up(waiting, [plan(0, 5)], 0.0)
    assert client.outstanding == 2
    client.forget_lookups()
    assert client.outstanding == 1
    for box in boxes:
        box.take()
    client.resend_overdue(LOOKUP.interval_seconds + 1)
    assert [message.KIND for message in boxes[0].take()] == ["push"]
    assert (client.resent, client.resent_pushes) == (1, 1)
    assert client.receive(0, vectors(3, 1.0)) is None
    assert waiting.pending_lookups == 1
    assert client.receive(0, Pushed(2, repeated=False)) is trained


def test_a_lost_node_strands_what_was_pushed_to_it_once(client: Client, boxes: Boxes) -> None:
    both, other, waiting = in_flight(0), in_flight(1), in_flight(2)
    nothing = np.zeros(0, np.float32)
    one = np.zeros(DIM, np.float32)
    both.requests = other.requests = [plan(0, 4), plan(1, 5), plan(2)]
    both.versions = other.versions = [0, 0, 0]
    client.push(both, [one, one, nothing], 0.0)
    client.push(other, [one, one, nothing], 0.0)
    assert client.receive(2, Pushed(3, repeated=False)) is None
    assert client.receive(0, Pushed(4, repeated=False)) is None
    client.look_up(waiting, [plan(0, 4)], 0.0)
    assert not client.lost
    assert client.pending_pushes == 4
    client.lose("embedding-0")
    assert not client.lost
    assert client.give_up() == [both]
    assert client.lost
    # The others' answers are still awaited, and finish nothing that is stranded.
    assert client.pending_pushes == 3
    assert client.receive(1, Pushed(2, repeated=False)) is None
    for box in boxes:
        box.take()
    client.resend_overdue(LOOKUP.interval_seconds + 1)
    assert [len(box.take()) for box in boxes] == [0, 1, 1]
    client.lose("embedding-2")
    assert client.give_up() == [other]
    # One that both are missing is not counted twice.
    client.lose("embedding-1")
    assert client.give_up() == []
    assert client.outstanding == 0


def test_another_node_in_a_dead_ones_place_gets_what_is_not_answered(client: Client, boxes: Boxes) -> None:
    trained, waiting, later = in_flight(0), in_flight(1), in_flight(2)
    trained.requests, trained.versions = [plan(0, 4), plan(1), plan(2)], [0, 0, 0]
    nothing = np.zeros(0, np.float32)
    client.push(trained, [np.ones(DIM, np.float32), nothing, nothing], 0.0)
    client.look_up(waiting, [plan(0, 5), plan(1), plan(2)], 0.0)
    client.lose("embedding-0")
    for box in boxes:
        box.take()
    # Meanwhile nothing is sent, and nobody is waited for in vain.
    client.look_up(later, [plan(0, 6), plan(1), plan(2)], 0.0)
    client.resend_overdue(LOOKUP.interval_seconds + 1)
    assert boxes[0].take() == []
    assert client.pending_nodes == {"embedding-1", "embedding-2"}
    new = RecordedConnection()
    client.replace(0, "embedding-3", new.connection, 1.0)
    again = new.take()
    assert [(message.KIND, getattr(message, "request", 0)) for message in again] == [
        ("push", 1),
        ("lookup", 4),
        ("lookup", 7),
    ]
    assert isinstance(again[0], Push)
    assert (again[0].id, again[0].gradients.tolist()) == (batch_id(0), [1.0] * DIM)
    assert client.resent_pushes >= 1
    assert "embedding-3" in client.pending_nodes
    for shard in (1, 2):
        client.receive(shard, Pushed(1 + shard, repeated=False))
    assert client.receive(0, Pushed(1, repeated=False)) is trained
    client.receive(0, vectors(4, 2.0))
    assert waiting.replies[0].tolist() == [2.0] * DIM
    assert not client.lost


def test_a_batch_is_for_training_or_for_a_pass() -> None:
    assert in_flight().training
    assert not in_flight(pass_number=2).training
