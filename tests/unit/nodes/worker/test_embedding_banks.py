"""A shard with several banks, between a worker's client and the service: one message each way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import zmq
from shadowsync.nodes.embedding.server import ShardService
from shadowsync.nodes.worker.batches import InFlightBatch
from shadowsync.nodes.worker.embedding_client import EmbeddingClient
from shadowsync.nodes.worker.reader_client import ReaderClient
from shadowsync.pipeline.codecs.formats import LinkCodecs, make_codec
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.wire.messages import Delivery, Failure, Push
from shadowsync.pipeline.wire.row_codec import RowCodec
from shadowsync.pipeline.wire.sockets import Connection
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.expected import of_type
from shadowsync.tests.support.tables.embedding_cluster import draw_rows
from shadowsync.tests.support.tables.shard_service import answer, ask, running_shard
from shadowsync.tests.support.tables.tables import make_table

Context = zmq.Context[zmq.Socket[bytes]]
TABLES = (
    make_table("one", 20, 4, lr=0.5),
    make_table("bags", 30, 6, pooling="mean", lr=0.5),
    make_table("fast", 10, 4, lr=2.0),
)
PLAN = TablePlan.make(TABLES, 1)


@pytest.fixture(params=["float32", "bfloat16"])
def shard(
    request: pytest.FixtureRequest, context: Context, failures: list[BaseException]
) -> Iterator[tuple[ShardService, Connection, LinkCodecs]]:
    """A service with three banks, a worker's connection to it, and the codecs of both."""
    codec = str(request.param)
    codecs = LinkCodecs(make_codec(codec), make_codec(codec))
    with running_shard(context, failures.append, PLAN, codecs) as (service, connection):
        yield service, connection, codecs


def replied(client: EmbeddingClient[InFlightBatch]) -> InFlightBatch | None:
    return client.receive(0, answer(client.connections[0]))


@pytest.mark.parametrize("lr_scale", [1.0, 0.25])
def test_a_batch_is_looked_up_and_pushed_whole(
    shard: tuple[ShardService, Connection, LinkCodecs], lr_scale: float
) -> None:
    service, connection, codecs = shard
    client, router = EmbeddingClient[InFlightBatch]([connection], ["embedding-0"], codecs), ShardRouter(PLAN)
    drawn = draw_rows(TABLES, 15, 1)
    batch = InFlightBatch(
        ReaderClient("reader-0", connection, 4),
        Delivery(1, 0, batch_id(0), np.zeros(15, np.float32), np.zeros((15, 1), np.float32), drawn.rows),
    )
    client.look_up(batch, router.requests(drawn.rows, drawn.bag_rows, drawn.bag_lengths), 0.0)
    assert replied(client) is None
    before = {piece.table: arrays["weights"].copy() for piece, arrays in service.store.pieces()}
    vectors = router.assemble(batch.requests, batch.replies)
    embeddings = vectors.embeddings
    assert [tuple(embedding.shape) for embedding in embeddings] == [(15, 4), (15, 6), (15, 4)]
    np.testing.assert_allclose(embeddings[2].detach(), before[2][drawn.rows[1]], rtol=1 / 256)
    batch.lr_scale = lr_scale
    # Gradients of 1 for each row of the batch, so those of the means' vectors are the lengths of the bags.
    lengths = torch.from_numpy(drawn.bag_lengths[0])[:, None]
    total = embeddings[0].sum() + (embeddings[1] * lengths).sum() + embeddings[2].sum()
    total.backward()  # type: ignore[no-untyped-call]
    client.push(batch, vectors.gradients(), 0.0)
    assert replied(client) is batch
    rows = {0: drawn.rows[0], 1: drawn.bag_rows, 2: drawn.rows[1]}
    for piece, arrays in service.store.pieces():
        table = TABLES[piece.table]
        counts = np.bincount(rows[piece.table], minlength=table.rows)[:, None]
        wanted = before[piece.table] - table.lr * lr_scale * counts
        np.testing.assert_allclose(arrays["weights"], wanted, rtol=0, atol=1e-5)


def test_a_push_whose_counts_do_not_fit_is_refused(
    shard: tuple[ShardService, Connection, LinkCodecs],
) -> None:
    service, connection, codecs = shard
    rows = np.zeros(3, np.int32)
    floats = np.ones(4 + 6 + 4, np.float32)
    for counts in ((), (1, 1), (1, 1, 2), (2, 2, -1)):
        push = RowCodec(codecs).outgoing(Push(7, batch_id(0), 0, rows, floats, 1.0, counts))
        assert "do not fit 3 rows in 3 banks" in of_type(Failure, ask(connection, push)).what
    assert len(service.applied) == 0
