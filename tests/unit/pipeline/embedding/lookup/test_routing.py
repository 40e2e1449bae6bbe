"""A trainer's requests and gradients over several nodes, against plain torch embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.config.tables import TableColumn, TableSettings
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.lookup.vectors import FloatBuffer
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.tests.support.tables.embedding_cluster import (
    DrawnRows,
    EmbeddingCluster,
    PlainTables,
    draw_rows,
)
from shadowsync.tests.support.tables.tables import make_table, make_tables

DIM, BATCH, LR = 4, 23, 0.1
SHAPES = [
    pytest.param(make_tables([60, 50, 40, 30, 7], DIM, lr=LR), 1, id="one node"),
    pytest.param(make_tables([60, 50, 40, 30, 60], DIM, lr=LR), 2, id="whole tables on two nodes"),
    pytest.param(make_tables([5, 700, 40, 30, 7], DIM, lr=LR), 3, id="one table split over three nodes"),
    pytest.param(make_tables([90, 80, 3, 70], DIM, lr=LR), 4, id="several split tables"),
    pytest.param(make_tables([11], DIM, lr=LR), 3, id="nothing but a split table"),
    pytest.param(
        (
            make_table("one", 40, 4, lr=LR),
            make_table("wide", 30, 9, lr=LR),
            make_table("slow", 20, 4, lr=0.02),
            make_table("split", 300, 2, lr=LR),
        ),
        3,
        id="four banks",
    ),
    pytest.param(
        (
            make_table("sums", 50, 4, pooling="sum", lr=LR),
            make_table("one", 40, 4, lr=LR),
            make_table("means", 60, 4, pooling="mean", lr=LR),
            make_table("split means", 500, 3, pooling="mean", lr=LR),
            make_table("split sums", 400, 4, pooling="sum", lr=LR),
        ),
        3,
        id="bags",
    ),
    pytest.param((make_table("sums", 9, 4, pooling="sum", lr=LR),), 1, id="nothing but bags"),
    pytest.param(
        (
            make_table("one", 40, 4, lr=LR),
            make_table("sequence", 50, 4, pooling="none", lr=LR),
            make_table("weighted means", 60, 4, pooling="weighted_mean", lr=LR),
            make_table("split weighted sums", 500, 3, pooling="weighted_sum", lr=LR),
            make_table("split means", 500, 3, pooling="mean", lr=LR),
            make_table("split sequence", 600, 4, pooling="none", lr=LR),
        ),
        2,
        id="lists row by row",
    ),
    pytest.param((make_table("sequence", 9, 4, pooling="none", lr=LR),), 2, id="nothing but a sequence"),
    pytest.param((make_table("w", 90, 4, pooling="weighted_sum", lr=LR),), 2, id="nothing but weights"),
    pytest.param(
        (
            make_table("item", 50, 4, lr=LR, columns=[TableColumn("item"), TableColumn("history", "none")]),
            make_table("user", 40, 4, lr=LR),
            make_table("shop", 45, 4, lr=LR, columns=[TableColumn("seen", "sum"), TableColumn("shop")]),
        ),
        2,
        id="columns that share whole tables",
    ),
    pytest.param(
        (
            make_table(
                "item",
                700,
                4,
                lr=LR,
                columns=[
                    TableColumn("carts", "mean", True, 3),
                    TableColumn("item", place=2),
                    TableColumn("before", place=5),
                    TableColumn("history", "none", place=0),
                ],
            ),
            make_table("user", 40, 4, lr=LR, columns=[TableColumn("user", place=1)]),
            make_table(
                "shop",
                600,
                4,
                lr=LR,
                columns=[
                    TableColumn("shop", place=4),
                    TableColumn("seen", "sum", place=6),
                    TableColumn("liked", "weighted_sum", place=7),
                    TableColumn("visited", "mean", place=8),
                ],
            ),
        ),
        3,
        id="columns that share split tables",
    ),
]


def loss_of(embeddings: Sequence[torch.Tensor], step: int) -> torch.Tensor:
    """A loss whose gradient differs from table to table, example to example and float to float."""
    side_by_side = torch.cat([vectors.flatten(1) for vectors in embeddings], 1)
    weights = torch.from_numpy(np.random.default_rng(100 + step).standard_normal(side_by_side.shape))
    return (side_by_side.tanh() * weights.to(side_by_side.dtype)).sum(1).square().mean()


def train(cluster: EmbeddingCluster, drawn: DrawnRows, step: int) -> list[torch.Tensor]:
    """One step of the cluster; gives its embeddings."""
    requests, vectors = cluster.forward(drawn)
    loss_of(vectors.embeddings, step).backward()  # type: ignore[no-untyped-call]
    cluster.push(requests, vectors.gradients())
    return [embedding.detach() for embedding in vectors.embeddings]


@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize(("tables", "nodes"), SHAPES)
def test_training_over_nodes_equals_plain_embeddings(
    tables: tuple[TableSettings, ...], nodes: int, distinct: bool
) -> None:
    cluster, plain = EmbeddingCluster(tables, nodes, distinct=distinct), PlainTables(tables)
    firsts = [module.weight.detach().clone() for module in plain.modules]
    for step in range(4):
        drawn = draw_rows(tables, BATCH, step)
        wanted = plain.embeddings(drawn)
        loss_of(wanted, step).backward()  # type: ignore[no-untyped-call]
        plain.step()
        for got, value in zip(train(cluster, drawn, step), wanted, strict=True):
            torch.testing.assert_close(got.double(), value.detach(), rtol=1e-5, atol=1e-6)
    for number, module in enumerate(plain.modules):
        weight = module.weight.detach()
        np.testing.assert_allclose(cluster.table(number), weight.numpy(), rtol=1e-5, atol=1e-6)
        # The control: the steps are larger than the tolerance by far, in every table.
        assert (weight - firsts[number]).abs().max() > 1e-3


TABLES = st.lists(
    st.builds(
        make_table,
        rows=st.one_of(st.integers(1, 4), st.integers(5, 90)),
        dim=st.sampled_from([1, 3, 4]),
        pooling=st.sampled_from(["", "sum", "mean", "weighted_sum", "weighted_mean", "none"]),
        lr=st.sampled_from([0.1, 0.3]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=80)
@given(TABLES, st.integers(1, 5), st.integers(0, 9), st.integers(0, 3), st.integers(0, 1000), st.booleans())
def test_any_plan_and_any_bags_equal_plain_embeddings(
    tables: list[TableSettings], nodes: int, batch: int, longest: int, seed: int, distinct: bool
) -> None:
    if sum(table.rows for table in tables) < nodes:
        return
    cluster, plain = EmbeddingCluster(tables, nodes, distinct=distinct), PlainTables(tables)
    drawn = draw_rows(tables, batch, seed, longest)
    wanted = plain.embeddings(drawn)
    if batch:
        loss_of(wanted, seed).backward()  # type: ignore[no-untyped-call]
        plain.step()
        for got, value in zip(train(cluster, drawn, seed), wanted, strict=True):
            torch.testing.assert_close(got.double(), value.detach(), rtol=1e-5, atol=1e-6)
    else:
        _, vectors = cluster.forward(drawn)
        columns = cluster.plan.columns
        shapes = [(0, 1, column.dim) if column.pooling == "none" else (0, column.dim) for column in columns]
        assert [e.shape for e in vectors.embeddings] == shapes
    for number, module in enumerate(plain.modules):
        weight = module.weight.detach().numpy()
        np.testing.assert_allclose(cluster.table(number), weight, rtol=1e-5, atol=1e-6)


def test_the_sums_of_pieces_are_added_in_the_order_of_nodes() -> None:
    tables = (make_table("bags", 400, 5, pooling="sum"), make_table("means", 300, 5, pooling="mean"))
    cluster, drawn = EmbeddingCluster(tables, 3), draw_rows(tables, 64, 3, longest=30)
    rows, lengths = drawn.bag_rows[: drawn.bag_lengths[0].sum()], drawn.bag_lengths[0]
    example = np.repeat(np.arange(64), lengths)
    pieces = [(p.start, p.stop) for p in cluster.plan.pieces if p.table == 0]
    assert len(pieces) > 1

    def added_up(pieces: list[tuple[int, int]]) -> list[list[float]]:
        wanted = np.zeros((64, 5), np.float32)
        for start, stop in pieces:
            part = np.zeros((64, 5), np.float32)
            here = (rows >= start) & (rows < stop)
            np.add.at(part, example[here], cluster.table(0)[rows[here]])
            wanted += part
        return wanted.tolist()

    got = cluster.forward(drawn)[1].embeddings[0].tolist()
    assert got == added_up(pieces)
    # The control: all at once would be other sums, as near as rounding makes them.
    other = added_up([(0, 400)])
    assert got != other
    np.testing.assert_allclose(got, other, rtol=1e-3, atol=1e-6)


def test_an_answer_has_a_vector_a_bag_and_not_one_a_row() -> None:
    tables = (make_table("a", 400, 5, pooling="sum"), make_table("b", 90, 3, pooling="mean"))
    for longest in (1, 40):
        drawn = draw_rows(tables, 64, 3, longest)
        requests, replies = EmbeddingCluster(tables, 1).call(drawn)
        assert [len(reply) for reply in replies] == [64 * (5 + 3)] == [requests[0].floats]
        first = int(drawn.bag_lengths[0].sum())
        row_by_row = first * 5 + (len(drawn.bag_rows) - first) * 3
        # The control: short bags save nothing.
        assert (row_by_row > 5 * requests[0].floats) == (longest == 40)


def test_an_empty_bag_is_zeros_and_pushes_nothing() -> None:
    tables = (make_table("sums", 20, 3, pooling="sum"), make_table("means", 20, 3, pooling="mean"))
    cluster = EmbeddingCluster(tables, 2)
    before = [cluster.table(number) for number in range(2)]
    lengths = np.array([[0, 2, 0], [0, 0, 0]], np.int32)
    drawn = DrawnRows(np.zeros((0, 3), np.int32), np.array([4, 4], np.int32), lengths)
    embeddings = train(cluster, drawn, 0)
    np.testing.assert_allclose(embeddings[0][1], 2 * before[0][4], rtol=1e-6)
    assert not embeddings[0][[0, 2]].any()
    assert not embeddings[1].any()
    np.testing.assert_array_equal(cluster.table(1), before[1])
    assert np.flatnonzero((cluster.table(0) != before[0]).any(1)).tolist() == [4]


def test_gradients_sent_to_the_wrong_rows_would_be_seen() -> None:
    tables = make_tables([5, 700, 40, 30, 7], DIM, lr=LR)
    cluster, control = EmbeddingCluster(tables, 3), EmbeddingCluster(tables, 3)
    drawn = draw_rows(tables, BATCH, 0)
    for one, order in ((cluster, slice(None)), (control, slice(None, None, -1))):
        requests, vectors = one.forward(drawn)
        loss_of(vectors.embeddings, 0).backward()  # type: ignore[no-untyped-call]
        gradients = [gradient.reshape(-1, DIM)[order] for gradient in vectors.gradients()]
        one.push(requests, [np.ascontiguousarray(gradient) for gradient in gradients])
    differences = [np.abs(cluster.table(number) - control.table(number)).max() for number in range(5)]
    assert min(differences) > 1e-4


def test_a_batch_that_was_checked_has_the_same_requests() -> None:
    tables = (make_table("bags", 40, 4, pooling="sum"), *make_tables([5, 700], DIM))
    router, drawn = EmbeddingCluster(tables, 3).router, draw_rows(tables, BATCH, 1)
    router.check(drawn, BATCH)
    others = router.requests_of(draw_rows(tables, BATCH, 2))
    for checked, request, other in zip(
        router.requests_of_checked(drawn), router.requests_of(drawn), others, strict=True
    ):
        assert np.array_equal(checked.rows, request.rows)
        assert np.array_equal(checked.bag_lengths, request.bag_lengths)
        assert not np.array_equal(checked.rows, other.rows), "the control"


@pytest.mark.parametrize("distinct", [False, True])
def test_the_order_of_a_request_is_bank_by_bank_whole_tables_then_pieces_then_bags(distinct: bool) -> None:
    tables = (
        make_table("bags", 40, 4, pooling="sum"),
        *make_tables([5, 700, 40, 30], DIM),
        make_table("other", 60, 7),
    )
    cluster = EmbeddingCluster(tables, 3, distinct=distinct)
    drawn = draw_rows(tables, BATCH, 1)
    rows = {number: drawn.rows[number - 1] for number in range(1, 6)} | {0: drawn.bag_rows}
    requests = cluster.router.requests(drawn.rows, drawn.bag_rows, drawn.bag_lengths)
    for request in requests:
        wanted: list[int] = []
        floats, bags, counts = 0, 0, []
        for bank, dim in enumerate((4, 7)):
            pieces = [piece for piece in cluster.plan.pieces_of(request.node) if piece.bank == bank]
            parts: dict[bool, list[int]] = {False: [], True: []}
            for piece in sorted(pieces, key=lambda p: (p.table == 0, not cluster.plan.is_whole(p), p.table)):
                inside = [int(row) for row in rows[piece.table] if piece.start <= row < piece.stop]
                parts[piece.table == 0] += [row - piece.start + piece.offset for row in inside]
                bags += piece.table == 0
            single = sorted(set(parts[False])) if distinct else parts[False]
            wanted += [*single, *parts[True]]
            counts.append(len(single) + len(parts[True]))
            floats += (len(single) + BATCH * any(piece.table == 0 for piece in pieces)) * dim
        assert request.rows.tolist() == wanted
        assert request.counts == tuple(counts)
        assert request.floats == floats
        assert request.bag_lengths.shape == ((bags, BATCH) if bags else (0, 0))
        assert request.rows.dtype == np.int32
        assert request.batch == BATCH
    requested = sum(len(request.rows) - request.bag_lengths.sum() for request in requests)
    once = sum(len(np.unique(of_table)) for of_table in drawn.rows)
    assert requested == (once if distinct else drawn.rows.size)
    assert once < drawn.rows.size


def test_asking_for_distinct_rows_changes_no_bit() -> None:
    poolings = ("mean", "weighted_mean", "none")
    bags = (make_table(pooling, 40, DIM, pooling=pooling) for pooling in poolings)
    tables = (*make_tables([5, 700, 40], DIM, lr=LR), *bags)
    every, once = (EmbeddingCluster(tables, 2, distinct=distinct) for distinct in (False, True))
    for step in range(3):
        drawn = draw_rows(tables, BATCH, step)
        for one, other in zip(train(every, drawn, step), train(once, drawn, step), strict=True):
            assert torch.equal(one, other)
    # The control: these have trained.
    fresh = EmbeddingCluster(tables, 2)
    for number in range(len(tables)):
        np.testing.assert_array_equal(every.table(number), once.table(number))
        assert not np.array_equal(every.table(number), fresh.table(number))


def test_a_row_that_several_columns_have_is_asked_for_once() -> None:
    """As the rows of a table of one column are."""
    columns = [TableColumn("item"), TableColumn("history", "none"), TableColumn("before", place=2)]
    for nodes in (1, 3):
        tables = (make_table("user", 30, DIM), make_table("item", 700, DIM, columns=columns))
        drawn = draw_rows(tables, BATCH, 1)
        drawn = replace(drawn, rows=np.stack([drawn.rows[0], drawn.rows[1], drawn.rows[1]]))
        for distinct in (False, True):
            requests = ShardRouter(TablePlan.make(tables, nodes), distinct=distinct).requests_of(drawn)
            items = np.concatenate([drawn.rows[1], drawn.bag_rows])
            once = len(np.unique(drawn.rows[0])) + len(np.unique(items))
            every = drawn.rows.size + len(drawn.bag_rows)
            assert sum(len(request.rows) for request in requests) == (once if distinct else every)
            assert once < every


def test_leaves_are_on_the_memory_of_the_answers() -> None:
    tables = make_tables([60, 50, 40], DIM)
    cluster = EmbeddingCluster(tables, 1)
    requests, replies = cluster.call(draw_rows(tables, BATCH, 2))
    received = [memoryview(bytearray(reply.tobytes())) for reply in replies]
    vectors = cluster.router.assemble(requests, received)
    assert vectors.leaves[0].any()
    received[0][:] = bytes(received[0].nbytes)
    assert not vectors.leaves[0].any()
    assert not any(embedding.any() for embedding in vectors.embeddings)
    assert vectors.leaves[0].is_leaf
    assert vectors.leaves[0].requires_grad


def test_answers_of_every_kind_give_the_same() -> None:
    tables = make_tables([5, 700, 40], DIM)
    cluster = EmbeddingCluster(tables, 2)
    requests, replies = cluster.call(draw_rows(tables, BATCH, 2))
    wanted = cluster.router.assemble(requests, replies).embeddings
    kinds: list[Sequence[FloatBuffer]] = [
        [torch.from_numpy(reply) for reply in replies],
        [memoryview(bytearray(reply.tobytes())) for reply in replies],
        [reply.tobytes() for reply in replies],
    ]
    for kind in kinds:
        for got, value in zip(cluster.router.assemble(requests, kind).embeddings, wanted, strict=True):
            assert torch.equal(got, value)


@pytest.mark.parametrize(("tables", "nodes"), SHAPES)
def test_tables_that_the_loss_does_not_use_have_zero_gradients(
    tables: tuple[TableSettings, ...], nodes: int
) -> None:
    cluster = EmbeddingCluster(tables, nodes)
    drawn = draw_rows(tables, BATCH, 3)
    requests, vectors = cluster.forward(drawn)
    for gradient in vectors.gradients():
        assert not gradient.any()
    vectors.embeddings[0].sum().backward()  # type: ignore[no-untyped-call]
    before = [cluster.table(number) for number in range(len(tables))]
    cluster.push(requests, vectors.gradients())
    column = cluster.plan.columns[0].of_table
    used = drawn.bag_rows[: drawn.bag_lengths[0].sum()] if column.pooling else drawn.rows[0]
    weights = drawn.item_weights[: len(used)] if column.weighted else None
    counts = np.bincount(used, weights, minlength=tables[0].rows).astype(np.float32)
    np.testing.assert_allclose(cluster.table(0), before[0] - LR * counts[:, None], rtol=1e-5)
    for number in range(1, len(tables)):
        np.testing.assert_array_equal(cluster.table(number), before[number])


def test_batches_may_be_under_way_together() -> None:
    tables = (*make_tables([5, 700], DIM), make_table("bags", 40, DIM, pooling="mean"))
    cluster = EmbeddingCluster(tables, 2)
    batches = [draw_rows(tables, BATCH, seed) for seed in (0, 1)]
    under_way = [cluster.call(drawn) for drawn in batches]
    for drawn, (requests, replies) in zip(batches, under_way, strict=True):
        _, alone = cluster.forward(drawn)
        together = cluster.router.assemble(requests, replies)
        for got, wanted in zip(together.embeddings, alone.embeddings, strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_device_that_is_named_has_leaves_and_embeddings(distinct: bool) -> None:
    # Where the CPU is named the answers' memory is used all the same.
    tables = (*make_tables([5, 700], DIM), make_table("bags", 40, DIM, pooling="mean"))
    cluster = EmbeddingCluster(tables, 2, distinct=distinct)
    requests, replies = cluster.call(draw_rows(tables, BATCH, 2))
    vectors = cluster.router.assemble(requests, replies, torch.device("cpu"))
    assert [leaf.data_ptr() for leaf in vectors.leaves] == [reply.ctypes.data for reply in replies]
    meta = cluster.router.assemble(requests, replies, torch.device("meta"))
    assert {tensor.device.type for tensor in (*meta.leaves, *meta.embeddings)} == {"meta"}
    sum(embedding.sum() for embedding in meta.embeddings).backward()  # type: ignore[union-attr]
    assert [leaf.grad.device.type for leaf in meta.leaves if leaf.grad is not None] == ["meta"] * 2


@pytest.mark.parametrize(("table", "row"), [(0, 5), (0, -1), (2, 40), (1, -(2**31))])
def test_a_row_that_its_table_does_not_have_is_refused(table: int, row: int) -> None:
    router = ShardRouter(TablePlan.make(make_tables([5, 700, 40], DIM), 2))
    rows = np.zeros((3, BATCH), np.int32)
    rows[table, 3] = row
    with pytest.raises(ValueError, match=f"a row number is beyond the .* rows of table {table}"):
        router.requests(rows)


def test_another_shape_or_type_is_refused() -> None:
    tables = make_tables([5, 700, 40], DIM)
    cluster = EmbeddingCluster(tables, 2)
    for rows in (np.zeros((2, 4), np.int32), np.zeros((3, 4), np.int64), np.zeros((4, 3), np.int32).T):
        with pytest.raises(ValueError, match=r"rows must be C-contiguous int32 \[3, B\]"):
            cluster.router.requests(rows)  # type: ignore[arg-type]
    requests, replies = cluster.call(draw_rows(tables, BATCH, 0))
    with pytest.raises(ValueError, match="2 requests and 1 replies"):
        cluster.router.assemble(requests, replies[:1])
    for wrong in (
        replies[1][1:],
        replies[1].astype(np.float64),
        replies[1].tobytes()[4:],
        torch.ones(1, DIM),
    ):
        with pytest.raises(ValueError, match="the reply of embedding node 1: "):
            cluster.router.assemble(requests, [replies[0], wrong])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("bag_rows", "lengths", "why"),
    [
        ([1, 2], [[1, 0]], r"bag_lengths must be int32 \[2, 2\]"),
        ([1, 2], [[1], [1]], r"bag_lengths must be int32 \[2, 2\]"),
        ([1, 2], [[3, 0], [-1, 0]], "none below 0"),
        ([1, 2], [[1, 0], [0, 0]], r"bag_rows must be int32 \[1\], the sum"),
        ([1, 2], [[1, 1], [1, 0]], r"bag_rows must be int32 \[3\], the sum"),
        ([1, 9], [[1, 0], [1, 0]], "a row number is beyond the 9 rows of table 2"),
        ([-1, 8], [[1, 0], [1, 0]], "a row number is beyond the 20 rows of table 0"),
    ],
)
def test_bags_that_do_not_fit_are_refused(bag_rows: list[int], lengths: list[list[int]], why: str) -> None:
    tables = [make_table("a", 20, pooling="sum"), make_table("b"), make_table("c", 9, pooling="mean")]
    router = ShardRouter(TablePlan.make(tables, 1))
    rows = np.zeros((1, 2), np.int32)
    router.requests(rows, np.array([1, 8], np.int32), np.array([[1, 0], [1, 0]], np.int32))
    with pytest.raises(ValueError, match=why):
        router.requests(rows, np.array(bag_rows, np.int32), np.array(lengths, np.int32))


def test_bags_are_refused_where_no_table_has_them() -> None:
    router = ShardRouter(TablePlan.make(make_tables([5]), 1))
    with pytest.raises(ValueError, match="bag_lengths must be int32"):
        router.requests(np.zeros((1, 2), np.int32), np.array([1], np.int32))
