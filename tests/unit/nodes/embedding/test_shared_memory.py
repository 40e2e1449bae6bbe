"""A worker's requests and an embedding node, with memory that both see: the same, for fewer bytes sent."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.embedding.shared_memory import SharedMemoryClient
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient, LookupRefused
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.messages import (
    Attach,
    Attached,
    CodedVectors,
    Failure,
    Lookup,
    Push,
    Pushed,
    Vectors,
)
from shadowsync.pipeline.wire.rpc.retransmission import LOOKUP
from shadowsync.pipeline.wire.schema import Message
from shadowsync.pipeline.wire.segment import HEAD_BYTES, CreatedSegment, running_kernel
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.leaks import memory_descriptors
from shadowsync.tests.support.tables.lookups import in_flight, plan, vectors
from shadowsync.tests.support.tables.service_counts import counts
from shadowsync.tests.support.tables.shard_service import answer, ask, running_shard
from shadowsync.tests.support.tables.tables import make_tables

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has memory without a name")
Context = zmq.Context[zmq.Socket[bytes]]
ROWS, DIM, LR, BLOCKS, BATCH = 400, 8, 0.5, 8, 64
PLAN = TablePlan.make(make_tables([ROWS, ROWS], DIM, lr=LR), 1)
Start = Callable[..., tuple[ShardService, Connection]]
Client = EmbeddingClient[InFlightBatch]


@contextmanager
def sharing(connection: Connection, codecs: LinkCodecs | None = None) -> Iterator[Client]:
    """A client that offers memory to its node."""
    memory = SharedMemoryClient("embedding-0", BLOCKS)
    with closing(memory):
        yield Client([connection], ["embedding-0"], codecs, shared_memory=[memory])


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def start(request: pytest.FixtureRequest, context: Context, failures: list[BaseException]) -> Iterator[Start]:
    """Starts an embedding node, and connects to it; they end with the test."""
    with ExitStack() as stack:

        def one(codecs: LinkCodecs | None = None, *, shares: bool = True) -> tuple[ShardService, Connection]:
            shard = running_shard(
                context, failures.append, PLAN, codecs, threads=request.param, shares=shares
            )
            return stack.enter_context(shard)

        yield one


def take(client: Client) -> None:
    """The next answer, handed to the client."""
    (connection,) = client.connections
    client.receive(0, answer(connection))


def finish(client: Client, one: InFlightBatch) -> None:
    """Has a batch's lookups answered, and pushes ones."""
    while one.pending_lookups:
        take(client)
    client.push(one, [np.ones(one.requests[0].floats, np.float32)], 0.0)
    while one.unpushed:
        take(client)


def train(client: Client, batches: int) -> Float32Array:
    """A few batches, their gradients written where they are sent from; gives the last vectors."""
    router = ShardRouter(PLAN)
    random = np.random.default_rng(3)
    for number in range(batches):
        one = in_flight(number)
        (request,) = router.requests(random.integers(0, ROWS, (2, BATCH), dtype=np.int32))
        client.look_up(one, [request], 0.0)
        while one.pending_lookups:
            take(client)
        joined = router.assemble([request], one.replies)
        lent = client.targets(one)
        joined.gradients_into([None if place is None else torch.from_numpy(place.values) for place in lent])
        torch.cat(joined.embeddings, 1).square().sum().backward()  # type: ignore[no-untyped-call]
        (gradients,) = joined.gradients()
        assert [place is None or place.holds(gradients) for place in lent] == [True]
        last = one.replies[0].copy()
        del lent, joined
        client.push(one, [gradients], 0.0)
        while one.unpushed:
            take(client)
    return last


def test_the_same_bits_for_fewer_bytes_sent(start: Start) -> None:
    batches, figures = 6, []
    values = 2 * BATCH * DIM * 4
    for shares in (True, False):
        service, connection = start(shares=shares)
        with sharing(connection) as client:
            last = train(client, batches)
        figures.append((last, connection.sent_bytes + connection.received_bytes))
        # The first lookup leaves before the node has the memory; no push does.
        through = (2 * batches - 1) * values if shares else 0
        (memory,) = client.shared_memory
        assert (memory.shared_bytes, counts(service)["shared_bytes"]) == (through, through)
        assert (memory.refused, counts(service)["shared_segments"]) == (not shares, int(shares))
    np.testing.assert_array_equal(figures[0][0], figures[1][0])
    # That of the first batch would be another.
    assert (figures[0][0] != train(Client([start()[1]], ["embedding-0"]), 1)).mean() > 0.9
    assert figures[1][1] - figures[0][1] > (2 * batches - 1) * values * 0.99


@pytest.mark.parametrize("way", ["up", "down"])
def test_what_a_codec_makes_smaller_is_not_shared(start: Start, way: str) -> None:
    codecs = LinkCodecs(**{way: make_codec("bfloat16")})
    service, connection = start(codecs)
    with sharing(connection, codecs) as client:
        for number in range(3):
            one = in_flight(number)
            (request,) = ShardRouter(PLAN).requests(np.zeros((2, BATCH), np.int32))
            client.look_up(one, [request], 0.0)
            finish(client, one)
    # The first is always over the socket, and all that is coded.
    assert counts(service)["shared_bytes"] == 2 * request.floats * 4
    assert client.shared_memory[0].shared_bytes == 2 * request.floats * 4


class Offered:
    """Memory that the test offers to a node by itself."""

    def __init__(self, connection: Connection) -> None:
        self.own = CreatedSegment(HEAD_BYTES + 4096)
        self._connection = connection
        self.values = self.own.floats(HEAD_BYTES, 1024)
        boot = running_kernel()
        self.offer = Attach(1, os.getpid(), self.own.descriptor, self.own.size_bytes, boot, self.own.token)

    def call(self, message: Message) -> Message:
        """Sends a message and gives its answer."""
        return ask(self._connection, message)

    def looked_up(self, lookup: Lookup) -> bool:
        """Whether its answer says that the vectors are in the memory."""
        reply = of_type(Vectors, self.call(lookup))
        assert reply.request == lookup.request
        return reply.shared and not reply.values.size


@pytest.fixture
def offered(start: Start) -> Iterator[tuple[ShardService, Offered]]:
    service, connection = start()
    made = Offered(connection)
    yield service, made
    made.own.close()


NUMBERS = np.array([3, 5], np.int32)
FLOATS = 2 * DIM


def test_a_place_that_is_none_is_refused_and_nothing_changes(offered: tuple[ShardService, Offered]) -> None:
    service, memory = offered
    none = np.zeros(0, np.float32)
    lookup = Lookup(1, NUMBERS, segment=1, offset=HEAD_BYTES, floats=FLOATS)
    push = Push(2, batch_id(1), 0, NUMBERS, none, segment=1, offset=HEAD_BYTES, floats=FLOATS)
    for message in (lookup, push):
        reply = of_type(Failure, memory.call(message))
        assert reply.what == "segment 1 of shared memory is not attached"
    assert memory.call(memory.offer) == Attached(1, shared=True, why="")
    assert memory.call(memory.offer) == Attached(1, shared=True, why="")
    for offset in (0, HEAD_BYTES - 4, HEAD_BYTES + 4096 - 4, HEAD_BYTES + 1, -8, 2**60):
        for message in (lookup, push):
            reply = of_type(Failure, memory.call(replace(message, offset=offset)))
            assert "are not within" in reply.what
    reply = of_type(Failure, memory.call(replace(push, segment=2)))
    for message in (lookup, push):
        reply = of_type(Failure, memory.call(replace(message, floats=FLOATS - 1)))
        assert reply.what == f"a {message.KIND} of {FLOATS} floats names {FLOATS - 1} floats of shared memory"
    memory.values[4] = np.nan
    reply = of_type(Failure, memory.call(push))
    assert "must be finite" in reply.what
    assert counts(service)["applied_batches"] == 0
    assert not np.nan_to_num(memory.values).any()
    # The control: what is right is done.
    memory.values[:] = 1.0
    assert memory.call(push) == Pushed(2, repeated=False)
    assert memory.looked_up(lookup)
    assert (memory.values[: 2 * DIM] != 1.0).all()
    assert (memory.values[2 * DIM :] == 1.0).all()


def test_what_comes_twice_touches_no_memory(offered: tuple[ShardService, Offered]) -> None:
    _, memory = offered
    memory.call(memory.offer)
    lookup = Lookup(7, NUMBERS, segment=1, offset=HEAD_BYTES, floats=FLOATS)
    assert memory.looked_up(lookup)
    first = memory.values[: 2 * DIM].copy()
    memory.values[:] = 2.0
    again = of_type(Vectors, memory.call(lookup))
    assert not again.shared
    np.testing.assert_array_equal(again.values, first)
    assert (memory.values == 2.0).all()
    push = Push(
        8, batch_id(1), 0, NUMBERS, np.zeros(0, np.float32), segment=1, offset=HEAD_BYTES, floats=FLOATS
    )
    assert memory.call(push) == Pushed(8, repeated=False)
    # It is known by its batch before anything of it is read.
    assert memory.call(replace(push, offset=2**60)) == Pushed(8, repeated=True)


def test_vectors_by_a_codec_are_never_written_there(start: Start) -> None:
    memory = Offered(start(LinkCodecs(down=make_codec("bfloat16")))[1])
    memory.call(memory.offer)
    assert isinstance(
        memory.call(Lookup(7, NUMBERS, segment=1, offset=HEAD_BYTES, floats=FLOATS)), CodedVectors
    )
    assert not memory.values.any()
    memory.own.close()


def test_what_was_offered_by_a_dead_process_is_let_go_of(offered: tuple[ShardService, Offered]) -> None:
    service, memory = offered
    before = memory_descriptors()
    for number in range(1, 6):
        other = CreatedSegment(HEAD_BYTES + 4096)
        offer = replace(memory.offer, segment=number, descriptor=other.descriptor, token=other.token)
        assert memory.call(offer) == Attached(number, shared=True, why="")
        other.close()
        del other
    assert counts(service)["shared_segments"] == 1
    assert memory_descriptors() == before + 1
    service.call(lambda: service.lose("someone"))
    assert counts(service)["shared_segments"] == 1
    service.call(lambda: service.lose("t"))
    assert counts(service)["shared_segments"] == 0
    assert memory_descriptors() == before


def test_a_process_that_was_declared_dead_and_lives_is_not_refused(
    offered: tuple[ShardService, Offered],
) -> None:
    """A refusal would end it before it hears of its death, and it could not come back."""
    service, memory = offered
    lookup = Lookup(1, NUMBERS, segment=1, offset=HEAD_BYTES, floats=FLOATS)
    assert memory.call(memory.offer) == Attached(1, shared=True, why="")
    assert memory.looked_up(lookup)
    service.call(lambda: service.lose("t"))
    asyncio.run(service.run(lambda: service.handle(b"t/0", replace(lookup, request=2))))
    asyncio.run(service.run(lambda: service.handle(b"t/0", replace(lookup, request=3, segment=0, floats=0))))
    assert counts(service)["lookups"] == 1


def test_memory_of_another_process_is_not_taken(offered: tuple[ShardService, Offered]) -> None:
    reply = of_type(Attached, offered[1].call(replace(offered[1].offer, token="00" * 16)))
    assert (reply.shared, "another process" in reply.why) == (False, True)


@pytest.fixture
def box() -> RecordedConnection:
    return RecordedConnection()


@pytest.fixture
def client(box: RecordedConnection) -> Iterator[Client]:
    """With memory that the node has."""
    with sharing(box.connection) as made:
        made.look_up(in_flight(99), [plan(0, 1, 2)], 0.0)
        made.receive(0, Attached(1, shared=True, why=""))
        made.receive(0, vectors(1, 1.0, 2.0))
        assert [type(message) for message in box.take()] == [Attach, Lookup]
        yield made


def segments(box: RecordedConnection) -> list[int]:
    """Of an offer and of the lookup after it."""
    offer, lookup = box.take()
    return [of_type(Attach, offer).segment, of_type(Lookup, lookup).segment]


def requested(box: RecordedConnection) -> Lookup | Push:
    (message,) = box.take()
    assert isinstance(message, Lookup | Push)
    return message


def replied(client: Client, box: RecordedConnection, one: InFlightBatch) -> int:
    """Looks a batch up, in shared memory; gives the place."""
    client.look_up(one, [plan(0, 4, 5)], 0.0)
    lookup = requested(box)
    assert lookup.segment == 1
    client.receive(0, Vectors(lookup.request, 3, shared=True))
    assert one.pending_lookups == 0
    return lookup.offset


def test_a_place_is_not_free_while_a_step_computes_with_it(client: Client, box: RecordedConnection) -> None:
    one = in_flight(0)
    place = replied(client, box, one)
    tensor = torch.from_numpy(one.replies[0]).view(-1, 2).detach()
    one.replies = []
    assert replied(client, box, in_flight(1)) != place
    # The control: it was the tensor alone.
    del tensor
    assert replied(client, box, in_flight(2)) == place


def test_a_push_keeps_its_place_until_it_is_answered(client: Client, box: RecordedConnection) -> None:
    one = in_flight(0)
    replied(client, box, one)
    one.replies = []
    client.push(one, [np.array([1, 2, 3, 4], np.float32)], 0.0)
    push = box.only(Push)
    assert (push.segment, push.gradients.size) == (1, 0)
    place = replied(client, box, in_flight(1))
    assert place != push.offset
    assert client.receive(0, Pushed(push.request, repeated=False)) is one
    free = in_flight(2)
    assert replied(client, box, free) == push.offset


def test_what_is_sent_again_is_whole_and_its_place_is_never_used_again(
    client: Client, box: RecordedConnection
) -> None:
    one, two = in_flight(0), in_flight(1)
    replied(client, box, one)
    one.replies = []
    client.push(one, [np.array([1, 2, 3, 4], np.float32)], 0.0)
    push = requested(box)
    client.look_up(two, [plan(0, 6, 7)], 0.0)
    lookup = requested(box)
    assert len({push.offset, lookup.offset, 0}) == 3
    client.resend_overdue(LOOKUP.interval_seconds + 1)
    pushed_again, requested_again = box.take()
    assert isinstance(pushed_again, Push)
    assert isinstance(requested_again, Lookup)
    assert (pushed_again.segment, requested_again.segment) == (0, 0)
    assert pushed_again.gradients.tolist() == [1, 2, 3, 4]
    client.receive(0, Pushed(push.request, repeated=True))
    # The first answer may come late all the same: what it says is there.
    client.receive(0, Vectors(lookup.request, 3, shared=True))
    assert (two.pending_lookups, two.replies[0].size) == (0, 4)
    two.replies = []
    kept = [in_flight(number) for number in range(10, 12)]
    places = {replied(client, box, each) for each in kept}
    assert not places & {push.offset, lookup.offset}


MANY = plan(0, *range(2000))


def test_what_is_lent_when_another_segment_is_offered_is_sent_whole(
    client: Client, box: RecordedConnection
) -> None:
    one = in_flight(0)
    replied(client, box, one)
    (target,) = client.targets(one)
    assert target is not None
    client.look_up(in_flight(1), [MANY], 0.0)
    assert segments(box) == [2, 0]
    target.values[:] = [1, 2, 3, 4]
    client.push(one, [target.values], 0.0)
    push = box.only(Push)
    assert (push.segment, push.gradients.tolist()) == (0, [1, 2, 3, 4])
    # The control: once the node has the new one, it is used.
    client.receive(0, Attached(2, shared=True, why=""))
    client.look_up(in_flight(2), [MANY], 0.0)
    assert requested(box).segment == 2


def test_a_batch_after_a_larger_one_is_lent_nothing_of_the_segment_that_is_replaced(
    box: RecordedConnection,
) -> None:
    with sharing(box.connection) as client:
        client.look_up(in_flight(0), [plan(0, 1, 2)], 0.0)
        client.look_up(in_flight(1), [MANY], 0.0)
        assert [type(message) for message in box.take()] == [Attach, Lookup, Lookup]
        client.receive(0, Attached(1, shared=True, why=""))
        client.look_up(in_flight(2), [plan(0, 1, 2)], 0.0)
        assert segments(box) == [2, 0]


def test_a_node_takes_what_a_worker_sends_while_its_segments_grow(start: Start) -> None:
    service, connection = start()
    router = ShardRouter(PLAN)
    with sharing(connection) as client:
        for number, batch in enumerate((3, 400, 3, 1200, 5, 1300, 2500, 7)):
            one, other = in_flight(number), in_flight(100 + number)
            client.look_up(one, router.requests(np.zeros((2, batch), np.int32)), 0.0)
            client.targets(one)
            # Another is asked for between the step and its push, as workers do that launch ahead.
            client.look_up(other, router.requests(np.zeros((2, 2 * batch), np.int32)), 0.0)
            while other.pending_lookups:
                take(client)
            finish(client, one)
    assert counts(service)["applied_batches"] == 8
    assert client.shared_memory[0].shared_bytes > 0


@pytest.mark.parametrize(("module", "name"), [("os", "memfd_create"), ("fcntl", "F_ADD_SEALS")])
def test_a_python_without_such_memory_sends_all_over_the_socket(
    box: RecordedConnection, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.delattr(f"{module}.{name}")
    with sharing(box.connection) as client:
        for number in range(3):
            client.look_up(in_flight(number), [plan(0, 1, 2)], 0.0)
    assert {(type(message), getattr(message, "segment", 1)) for message in box.take()} == {(Lookup, 0)}
    assert client.shared_memory[0].refused


def test_a_forgotten_lookup_keeps_its_place(client: Client, box: RecordedConnection) -> None:
    client.look_up(in_flight(0), [plan(0, 4, 5)], 0.0)
    lookup = requested(box)
    client.forget_lookups()
    gc.collect()
    assert replied(client, box, in_flight(1)) != lookup.offset


def test_the_node_in_a_dead_ones_place_has_memory_of_its_own(client: Client, box: RecordedConnection) -> None:
    one = in_flight(0)
    client.look_up(one, [plan(0, 4, 5)], 0.0)
    client.receive(0, Vectors(requested(box).request, 0, np.ones(4, np.float32)))
    (lease,) = client.targets(one)
    assert lease is not None
    client.lose("embedding-0")
    client.look_up(in_flight(1), [plan(0, 4, 5)], 0.0)
    client.resend_overdue(100.0)
    assert box.take() == [], "a dead node is offered nothing"
    other = RecordedConnection()
    client.replace(0, "embedding-1", other.connection, 0.0)
    assert requested(other).segment == 0
    # Its gradients are in the memory that the dead one had.
    lease.values[:] = 3.0
    client.push(one, [lease.values], 0.0)
    push = other.only(Push)
    assert (push.segment, push.gradients.tolist()) == (0, [3.0] * 4)
    client.look_up(in_flight(2), [plan(0, 4, 5)], 0.0)
    assert segments(other) == [3, 0]
    client.receive(0, Attached(3, shared=True, why=""))
    client.look_up(in_flight(3), [plan(0, 4, 5)], 0.0)
    assert requested(other).segment == 3


def test_a_node_that_comes_back_may_have_answered_before(client: Client, box: RecordedConnection) -> None:
    """It was declared dead and lives: its answer into the memory that it had says nothing."""
    one = in_flight(0)
    client.look_up(one, [plan(0, 4, 5)], 0.0)
    lookup = requested(box)
    assert lookup.segment > 0
    client.lose("embedding-0")
    same = RecordedConnection()
    client.replace(0, "embedding-2", same.connection, 0.0)
    assert requested(same).segment == 0
    assert client.receive(0, Vectors(lookup.request, 0, shared=True)) is None
    assert (one.pending_lookups, client.outstanding) == (1, 1)
    client.receive(0, Vectors(lookup.request, 0, np.ones(4, np.float32)))
    assert (one.pending_lookups, client.outstanding) == (0, 0)
    assert one.replies[0].tolist() == [1.0] * 4


def test_an_answer_into_memory_that_was_not_given_is_an_error(
    client: Client, box: RecordedConnection
) -> None:
    client.look_up(in_flight(0), [plan(0, *range(9000))], 0.0)
    lookup = of_type(Lookup, box.take()[-1])
    assert lookup.segment == 0
    with pytest.raises(
        LookupRefused, match="embedding-0: it answered into shared memory that was not lent to it"
    ):
        client.receive(0, Vectors(lookup.request, 0, shared=True))
