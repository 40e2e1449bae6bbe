"""An embedding node's thread over a real socket: lookups, pushes, repeats, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray
from shadowsync.nodes.embedding import server
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import Failure, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.tables.service_counts import counts
from shadowsync.tests.support.tables.shard_service import ask, running_shard
from shadowsync.tests.support.tables.tables import make_tables

Context = zmq.Context[zmq.Socket[bytes]]
ROWS, DIM, LR = 40, 4, 0.5


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def shard(
    request: pytest.FixtureRequest, context: Context, failures: list[BaseException]
) -> Iterator[tuple[ShardService, Connection]]:
    """A running service with plain SGD, and a worker's connection."""
    plan = TablePlan.make(make_tables([ROWS], DIM, lr=LR), 1)
    with running_shard(context, failures.append, plan, threads=request.param) as made:
        yield made


@pytest.fixture
def service(shard: tuple[ShardService, Connection]) -> ShardService:
    return shard[0]


@pytest.fixture
def worker(shard: tuple[ShardService, Connection]) -> Connection:
    return shard[1]


Call = Callable[[Message], Message]


@pytest.fixture
def call(worker: Connection) -> Call:
    """Sends a message and gives its answer."""
    return lambda message: ask(worker, message)


def rows(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def table(call: Call, request: int = 900) -> tuple[Float32Array, int]:
    """All rows as they are now, and the shard's version."""
    reply = of_type(Vectors, call(Lookup(request, rows(*range(ROWS)))))
    assert reply.request == request
    return reply.values.reshape(ROWS, DIM).copy(), reply.version


def push(
    request: int, batch: BatchId, numbers: NDArray[np.int32], value: float = 1.0, version: int = 0
) -> Push:
    return Push(request, batch, version, numbers, np.full(len(numbers) * DIM, value, np.float32))


def test_a_lookup_gives_the_rows_in_the_order_asked(call: Call) -> None:
    everything, version = table(call)
    assert version == 0
    reply = of_type(Vectors, call(Lookup(7, rows(39, 0, 5, 5))))
    assert (reply.request, reply.version) == (7, 0)
    np.testing.assert_array_equal(reply.values, everything[[39, 0, 5, 5]].reshape(-1))
    empty = of_type(Vectors, call(Lookup(8, rows())))
    assert empty.values.shape == (0,)


def test_a_push_changes_its_rows_and_no_others(call: Call) -> None:
    before, _ = table(call)
    assert call(push(1, batch_id(0), rows(3, 3, 9))) == Pushed(1, repeated=False)
    after, version = table(call)
    wanted = before.copy()
    wanted[3] -= 2 * LR
    wanted[9] -= LR
    np.testing.assert_allclose(after, wanted, rtol=0, atol=1e-6)
    assert version == 1


def test_a_repeated_push_is_answered_and_changes_nothing(call: Call, service: ShardService) -> None:
    call(push(1, batch_id(0), rows(3)))
    after, version = table(call)
    # The same request again, and the same batch trained once more by another, with other gradients.
    assert call(push(1, batch_id(0), rows(3))) == Pushed(1, repeated=True)
    assert call(push(2, batch_id(0), rows(4), value=9.0)) == Pushed(2, repeated=True)
    again, same_version = table(call)
    np.testing.assert_array_equal(again, after)
    assert same_version == version == 1
    metrics = counts(service)
    assert (metrics["applied_batches"], metrics["repeated_pushes"]) == (1, 2)
    # The control: a batch of another id is applied.
    for number, other in enumerate((batch_id(1), batch_id(0, epoch=1), batch_id(0, span=1)), start=3):
        assert call(push(number, other, rows(3))) == Pushed(number, repeated=False)
    np.testing.assert_allclose(table(call)[0][3], after[3] - 3 * LR, rtol=0, atol=1e-6)
    assert counts(service)["applied_batches"] == 4


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Lookup(7, rows(0, ROWS)), r"row 40 \(1 in all\) is outside of the 40 rows of node 0"),
        (Lookup(7, rows(-1)), r"row -1 \(1 in all\)"),
        (push(7, batch_id(9), rows(1, ROWS)), "row 40"),
        (push(7, batch_id(9), rows(-5, 1)), "row -5"),
        (
            Push(7, batch_id(9), 0, rows(1, 2), np.ones(DIM, np.float32)),
            r"gradients: float32 \[4\], not 8 of float32",
        ),
        (
            Push(7, batch_id(9), 0, rows(1), np.ones(3, np.float32)),
            r"gradients: float32 \[3\], not 4 of float32",
        ),
        (Lookup(7, rows(1, 2), (1, 1)), "2 counts with the sum 2 do not fit 2 rows in 1 banks"),
        (Lookup(7, rows(1, 2), (3,)), "1 counts with the sum 3 do not fit 2 rows in 1 banks"),
        (
            Push(7, batch_id(9), 0, rows(1), np.ones(DIM, np.float32), float("nan")),
            "lr_scale must be from 0 to 1000, not nan",
        ),
        (
            Push(7, batch_id(9), 0, rows(1), np.ones(DIM, np.float32), -1.0),
            "lr_scale must be from 0 to 1000, not -1.0",
        ),
        (
            # Times a rate it is no float32 any more, and that times a gradient of zero is not a number.
            Push(7, batch_id(9), 0, rows(1), np.zeros(DIM, np.float32), 1e300),
            r"lr_scale must be from 0 to 1000, not 1e\+300",
        ),
        (push(7, batch_id(9), rows(1, 2), float("nan")), "gradients must be finite"),
        (push(7, batch_id(9), rows(1, 2), float("-inf")), "gradients must be finite"),
        (Pushed(7, repeated=False), "an embedding node does not accept a pushed"),
    ],
)
def test_what_cannot_be_done_is_answered_and_changes_nothing(
    call: Call, service: ShardService, message: Message, why: str
) -> None:
    before, _ = table(call)
    reply = of_type(Failure, call(message))
    assert reply.request == 7
    assert re.search(why, reply.what)
    after, version = table(call)
    np.testing.assert_array_equal(after, before)
    assert version == 0
    assert counts(service)["applied_batches"] == 0
    # Its id is not spent: the right push of that batch is applied.
    assert call(push(8, batch_id(9), rows(1))) == Pushed(8, repeated=False)


def test_more_vectors_than_a_message_has_are_not_even_computed(
    call: Call, service: ShardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MAX_TENSOR_BYTES", 3 * DIM * 4)
    assert isinstance(call(Lookup(6, rows(1, 2, 3))), Vectors)
    reply = of_type(Failure, call(Lookup(7, rows(1, 2, 3, 4))))
    assert reply.what == "64 B of vectors requested; a message holds 48 B"
    assert (counts(service)["lookups"], counts(service)["looked_up_rows"]) == (1, 3)


def test_staleness_is_the_pushes_between_a_lookup_and_its_push(call: Call, service: ShardService) -> None:
    for number, version in enumerate((0, 1, 0, 0)):
        call(push(number + 1, batch_id(number), rows(1), version=version))
    # 0, 0, 2 and 3 pushes late; a repeat is not counted.
    call(push(9, batch_id(0), rows(1), version=0))
    metrics = counts(service)
    assert (metrics["staleness_sum"], metrics["staleness_max"], metrics["staleness_count"]) == (5, 3, 4)


def test_answers_that_are_under_way_do_not_share_a_buffer(worker: Connection, call: Call) -> None:
    everything, _ = table(call)
    # Large enough to be sent without a copy, and asked for before any is taken.
    many = [np.full(20_000, row, np.int32) for row in range(8)]
    for request, numbers in enumerate(many):
        worker.send(Lookup(request, numbers))
    received: dict[int, Float32Array] = {}
    while len(received) < len(many):
        assert worker.socket.poll(60_000), "nothing came"
        reply = of_type(Vectors, worker.receive())
        received[reply.request] = reply.values
    for request, values in received.items():
        np.testing.assert_array_equal(values, np.tile(everything[request], 20_000))
