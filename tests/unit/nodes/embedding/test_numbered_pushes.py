"""An embedding node says which pushes of a trainer its answers contain, and bears numbers that cannot be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.pipeline.embedding.in_flight.applied_pushes import MOST_NUMBERS
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.wire.messages import Failure, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.jobs.processes import wait_until
from shadowsync.tests.support.tables.shard_service import ask, running_shard
from shadowsync.tests.support.tables.tables import make_tables

Context = zmq.Context[zmq.Socket[bytes]]
ROWS, DIM = 40, 4
Call = Callable[..., Message]


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def service(
    request: pytest.FixtureRequest, context: Context, failures: list[BaseException]
) -> Iterator[ShardService]:
    """A running service with row-wise Adagrad."""
    plan = TablePlan.make(make_tables([ROWS], DIM, optimizer="rowwise_adagrad", lr=0.5), 1)
    with running_shard(context, failures.append, plan, threads=request.param) as (made, _):
        yield made


@pytest.fixture
def call(context: Context, service: ShardService) -> Iterator[Call]:
    """Sends a message of a worker, by default t/0, and gives its answer."""
    with ExitStack() as stack:

        @functools.cache
        def connection(worker: str) -> Connection:
            return stack.enter_context(closing(Connection(context, service.listener.endpoint, worker)))

        yield lambda message, worker="t/0": ask(connection(worker), message)


def rows(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, np.int32)


def push(number: int, sequence: int, below: int = 1, value: float = 1.0) -> Push:
    gradients = np.full(DIM, value, np.float32)
    return Push(number, batch_id(number), 0, rows(3), gradients, sequence=sequence, answered_below=below)


def look_up(call: Call, worker: str = "t/0", asked: NDArray[np.int32] | None = None) -> Vectors:
    reply = call(Lookup(900, rows(3, 4) if asked is None else asked, with_state=True), worker)
    assert isinstance(reply, Vectors)
    return reply


def test_an_answer_has_the_state_and_the_pushes_of_its_own_trainer(call: Call) -> None:
    assert look_up(call).applied == ()
    for number, (worker, sequence, below) in enumerate(
        [("t/0", 1, 1), ("t/0", 3, 1), ("t/2", 5, 5), ("other/0", 1, 1), ("t/0", 4, 1)]
    ):
        assert isinstance(call(push(number, sequence, below), worker), Pushed)
    reply = look_up(call)
    assert reply.applied == (0, 1, 2, 3, 4, 2, 5, 0)
    assert reply.state.tolist() == [5.0, 0.0]
    assert look_up(call, "other/7").applied == (0, 1, 0)
    # One that its batch's first push was before changes nothing, and is contained.
    assert call(push(0, 2)) == Pushed(0, repeated=True)
    assert look_up(call).applied == (0, 4, 0, 2, 5, 0)
    assert look_up(call).state.tolist() == [5.0, 0.0]
    # Who does not ask gets none of it.
    plain = of_type(Vectors, call(Lookup(901, rows(3, 4))))
    assert (plain.applied, len(plain.state), len(plain.absent)) == ((), 0, 0)


def test_a_thread_may_have_none_of_the_rows(call: Call) -> None:
    call(push(0, 1))
    assert look_up(call, asked=rows(3)).state.tolist() == [1.0]
    assert look_up(call, asked=rows()).state.tolist() == []
    assert look_up(call, asked=rows(6, 3)).state.tolist() == [0.0, 1.0]


def test_a_lost_trainers_pushes_are_forgotten(call: Call, service: ShardService) -> None:
    call(push(0, 1))
    call(push(1, 1), "other/0")
    service.call(lambda: service.lose("other"))
    wait_until(lambda: not service._applied_pushes.of_trainer("other"), "it is forgotten")
    assert look_up(call).applied == (0, 1, 0)


@pytest.mark.parametrize(
    "worker", ["t", "t/", "t/x", "t/-1", "t/1.5", "t/99999999999999999999999", "t/1234567890"]
)
def test_who_is_no_worker_cannot_number_pushes(call: Call, worker: str) -> None:
    """The number of a worker is in answers, which have to be readable."""
    reply = of_type(Failure, call(push(1, 1), worker))
    assert "is no worker of a trainer, so its pushes have no order" in reply.what
    assert isinstance(call(push(2, 0, 0), worker), Pushed)
    assert isinstance(call(Lookup(3, rows(3), with_state=True), worker), Vectors)
    assert look_up(call).state.tolist() == [1.0, 0.0]


def test_numbers_that_cannot_be_are_refused(call: Call) -> None:
    reply = of_type(Failure, call(push(1, 3, 4)))
    assert "push 3 is said to be answered: all are below 4" in reply.what
    assert isinstance(call(push(1, 2**63 - 1, 2**63 - 1)), Pushed)
    assert look_up(call).applied == (0, 2**63 - 1, 0)


def test_gaps_take_no_more_memory_than_an_answer_lists(call: Call) -> None:
    """Also those of pushes that change nothing."""
    refused: list[int] = []
    for number in range(1, MOST_NUMBERS + 1):
        reply = call(push(number % 2, 2 * number), "t/0")
        if isinstance(reply, Failure):
            assert "the pushes of 1 workers have gaps" in reply.what
            refused.append(number)
            break
    assert refused
    assert len(look_up(call).applied) <= MOST_NUMBERS
    # Others work on.
    assert isinstance(call(push(7, 1), "other/0"), Pushed)
    assert look_up(call, "other/0").applied == (0, 1, 0)
