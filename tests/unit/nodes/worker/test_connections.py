"""A worker's sockets: of a node that is lost nothing is taken, and another one may have its place.

A node that lives and does not answer is an error after a while, and never before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import zmq
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.connections import PeerUnreachable, ReplyWatch, WorkerConnections
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode
from shadowsync.pipeline.wire.control.orders import MemberInfo
from shadowsync.pipeline.wire.messages import Lookup, Push, Pushed
from shadowsync.pipeline.wire.sockets import Listener, Waker
from shadowsync.tests.support.tables.lookups import DIM, in_flight, plan, vectors

MILLISECONDS = 60_000
WORKER = b"token/0"


@pytest.fixture
def shards(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[list[Listener]]:
    """The sockets of an embedding node, and of the one that takes its place."""
    made = [Listener(context, f"inproc://shard-{number}") for number in range(2)]
    yield made
    for listener in made:
        listener.close()


@pytest.fixture
def connections(
    context: zmq.Context[zmq.Socket[bytes]], shards: list[Listener]
) -> Iterator[WorkerConnections[InFlightBatch]]:
    job = Job.model_validate(
        {"data": {"format": "criteo_tsv", "path": ["x"]}, "network": {"shared_memory": False}}
    )
    members = [
        MemberInfo("embedding-0", "embedding", 0, "first", shards[0].endpoint),
        MemberInfo("trainer-0", "trainer", 0, "token", ""),
    ]
    waker = Waker()
    made = WorkerConnections[InFlightBatch](context, members, WORKER.decode(), job, waker.fileno())
    yield made
    made.close()
    waker.close()


def test_one_that_cannot_be_connected_to_leaves_no_socket_open() -> None:
    """A context with an open socket cannot be terminated, so the trainer could not end."""
    job = Job.model_validate({"data": {"format": "criteo_tsv", "path": ["x"]}})
    members = [
        MemberInfo("reader-0", "reader", 0, "first", "inproc://reader"),
        MemberInfo("embedding-0", "embedding", 0, "second", "nowhere"),
    ]
    sockets = list[zmq.Socket[bytes]]()

    class Noting(zmq.Context[zmq.Socket[bytes]]):
        def socket(self, *given: Any, **named: Any) -> zmq.Socket[bytes]:
            sockets.append(super().socket(*given, **named))
            return sockets[-1]

    waker, context = Waker(), Noting()
    with pytest.raises(zmq.ZMQError):
        WorkerConnections[InFlightBatch](context, members, WORKER.decode(), job, waker.fileno())
    waker.close()
    assert [socket.closed for socket in sockets] == [True, True]
    context.term()


def _pushed(listener: Listener) -> Push:
    assert listener.socket.poll(MILLISECONDS)
    found = listener.receive()
    assert found is not None
    identity, message = found
    assert identity == WORKER
    assert isinstance(message, Push)
    return message


def test_what_has_come_of_a_node_that_is_lost_is_not_taken(
    connections: WorkerConnections[InFlightBatch], shards: list[Listener]
) -> None:
    """It may have been seen before the news of its death: its socket is closed by then."""
    batch = in_flight()
    batch.requests, batch.versions = [plan(0, 4)], [0]
    connections.shards.push(batch, [np.ones(DIM, np.float32)], 0.0)
    shards[0].send(WORKER, Pushed(_pushed(shards[0]).request, repeated=False))
    connections.poll(MILLISECONDS)
    connections.lose("embedding-0")
    assert connections.take_replies() == []
    assert connections.shards.pending_pushes == 1


def test_a_push_goes_to_the_node_that_takes_the_place(
    connections: WorkerConnections[InFlightBatch], shards: list[Listener]
) -> None:
    batch = in_flight()
    batch.requests, batch.versions = [plan(0, 4)], [0]
    connections.shards.push(batch, [np.ones(DIM, np.float32)], 0.0)
    request = _pushed(shards[0]).request
    sent_bytes = connections.metrics()["sent_bytes"]
    connections.lose("embedding-0")
    other = MemberInfo("embedding-1", "embedding", 0, "second", shards[1].endpoint)
    connections.replace_shard(other)
    connections.replace_shard(other)
    assert _pushed(shards[1]).request == request
    shards[1].send(WORKER, Pushed(request, repeated=False))
    connections.poll(MILLISECONDS)
    assert connections.take_replies() == [batch]
    metrics = connections.metrics()
    assert metrics["sent_bytes"] == 2 * sent_bytes, "what was sent to the dead one counts"
    assert {"to/embedding-0", "to/embedding-1"} <= metrics.keys()


def test_one_that_has_died_again_is_not_connected_to(
    connections: WorkerConnections[InFlightBatch], shards: list[Listener]
) -> None:
    connections.lose("embedding-0")
    connections.lose("embedding-1")
    connections.replace_shard(MemberInfo("embedding-1", "embedding", 0, "second", shards[1].endpoint))
    assert connections.shards.names == ["embedding-0"]


class SlowPoller(zmq.Poller):
    """On whose clock every poll takes 0.1 s, and nothing else takes any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def poll(self, timeout: int | None = None) -> list[tuple[Any, int]]:
        self.now += 0.1
        return super().poll(timeout)


@pytest.mark.parametrize(("waits", "trips"), [(MILLISECONDS, 1), (0, 0)])
def test_a_round_trip_is_from_sending_to_the_answer_that_ended_a_wait(
    connections: WorkerConnections[InFlightBatch],
    shards: list[Listener],
    monkeypatch: pytest.MonkeyPatch,
    waits: int,
    trips: int,
) -> None:
    """The control does not wait: how long its answer lay there is not known."""
    poller = SlowPoller()
    connections.shards.look_up(in_flight(), [plan(0, 4)], 0.0)
    assert shards[0].socket.poll(MILLISECONDS)
    ((_, lookup),) = [found for found in [shards[0].receive()] if found is not None]
    assert isinstance(lookup, Lookup)
    shards[0].send(WORKER, vectors(lookup.request, 1.0))
    for _, connection in connections.shards.named_connections:
        assert connection.socket.poll(MILLISECONDS)
        poller.register(connection.socket, zmq.POLLIN)
    monkeypatch.setattr("shadowsync.nodes.worker.connections.time", poller)
    monkeypatch.setattr(connections, "_poller", poller)
    connections.poll(waits)
    connections.take_replies()
    metrics = connections.metrics()
    assert metrics["round_trips"] == trips
    assert metrics["round_trip_seconds"] == pytest.approx(0.1 * trips)


LIMIT = 10.0


def watched(watch: ReplyWatch, begin: float, end: float, *requested: str) -> None:
    """Checks once a second."""
    for second in range(int(begin), int(end)):
        watch.check(float(second), requested)


def test_silence_for_longer_than_the_limit_is_an_error() -> None:
    watch = ReplyWatch("trainer-1", LIMIT)
    watched(watch, 0, 11, "reader-0", "embedding-0")
    watch.record_message("reader-0")
    with pytest.raises(PeerUnreachable) as raised:
        watched(watch, 11, 12, "reader-0", "embedding-0")
    error = raised.value
    assert str(error).startswith("embedding-0: has not answered trainer-1 for 10 s, although both are alive")
    assert error.exit_code is ExitCode.STOPPED_BY_DEATH


def test_every_answer_begins_anew() -> None:
    watch = ReplyWatch("trainer-1", LIMIT)
    for begin in range(0, 100, 10):
        watched(watch, begin, begin + 10, "embedding-0")
        watch.record_message("embedding-0")


def test_who_was_not_asked_owes_nothing() -> None:
    watch = ReplyWatch("trainer-1", LIMIT)
    for begin in range(0, 100, 10):
        watched(watch, begin, begin + 9, "embedding-0")
        watch.check(begin + 9.0, ())
