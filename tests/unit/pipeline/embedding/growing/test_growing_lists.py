"""Growing tables of columns that have lists of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from shadowsync.pipeline.config.tables import Growth, TableColumn, TableSettings, columns_of
from shadowsync.pipeline.embedding.lookup.request import LookupPlan
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.loaded_tables import LoadedTables
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import BatchId, Float32Array, Int32Array, Uint64Array
from shadowsync.tests.support.tables.embedding_cluster import (
    SEED,
    DrawnRows,
    EmbeddingCluster,
    draw_rows,
)
from shadowsync.tests.support.tables.saved_shards import save_shards
from shadowsync.tests.support.tables.tables import make_table

BATCH, STEPS = 20, 6
NO_BAGS: Int32Array = np.zeros((0, 0), np.int32)
NO_ROWS: Int32Array = np.zeros(0, np.int32)


def make(name: str, rows: int, pooling: str, *, grows: bool = True, optimizer: str = "adam") -> TableSettings:
    growth = Growth() if grows else None
    return make_table(name, rows, 4, pooling=pooling, optimizer=optimizer, growth=growth)


# Lists before single ids of the same settings, and hashed tables among them.
MIXED = (
    make("tags", 60, "sum"),
    make("hashed tags", 40, "mean", grows=False),
    make("user", 50, ""),
    make("genres", 45, "mean"),
    make("scored", 55, "weighted_mean"),
    make("hashed", 30, "", grows=False),
    make("history", 35, "none"),
    make("shops", 25, "sum", optimizer="rowwise_adagrad"),
)


def shared(name: str, rows: int, *poolings: str) -> TableSettings:
    """A table of several columns; those that trainers sum are called "trainers POOLING"."""
    columns = (TableColumn(f"{name} {p}", p.split(" ")[-1], " " in p) for p in poolings)
    return replace(make(name, rows, ""), columns=tuple(columns))


SHARED = (
    shared("item", 60, "", "none"),
    make("user", 50, ""),
    shared("shop", 40, "", "sum", ""),
    shared("tag", 45, "sum", "weighted_mean"),
    shared("page", 30, "mean", "sum"),
    shared("word", 35, "trainers sum", ""),
    make("hashed", 30, "", grows=False),
)


def draw(tables: Sequence[TableSettings], step: int) -> DrawnRows:
    """Ids whose hashes have the first values of their rows, and say their table."""
    drawn = draw_rows(tables, BATCH, step)
    # The first values of a key do not depend on its 11 high bits.
    high = [np.uint64(number) << np.uint64(53) for number in range(len(tables))]
    single = [column.number for column in columns_of(tables) if not column.pooling]
    bagged = [column.number for column in columns_of(tables) if column.pooling]
    one_row = zip(single, drawn.rows.astype(np.uint64), strict=True)
    keys = np.array([rows | high[n] for n, rows in one_row if tables[n].growth], np.uint64)
    owners = np.repeat(bagged, drawn.bag_lengths.sum(axis=1))
    grows = np.array([table.growth is not None for table in tables])[owners]
    bag_keys = np.where(grows, drawn.bag_rows.astype(np.uint64) | np.array(high)[owners], np.uint64(0))
    return replace(
        drawn,
        keys=keys if len(keys) else np.zeros((0, 0), np.uint64),
        bag_keys=bag_keys if grows.any() else bag_keys[:0],
    )


def train(cluster: EmbeddingCluster, tables: Sequence[TableSettings], steps: range) -> list[Float32Array]:
    """All embeddings of the steps."""
    return [embedding for step in steps for embedding in cluster.train(draw(tables, step))]


def same(one: Sequence[Float32Array], other: Sequence[Float32Array]) -> bool:
    return all(np.array_equal(left, right) for left, right in zip(one, other, strict=True))


def hashed(tables: Sequence[TableSettings]) -> tuple[TableSettings, ...]:
    return tuple(replace(table, growth=None) for table in tables)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("pooling", ["sum", "mean", "weighted_sum", "weighted_mean", "none"])
def test_lists_with_a_row_for_each_id_are_those_of_a_hashed_table(
    pooling: str, optimizer: str, distinct: bool, nodes: int
) -> None:
    """To the bit; and with more rows than the batch's ids, not with other first values."""
    tables = (make("tags", 40, pooling, optimizer=optimizer),)
    plain = EmbeddingCluster(hashed(tables), nodes, distinct=distinct)
    growing = EmbeddingCluster(tables, nodes, distinct=distinct)
    wanted = train(plain, hashed(tables), range(STEPS))
    assert same(wanted, train(growing, tables, range(STEPS)))
    fresh = EmbeddingCluster(tables, nodes, distinct=distinct)
    assert not same(wanted[-1:], train(fresh, tables, range(STEPS - 1, STEPS)))


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("tables", [MIXED, SHARED], ids=["mixed", "shared"])
def test_lists_beside_single_ids_and_hashed_tables(
    tables: tuple[TableSettings, ...], nodes: int, distinct: bool
) -> None:
    plain = EmbeddingCluster(hashed(tables), nodes, distinct=distinct)
    growing = EmbeddingCluster(tables, nodes, distinct=distinct)
    assert same(train(plain, hashed(tables), range(STEPS)), train(growing, tables, range(STEPS)))


def test_a_batch_counts_an_id_of_several_columns_once() -> None:
    """Whether a node sums the bags of one of them or not."""
    for pooling in ("none", "sum"):
        table = replace(shared("item", 40, "", pooling), growth=Growth(admit_after=2))
        cluster = EmbeddingCluster((table,), 1, distinct=True)
        drawn = draw((table,), 0)
        # All of these ids are in the lists, too.
        singles = np.resize(np.unique(drawn.bag_rows), BATCH).astype(np.int32)
        drawn = replace(drawn, rows=singles[None], keys=singles[None].astype(np.uint64))
        (store,) = cluster.stores
        for rows in (0, len(np.unique(drawn.bag_rows))):
            cluster.train(drawn)
            assert store.growth_counts()["growing/rows/item"] == rows


def test_tables_of_equal_settings_share_a_bank_whose_summed_ones_come_last() -> None:
    names = [bank.growing for bank in TablePlan.make(MIXED, 2).banks]
    assert names == ["", "user", "scored", "history", "tags", "genres", "shops"]
    plan = TablePlan.make(SHARED, 2)
    assert [bank.growing for bank in plan.banks] == ["", "item", "user", "word", "page", "shop", "tag"]
    # Single keys come first in a request's bank, so what has both is alone.
    assert plan.bank_groups == ((0,), (1, 2, 3, 4), (5,), (6,))


def request(keys: list[int], lengths: list[int]) -> tuple[Uint64Array, Int32Array]:
    return np.array(keys, np.uint64), np.array([lengths], np.int32)


def look_up(store: ShardStore, keys: Uint64Array, lengths: Int32Array) -> Float32Array:
    out = np.full((lengths.shape[1], 4), np.nan, np.float32)
    store.lookup(NO_ROWS, out, bag_lengths=lengths, keys=keys)
    return out


@pytest.mark.parametrize("threads", [1, 3])
def test_sums_have_first_values_of_ids_without_a_row(threads: int) -> None:
    """Which get no gradient, before they are due."""
    table = make_table("tags", 50, 4, pooling="sum", lr=1.0, growth=Growth(admit_after=2))
    store = ShardStore(TablePlan.make([table], 1), 0, seed=SEED, memory_fraction=0.8)
    first = row_values(SEED, 0, np.arange(10), 4, 0.05)
    keys, lengths = request([7, 3, 3, 5], [2, 0, 2])
    wanted = np.stack([first[7] + first[3], np.zeros(4, np.float32), first[3] + first[5]])
    np.testing.assert_array_equal(look_up(store, keys, lengths), wanted)
    gradient = np.ones((1, 4), np.float32)
    # A list that has an id twice is one batch of it.
    store.apply(NO_ROWS, gradient, bag_lengths=np.array([[2]], np.int32), keys=keys[1:3])
    np.testing.assert_array_equal(look_up(store, keys, lengths), wanted)
    own_keys, own_lengths = request([3, 5, 3], [3])
    store.apply(NO_ROWS, gradient, bag_lengths=own_lengths, keys=own_keys)
    counts = store.growth_counts()
    assert counts["growing/rows/tags"] == 1
    # Twice in the list, so the gradient of the sum counts twice.
    trained = first[3] - np.float32(2)
    np.testing.assert_array_equal(look_up(store, *request([3], [1]))[0], trained)
    mixed_keys, mixed_lengths = request([9, 3, 5, 3], [1, 0, 3])
    out = np.full((3, 4), np.nan, np.float32)
    work = store.lookup_work(NO_ROWS, out, bag_lengths=mixed_lengths, keys=mixed_keys)
    for thread in range(threads):
        work.run(thread, threads)
    work.finish()
    np.testing.assert_array_equal(out, np.stack([first[9], np.zeros(4), trained + first[5] + trained]))


def test_threads_change_no_bit() -> None:
    """With rows that are evicted and used again in the same batch."""
    tables = tuple(replace(table, rows=24) if table.growth else table for table in MIXED)
    plan = TablePlan.make(tables, 1)
    stores = [ShardStore(plan, 0, seed=SEED, memory_fraction=0.8) for _ in range(2)]
    ids = tuple(replace(table, rows=60) if table.growth else table for table in MIXED)
    router = EmbeddingCluster(tables, 1).router
    for step in range(STEPS):
        drawn = draw(ids, step)
        # More ids than rows: some have the same row of a hashed table.
        drawn = replace(drawn, rows=drawn.rows % 24, bag_rows=drawn.bag_rows % 24)
        (plan_of_batch,) = router.requests_of(drawn)
        gradient = np.random.default_rng(step).standard_normal(plan_of_batch.floats).astype(np.float32)
        outs = [run(store, plan_of_batch, gradient, n) for store, n in zip(stores, (1, 3), strict=True)]
        np.testing.assert_array_equal(outs[0], outs[1])
    evicted = {key: count for key, count in stores[0].growth_counts().items() if "/evicted/" in key}
    assert evicted["growing/evicted/tags"] > 0
    for (_, one), (_, other) in zip(stores[0].pieces(), stores[1].pieces(), strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(np.asarray(values), np.asarray(other[name]))


def run(store: ShardStore, plan: LookupPlan, gradient: Float32Array, threads: int) -> Float32Array:
    out = np.full(plan.floats, np.nan, np.float32)
    what = (plan.counts, plan.bag_lengths)
    lookup = store.lookup_work(plan.rows, out, *what, plan.keys)
    push = store.push_work(
        plan.rows, gradient, plan.counts, 1.0, plan.bag_lengths, BatchId(0, 0, 0, 0), plan.keys
    )
    for work in (lookup, push):
        for thread in range(threads):
            work.run(thread, threads)
        work.finish()
    return out


@pytest.mark.parametrize("tables", [MIXED, SHARED], ids=["mixed", "shared"])
@pytest.mark.parametrize(("writes", "restores"), [(2, 3), (3, 1)])
def test_checkpoints_and_one_process_have_the_same_lists(
    tmp_path: Path, writes: int, restores: int, tables: tuple[TableSettings, ...]
) -> None:
    cluster = EmbeddingCluster(tables, writes)
    train(cluster, tables, range(STEPS))
    saved = save_shards(tmp_path, cluster.stores)
    other = EmbeddingCluster(tables, restores)
    for store in other.stores:
        assert store.restore(saved) == []
    drawn = draw(tables, 99)
    wanted = [e.detach().numpy() for e in cluster.forward(drawn)[1].embeddings]
    loaded = LoadedTables(saved, tables, SEED).embeddings(drawn).embeddings
    split = {at for at, column in enumerate(columns_of(tables)) if column.pooling in ("sum", "mean")}
    for at, (one, two) in enumerate(zip(wanted, loaded, strict=True)):
        # Nodes with parts of a table add up their parts of a bag in another order.
        np.testing.assert_allclose(
            one, two.numpy(), rtol=1e-5 if at in split else 0, atol=1e-7 * (at in split)
        )
    (tmp_path / "untrained").mkdir()
    saved = save_shards(tmp_path / "untrained", EmbeddingCluster(tables, 1).stores)
    untrained = LoadedTables(saved, tables, SEED).embeddings(drawn).embeddings
    assert not np.allclose(untrained[0].numpy(), wanted[0], rtol=1e-2)
    # With the optimizer's state.
    seen = [train(one, tables, range(30, 33)) for one in (cluster, other)]
    for one, again in zip(*seen, strict=True):
        np.testing.assert_allclose(one, again, rtol=1e-4, atol=1e-6)


def test_wrong_keys_of_lists_are_refused_and_change_nothing() -> None:
    cluster = EmbeddingCluster(MIXED, 1)
    drawn = draw(MIXED, 1)
    count = len(drawn.bag_rows)
    for wrong in (drawn.bag_keys[:-1], drawn.bag_keys[:, None], drawn.bag_keys[:0]):
        with pytest.raises(ValueError, match=rf"bag_keys must be uint64 \[{count}\], one for each"):
            cluster.router.requests_of(replace(drawn, bag_keys=wrong))
    (store,) = cluster.stores
    tags = ShardStore(TablePlan.make(MIXED[:1], 1), 0, seed=SEED, memory_fraction=0.8)
    keys, lengths = request([1, 2, 3], [1, 1])
    with pytest.raises(ValueError, match="3 keys of growing table 0 of a bank, whose bags have 2"):
        tags.apply(NO_ROWS, np.zeros((3, 4), np.float32), bag_lengths=lengths, keys=keys)
    with pytest.raises(ValueError, match="bags have 2 rows, but their bank has 1"):
        tags.apply(NO_ROWS, np.zeros((2, 4), np.float32), bag_lengths=lengths, keys=keys[:1])
    assert tags.growth_counts()["growing/rows/tags"] == 0
    tags.apply(NO_ROWS, np.zeros((2, 4), np.float32), bag_lengths=lengths, keys=keys[:2])
    assert tags.growth_counts()["growing/rows/tags"] == 2
    assert store.growth_counts()["growing/rows/tags"] == 0
