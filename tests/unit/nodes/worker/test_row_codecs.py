"""Vectors and gradients by a codec, between a worker's client and a shard's service."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient, LookupRefused
from shadowsync.pipeline.codecs.formats import STATELESS, CodecError, LinkCodecs, make_codec
from shadowsync.pipeline.embedding.lookup.request import count_floats
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import BatchId, Float32Array
from shadowsync.pipeline.wire.messages import CodedPush, CodedVectors, Failure, Lookup, Push, Pushed, Vectors
from shadowsync.pipeline.wire.row_codec import RowCodec
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.coordinator.recording_connection import RecordedConnection
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.tables.lookups import in_flight, plan
from shadowsync.tests.support.tables.shard_service import ask, running_shard
from shadowsync.tests.support.tables.tables import make_tables

Context = zmq.Context[zmq.Socket[bytes]]
ROWS, DIM, LR = 40, 4, 0.5
BATCH = BatchId(0, 0, 1, 1)


def coding(up: str, down: str, dim: int = DIM) -> RowCodec:
    codecs = LinkCodecs(make_codec(up), make_codec(down))
    return RowCodec(codecs, lambda rows, counts, _: count_floats((dim,), rows, counts))


def floats(rows: int) -> Float32Array:
    return np.random.default_rng(rows).normal(size=rows * DIM).astype(np.float32)


def push(rows: int, gradients: Float32Array) -> Push:
    return Push(7, BATCH, 3, np.arange(rows, dtype=np.int32), gradients, 0.5)


@pytest.mark.parametrize("name", STATELESS)
@pytest.mark.parametrize("rows", [0, 1, 17])
def test_both_ways_are_as_near_as_the_codec_is(name: str, rows: int) -> None:
    both, values = coding(name, name), floats(rows)
    sent = both.outgoing(push(rows, values))
    assert isinstance(sent, Push if name == "float32" else CodedPush)
    got = of_type(Push, both.incoming(sent))
    assert (got.request, got.id, got.version, got.rows.tolist()) == (7, BATCH, 3, list(range(rows)))
    assert (got.lr_scale, got.counts) == (0.5, ())
    np.testing.assert_allclose(got.gradients, values, rtol=1 / 256)
    replied = both.outgoing(Vectors(8, 5, values))
    assert isinstance(replied, Vectors if name == "float32" else CodedVectors)
    back = of_type(Vectors, both.incoming(replied))
    assert (back.request, back.version, back.values.shape) == (8, 5, (rows * DIM,))
    assert back.values.tobytes() == got.gradients.tobytes()
    assert (back.values.tobytes() == values.tobytes()) == (name == "float32" or rows == 0)


def test_each_way_has_its_own_codec_and_other_messages_pass() -> None:
    only_up = coding("bfloat16", "float32")
    assert isinstance(only_up.outgoing(push(2, floats(2))), CodedPush)
    for message in (Vectors(1, 0, floats(2)), Lookup(1, np.zeros(2, np.int32)), Pushed(1, repeated=False)):
        assert only_up.outgoing(message) is message
        assert only_up.incoming(message) is message


@pytest.mark.parametrize("elements", [-1, 1, 9, 2**40])
def test_a_payload_of_other_elements_is_refused(elements: int) -> None:
    good = of_type(CodedVectors, coding("float32", "bfloat16").outgoing(Vectors(1, 0, floats(2))))
    bad = CodedVectors(1, 0, elements, good.payload)
    with pytest.raises(CodecError):
        coding("float32", "bfloat16").incoming(bad)


def rows_of(store: ShardStore) -> Float32Array:
    """The store's own memory of the rows of its only table."""
    ((_, arrays),) = store.pieces()
    weights: Float32Array = arrays["weights"]
    return weights


@pytest.fixture
def shard(context: Context, failures: list[BaseException]) -> Iterator[tuple[ShardService, Connection]]:
    """A running service with plain SGD that speaks bfloat16 both ways, and a connection to it."""
    plan = TablePlan.make(make_tables([ROWS], DIM, lr=LR), 1)
    codecs = LinkCodecs(make_codec("bfloat16"), make_codec("bfloat16"))
    with running_shard(context, failures.append, plan, codecs) as made:
        yield made


@pytest.fixture
def worker(shard: tuple[ShardService, Connection]) -> Connection:
    return shard[1]


def test_a_shard_answers_and_applies_by_codec(
    shard: tuple[ShardService, Connection], worker: Connection
) -> None:
    both = coding("bfloat16", "bfloat16")
    rows = np.array([3, 9], np.int32)
    weights = rows_of(shard[0].store)
    before = np.array(weights[rows], np.float32)
    reply = of_type(CodedVectors, ask(worker, Lookup(1, rows)))
    assert reply.payload.nbytes == 2 * 2 * DIM
    read = of_type(Vectors, both.incoming(reply))
    np.testing.assert_allclose(read.values, before.reshape(-1), rtol=1 / 256)
    assert not np.array_equal(read.values, before.reshape(-1))
    gradients = np.full(2 * DIM, 1.001, np.float32)
    pushed = ask(worker, both.outgoing(Push(2, BATCH, 0, rows, gradients)))
    assert pushed == Pushed(2, repeated=False)
    # 1.001 is 1 in bfloat16; the rows themselves stay float32.
    np.testing.assert_allclose(weights[rows], before - LR, rtol=0, atol=1e-7)
    again = ask(worker, both.outgoing(Push(3, BATCH, 0, rows, gradients)))
    assert again == Pushed(3, repeated=True)


def test_a_push_that_cannot_be_read_is_refused(
    shard: tuple[ShardService, Connection], worker: Connection
) -> None:
    before = np.array(rows_of(shard[0].store), np.float32)
    rows = np.array([3, 9], np.int32)
    reply = of_type(Failure, ask(worker, CodedPush(2, BATCH, 0, rows, np.zeros(15, np.uint8))))
    assert reply.request == 2
    assert "the payload for 8 elements has 15 bytes" in reply.what
    np.testing.assert_array_equal(rows_of(shard[0].store), before)


def test_lines_refuse_vectors_that_cannot_be_read() -> None:
    codecs, box = LinkCodecs(down=make_codec("bfloat16")), RecordedConnection()
    client = EmbeddingClient[InFlightBatch]([box.connection], ["embedding-0"], codecs)
    batch = in_flight()
    client.look_up(batch, [plan(0, 4, 5)], 0.0)
    said = "embedding-0: its answer cannot be decoded: bfloat16: the payload for 4 elements has 3 bytes"
    with pytest.raises(LookupRefused, match=said):
        client.receive(0, CodedVectors(1, 0, 4, np.zeros(3, np.uint8)))
    good = coding("float32", "bfloat16").outgoing(Vectors(1, 6, np.full(4, 0.5, np.float32)))
    assert client.receive(0, good) is None
    assert batch.replies[0].tolist() == [0.5] * 4
    assert batch.versions == [6]
