"""A trainer's requests and gradients over several nodes, against plain torch embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from shadowsync.pipeline.data.batch import Float32Array, Int32Array
from shadowsync.pipeline.embedding.floats import Floats
from shadowsync.pipeline.embedding.lookup import LookupPlan
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.routing import ShardRouter
from shadowsync.pipeline.embedding.rows import default_scale, row_values
from shadowsync.pipeline.embedding.store import ShardStore
from shadowsync.pipeline.embedding.vectors import Vectors

DIM, BATCH, LR, SEED = 4, 23, 0.1, 5
SHAPES = [
    pytest.param([60, 50, 40, 30, 7], 1, id="one node"),
    pytest.param([60, 50, 40, 30, 60], 2, id="whole tables on two nodes"),
    pytest.param([5, 700, 40, 30, 7], 3, id="one table split over three nodes"),
    pytest.param([90, 80, 3, 70], 4, id="several split tables"),
    pytest.param([11], 3, id="nothing but a split table"),
]


class Cluster:
    """Stores of all nodes without the wire between."""

    def __init__(self, table_rows: list[int], nodes: int) -> None:
        self.plan = TablePlan.make(table_rows, DIM, nodes)
        self.router = ShardRouter(self.plan)
        self.stores = [
            ShardStore(self.plan, node, seed=SEED, optimizer="sgd", lr=LR, memory_fraction=0.8)
            for node in range(nodes)
        ]

    def ask(self, rows: Int32Array) -> tuple[list[LookupPlan], list[Float32Array]]:
        requests = self.router.requests(rows)
        answers = [np.empty((len(request.rows), DIM), np.float32) for request in requests]
        for request, answer in zip(requests, answers, strict=True):
            self.stores[request.node].lookup(request.rows, answer)
        return requests, answers

    def forward(self, rows: Int32Array) -> tuple[list[LookupPlan], Vectors]:
        requests, answers = self.ask(rows)
        return requests, self.router.assemble(requests, answers)

    def push(self, requests: list[LookupPlan], vectors: Vectors) -> None:
        for request, gradient in zip(requests, vectors.gradients(), strict=True):
            assert gradient.flags.c_contiguous
            self.stores[request.node].apply(request.rows, gradient)

    def table(self, number: int) -> Float32Array:
        """All rows of a table, gathered by the plan."""
        result = np.full((self.plan.table_rows[number], DIM), np.nan, np.float32)
        for piece in self.plan.pieces:
            if piece.table == number:
                weights = self.stores[piece.node].tensors()["weights"]
                result[piece.start : piece.stop] = weights[piece.offset : piece.offset + len(piece)]
        return result


def drawn(plan: TablePlan, seed: int, batch: int = BATCH) -> Int32Array:
    draw = np.random.default_rng(seed)
    # Half of each table at most, so that rows repeat within a batch.
    return np.stack(
        [draw.integers(0, max(1, rows // 2), batch) * 2 % rows for rows in plan.table_rows]
    ).astype(np.int32)


def loss_of(embeddings: list[torch.Tensor], step: int) -> torch.Tensor:
    """A loss whose gradient differs from table to table, example to example and float to float."""
    weights = torch.from_numpy(
        np.random.default_rng(100 + step).standard_normal((BATCH, len(embeddings) * DIM))
    )
    return (torch.cat(embeddings, 1).tanh() * weights.float()).sum(1).square().mean()


@pytest.mark.parametrize(("table_rows", "nodes"), SHAPES)
def test_training_over_nodes_equals_plain_embeddings(table_rows: list[int], nodes: int) -> None:
    cluster = Cluster(table_rows, nodes)
    plain = [torch.nn.Embedding(rows, DIM) for rows in table_rows]
    with torch.no_grad():
        for table, rows in enumerate(table_rows):
            values = row_values(SEED, table, np.arange(rows), DIM, default_scale(rows))
            plain[table].weight.copy_(torch.from_numpy(values))
    optimizer = torch.optim.SGD([table.weight for table in plain], lr=LR)
    firsts = [table.weight.detach().clone() for table in plain]
    for step in range(4):
        batch = drawn(cluster.plan, step)
        wanted = [table(torch.from_numpy(row)) for table, row in zip(plain, batch, strict=True)]
        requests, vectors = cluster.forward(batch)
        for got, value in zip(vectors.embeddings, wanted, strict=True):
            torch.testing.assert_close(got, value, rtol=1e-5, atol=1e-6)
        optimizer.zero_grad()
        loss_of(wanted, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        loss_of(vectors.embeddings, step).backward()  # type: ignore[no-untyped-call]
        cluster.push(requests, vectors)
    for number, module in enumerate(plain):
        np.testing.assert_allclose(
            cluster.table(number), module.weight.detach().numpy(), rtol=1e-5, atol=1e-6
        )
        # The control: the steps are larger than the tolerance by far, in every table.
        assert (module.weight - firsts[number]).abs().max() > 1e-3


def test_gradients_sent_to_the_wrong_rows_would_be_seen() -> None:
    cluster, control = Cluster([5, 700, 40, 30, 7], 3), Cluster([5, 700, 40, 30, 7], 3)
    rows = drawn(cluster.plan, 0)
    for one, order in ((cluster, slice(None)), (control, slice(None, None, -1))):
        requests, vectors = one.forward(rows)
        loss_of(vectors.embeddings, 0).backward()  # type: ignore[no-untyped-call]
        for request, gradient in zip(requests, vectors.gradients(), strict=True):
            one.stores[request.node].apply(request.rows, np.ascontiguousarray(gradient[order]))
    differences = [np.abs(cluster.table(number) - control.table(number)).max() for number in range(5)]
    assert min(differences) > 1e-4


def test_the_order_of_a_request_is_whole_tables_then_pieces() -> None:
    cluster = Cluster([5, 700, 40, 30, 7], 3)
    rows = drawn(cluster.plan, 1)
    for request in cluster.router.requests(rows):
        wanted: list[int] = []
        for piece in cluster.plan.pieces_of(request.node):
            inside = [int(row) for row in rows[piece.table] if piece.start <= row < piece.stop]
            wanted += [row - piece.start + piece.offset for row in inside]
        assert request.rows.tolist() == wanted
        assert request.rows.dtype == np.int32
        assert request.batch == BATCH
    assert sum(len(request.rows) for request in cluster.router.requests(rows)) == rows.size


def test_leaves_are_on_the_memory_of_the_answers() -> None:
    cluster = Cluster([60, 50, 40], 1)
    requests, answers = cluster.ask(drawn(cluster.plan, 2))
    received = [memoryview(bytearray(answer.tobytes())) for answer in answers]
    vectors = cluster.router.assemble(requests, received)
    received[0][:] = bytes(received[0].nbytes)
    assert not vectors.leaves[0].any()
    assert not any(embedding.any() for embedding in vectors.embeddings)
    assert vectors.leaves[0].is_leaf
    assert vectors.leaves[0].requires_grad


def test_answers_of_every_kind_give_the_same() -> None:
    cluster = Cluster([5, 700, 40], 2)
    requests, answers = cluster.ask(drawn(cluster.plan, 2))
    wanted = cluster.router.assemble(requests, answers).embeddings
    kinds: list[Sequence[Floats]] = [
        [torch.from_numpy(answer) for answer in answers],
        [memoryview(bytearray(answer.tobytes())) for answer in answers],
        [answer.tobytes() for answer in answers],
    ]
    for kind in kinds:
        for got, value in zip(cluster.router.assemble(requests, kind).embeddings, wanted, strict=True):
            assert torch.equal(got, value)


@pytest.mark.parametrize(("table_rows", "nodes"), SHAPES)
def test_tables_that_the_loss_does_not_use_have_zero_gradients(table_rows: list[int], nodes: int) -> None:
    cluster = Cluster(table_rows, nodes)
    rows = drawn(cluster.plan, 3)
    requests, vectors = cluster.forward(rows)
    for gradient in vectors.gradients():
        assert not gradient.any()
    vectors.embeddings[0].sum().backward()  # type: ignore[no-untyped-call]
    before = [cluster.table(number) for number in range(len(table_rows))]
    cluster.push(requests, vectors)
    counts = np.bincount(rows[0], minlength=table_rows[0]).astype(np.float32)
    np.testing.assert_allclose(cluster.table(0), before[0] - LR * counts[:, None], rtol=1e-5)
    for number in range(1, len(table_rows)):
        np.testing.assert_array_equal(cluster.table(number), before[number])


def test_batches_may_be_under_way_together_and_be_empty() -> None:
    cluster = Cluster([5, 700, 40], 2)
    first, second = (cluster.router.requests(drawn(cluster.plan, seed)) for seed in (0, 1))
    for requests, seed in ((first, 0), (second, 1)):
        _, alone = cluster.forward(drawn(cluster.plan, seed))
        answers = [np.empty((len(request.rows), DIM), np.float32) for request in requests]
        for request, answer in zip(requests, answers, strict=True):
            cluster.stores[request.node].lookup(request.rows, answer)
        for got, wanted in zip(
            cluster.router.assemble(requests, answers).embeddings, alone.embeddings, strict=True
        ):
            assert torch.equal(got, wanted)
    _, empty = cluster.forward(drawn(cluster.plan, 0, batch=0))
    assert [tuple(embedding.shape) for embedding in empty.embeddings] == [(0, DIM)] * 3


@pytest.mark.parametrize(("table", "row"), [(0, 5), (0, -1), (2, 40), (1, -(2**31))])
def test_a_row_that_its_table_does_not_have_is_refused(table: int, row: int) -> None:
    router = ShardRouter(TablePlan.make([5, 700, 40], DIM, 2))
    rows = np.zeros((3, BATCH), np.int32)
    rows[table, 3] = row
    with pytest.raises(ValueError, match=f"a row of table {table} is not one of its"):
        router.requests(rows)


def test_another_shape_or_type_is_refused() -> None:
    cluster = Cluster([5, 700, 40], 2)
    for rows in (np.zeros((2, 4), np.int32), np.zeros((3, 4), np.int64), np.zeros((4, 3), np.int32).T):
        with pytest.raises(ValueError, match=r"rows must be C-contiguous int32 \[3, B\]"):
            cluster.router.requests(rows)  # type: ignore[arg-type]
    requests, answers = cluster.ask(drawn(cluster.plan, 0))
    with pytest.raises(ValueError, match="1 answers to 2 requests"):
        cluster.router.assemble(requests, answers[:1])
    for wrong in (
        answers[1][1:],
        answers[1].astype(np.float64),
        answers[1].tobytes()[4:],
        torch.ones(1, DIM),
    ):
        with pytest.raises(ValueError, match="the answer of embedding node 1: "):
            cluster.router.assemble(requests, [answers[0], wrong])  # type: ignore[list-item]
