"""Growing tables in the stores of nodes, and in checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint import files as files_module
from shadowsync.pipeline.checkpoint.files import FileEntry
from shadowsync.pipeline.config.tables import Growth, TableSettings
from shadowsync.pipeline.data.hashing import mix, table_rows_of
from shadowsync.pipeline.embedding.growing import row_directory
from shadowsync.pipeline.embedding.growing.id_index import ABSENT
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.grown_rows import GrownRows
from shadowsync.pipeline.embedding.storage.loaded_tables import LoadedTables
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.pipeline.types import Float32Array, IndexArray, Int32Array, Uint64Array
from shadowsync.tests.support.tables.embedding_cluster import SEED, DrawnRows, EmbeddingCluster
from shadowsync.tests.support.tables.saved_shards import manifest_of_files, save_shards
from shadowsync.tests.support.tables.tables import make_table

IDS, BATCH = 60, 24
TABLES = (
    make_table("hashed", 50, 4, optimizer="rowwise_adagrad"),
    make_table("user", 90, 4, optimizer="rowwise_adagrad", growth=Growth()),
    make_table("item", 80, 6, optimizer="adam", growth=Growth()),
    # Of the settings of the first growing table: nodes have both in one bank.
    make_table("shop", 85, 4, optimizer="rowwise_adagrad", growth=Growth(evict="never"), init_scale=0.2),
)
NO_ROWS: Int32Array = np.zeros(0, np.int32)
NOTHING: dict[str, dict[int, int]] = {"user": {}, "item": {}, "shop": {}}


def draw(step: int, tables: tuple[TableSettings, ...] = TABLES, ids: int = IDS) -> DrawnRows:
    """A batch in which ids repeat."""
    draws = np.random.default_rng(step).integers(0, ids, (len(tables), BATCH)).astype(np.uint64)
    hashes = mix(draws + np.arange(len(tables), dtype=np.uint64)[:, None] * np.uint64(1000))
    rows = table_rows_of(hashes, tuple(table.rows for table in tables))
    grows = [table.growth is not None for table in tables]
    return DrawnRows(rows, np.zeros(0, np.int32), np.zeros((0, 0), np.int32), keys=hashes[grows])


def train(cluster: EmbeddingCluster, steps: range, **options: Any) -> None:
    for step in steps:
        cluster.train(draw(step, **options))


def embeddings(cluster: EmbeddingCluster, step: int, **options: Any) -> list[Float32Array]:
    return [e.detach().numpy() for e in cluster.forward(draw(step, **options))[1].embeddings]


def directories(cluster: EmbeddingCluster) -> dict[str, dict[int, int]]:
    """The last use of each key, by table."""
    found: dict[str, dict[int, int]] = {}
    for store in cluster.stores:
        for piece, arrays in store.pieces():
            if "ids" in arrays:
                used = arrays["used_at"] > 0
                keys = arrays["ids"][used].view(np.uint64).tolist()
                own = dict(zip(keys, arrays["used_at"][used].tolist(), strict=True))
                found.setdefault(store.plan.tables[piece.table].name, {}).update(own)
    return found


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_table_with_a_row_for_each_id_is_that_of_a_hashed_one(
    optimizer: str, threads: int, storage: str
) -> None:
    """As long as ids come in the order of their numbers, to the bit."""
    rows = 40
    stores = [
        ShardStore(TablePlan.make([table], 1), 0, seed=SEED, memory_fraction=0.8)
        for table in (
            make_table("t", rows, 5, optimizer=optimizer, storage=storage, growth=growth)
            for growth in (None, Growth())
        )
    ]
    for step in range(12):
        ids = np.random.default_rng(step).integers(0, min(rows, 4 * (step + 1)), 20)
        ids = np.concatenate([np.arange(4 * step, min(rows, 4 * step + 4)), ids])
        gradients = np.random.default_rng(step + 100).standard_normal((len(ids), 5)).astype(np.float32)
        outs = []
        keys: Uint64Array = ids.astype(np.uint64)
        requests = ((ids.astype(np.int32), keys[:0]), (NO_ROWS, keys))
        for store, (asked, asked_keys) in zip(stores, requests, strict=True):
            out = np.full((len(ids), 5), np.nan, np.float32)
            lookup = store.lookup_work(asked, out, keys=asked_keys)
            push = store.push_work(asked, gradients, keys=asked_keys)
            for work in (lookup, push):
                for thread in range(threads):
                    work.run(thread, threads)
                work.finish()
            outs.append(out)
        np.testing.assert_array_equal(outs[0], outs[1])
    (_, one), (_, other) = (next(store.pieces()) for store in stores)
    for name, values in one.items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(other[name]))


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("distinct", [False, True])
def test_nodes_and_distinct_keys_change_nothing(nodes: int, distinct: bool) -> None:
    plain = EmbeddingCluster(TABLES, 1)
    other = EmbeddingCluster(TABLES, nodes, distinct=distinct)
    for cluster in (plain, other):
        train(cluster, range(5))
    np.testing.assert_equal(embeddings(plain, 9), embeddings(other, 9))
    assert directories(plain) == directories(other)
    untrained = EmbeddingCluster(TABLES, 1)
    assert not np.array_equal(embeddings(untrained, 9)[1], embeddings(plain, 9)[1])


def test_an_id_without_a_row_has_its_first_values_and_lookups_give_it_none() -> None:
    cluster = EmbeddingCluster(TABLES, 2)
    drawn = draw(1)
    before = embeddings(cluster, 1)
    np.testing.assert_array_equal(before[1], row_values(SEED, 1, drawn.keys[0], 4, 0.05))
    np.testing.assert_array_equal(before[3], row_values(SEED, 3, drawn.keys[2], 4, 0.2))
    assert directories(cluster) == NOTHING


def test_a_reused_row_begins_anew() -> None:
    """An id that takes an evicted row is trained as on a node of its own."""
    tables = (make_table("user", 8, 4, optimizer="adam", growth=Growth()),)
    cluster = EmbeddingCluster(tables, 1)
    train(cluster, range(30), tables=tables, ids=40)
    (store,) = cluster.stores
    counts = store.growth_counts()
    assert counts["growing/evicted/user"] > 50
    assert counts["growing/rows/user"] == 8
    key = np.array([mix(np.array([10**6], np.uint64))[0]], np.uint64)
    fresh = ShardStore(cluster.plan, 0, seed=SEED, memory_fraction=0.8)
    seen = []
    for one in (store, fresh):
        one.apply(NO_ROWS, np.ones(4, np.float32), keys=key)
        out = np.zeros(4, np.float32)
        one.lookup(NO_ROWS, out, keys=key)
        seen.append(out)
    np.testing.assert_array_equal(seen[0], seen[1])


def test_ids_that_are_not_due_learn_nothing() -> None:
    tables = (make_table("user", 90, 4, growth=Growth(admit_after=3)),)
    cluster = EmbeddingCluster(tables, 1)
    first = embeddings(cluster, 1, tables=tables)
    for repeats in (2, 1):
        train(cluster, range(1, 2), tables=tables)
        if repeats == 2:
            train(cluster, range(1, 2), tables=tables)
            np.testing.assert_equal(first, embeddings(cluster, 1, tables=tables))
    assert not np.array_equal(first[0], embeddings(cluster, 1, tables=tables)[0])


@pytest.mark.parametrize(("writes", "restores"), [(1, 1), (2, 3), (3, 1), (3, 3)])
def test_any_number_of_nodes_restores_a_checkpoint(tmp_path: Path, writes: int, restores: int) -> None:
    cluster = EmbeddingCluster(TABLES, writes)
    train(cluster, range(6))
    saved = save_shards(tmp_path, cluster.stores)
    other = EmbeddingCluster(TABLES, restores)
    for store in other.stores:
        assert store.restore(saved) == []
    np.testing.assert_equal(embeddings(cluster, 9), embeddings(other, 9))
    assert directories(cluster) == directories(other)
    # With the optimizer's state: both go on in the same way.
    for one in (cluster, other):
        train(one, range(20, 23))
    np.testing.assert_equal(embeddings(cluster, 9), embeddings(other, 9))
    assert directories(cluster) == directories(other)


def timed_store(clock: list[float], seconds: float = 60.0, node: int = 0, nodes: int = 1) -> ShardStore:
    """One of 40 rows that are freed when nobody has used them for so long."""
    table = make_table("user", 40, 4, growth=Growth(evict_after_seconds=seconds))
    plan = TablePlan.make([table], nodes)
    return ShardStore(plan, node, seed=SEED, memory_fraction=0.8, clock=lambda: clock[0])


def rows_after_push(store: ShardStore, keys: Uint64Array) -> int:
    store.apply(NO_ROWS, np.ones(4 * len(keys), np.float32), keys=keys)
    return store.growth_counts()["growing/rows/user"]


@pytest.mark.parametrize("is_timed", [True, False])
def test_a_restored_row_is_as_old_as_it_was(tmp_path: Path, is_timed: bool) -> None:
    """Times go on from the newest row; a checkpoint without times, the control, has rows of one age."""

    keys, clock, later = mix(np.arange(1, 4, dtype=np.uint64)), [1e6], [3.0]
    first = timed_store(clock, 60.0 if is_timed else 0.0)
    rows_after_push(first, keys[:1])
    clock[0] += 50
    rows_after_push(first, keys[1:2])
    second = timed_store(later)
    assert second.restore(save_shards(tmp_path, [first])) == []
    for seconds, left in ((0, 3), (15, 2 if is_timed else 3), (50, 1)):
        later[0] += seconds
        assert rows_after_push(second, keys[2:]) == left


def test_a_row_is_as_old_as_it_was_on_its_own_node(tmp_path: Path) -> None:
    """A node that began later counts fewer seconds; its rows are not older for it."""
    clock, keys, stores = [0.0], mix(np.arange(1, 20, dtype=np.uint64)), []
    for number in range(2):
        stores.append(timed_store(clock, node=number, nodes=2))
        clock[0] += 500.0
    (piece,) = stores[0].plan.pieces_of(0)
    is_first = table_rows_of(keys[None], (40,))[0] < piece.stop
    for store, own in zip(stores, (keys[is_first], keys[~is_first]), strict=True):
        assert rows_after_push(store, own) > 2
    restored = timed_store(clock)
    assert restored.restore(save_shards(tmp_path, stores)) == []
    for seconds, left in ((30, len(keys)), (70, 1)):
        clock[0] += seconds
        assert rows_after_push(restored, keys[:1]) == left


def test_nodes_have_the_same_arrays_of_a_table_whatever_is_beside_it(tmp_path: Path) -> None:
    """One of two nodes stores a table that frees rows by time together with a part of one that does not."""
    tables = (
        make_table("timed", 10, 4, growth=Growth(evict_after_seconds=60.0)),
        make_table("split", 90, 4, growth=Growth()),
    )
    cluster = EmbeddingCluster(tables, 2)
    assert [len(list(store.pieces())) for store in cluster.stores] == [2, 1]
    train(cluster, range(4), tables=tables)
    saved = save_shards(tmp_path, cluster.stores)
    assert saved.read_directory("timed").ages is not None
    assert saved.read_directory("split").ages is None
    other = EmbeddingCluster(tables, 1)
    assert other.stores[0].restore(saved) == []
    np.testing.assert_equal(embeddings(cluster, 9, tables=tables), embeddings(other, 9, tables=tables))


def test_the_same_nodes_restore_the_same_rows(tmp_path: Path) -> None:
    cluster = EmbeddingCluster(TABLES, 2)
    train(cluster, range(6))
    saved = save_shards(tmp_path, cluster.stores)
    other = EmbeddingCluster(TABLES, 2)
    for one, store in zip(cluster.stores, other.stores, strict=True):
        store.restore(saved)
        for (_, old), (_, new) in zip(one.pieces(), store.pieces(), strict=True):
            for name in ("ids", "used_at"):
                if name in old:
                    np.testing.assert_array_equal(old[name], new[name])


def test_changes_have_what_rows_became(tmp_path: Path) -> None:
    tables = (make_table("user", 20, 4, optimizer="adagrad", growth=Growth(evict_after_batches=3)),)
    cluster, files = EmbeddingCluster(tables, 2), list[FileEntry]()
    train(cluster, range(3), tables=tables)
    for store in cluster.stores:
        files += ShardPart.of(store, AppliedBatches()).write(tmp_path)
        store.end_change_epoch()
    evicted_before = sum(store.growth_counts()["growing/evicted/user"] for store in cluster.stores)
    for number in (1, 2):
        train(cluster, range(10 * number, 10 * number + 5), tables=tables)
        for store in cluster.stores:
            changed = store.changed_since(store.end_change_epoch() - 1)
            files += ShardPart.of_changes(store, AppliedBatches(), changed, number).write(tmp_path)
    evicted = sum(store.growth_counts()["growing/evicted/user"] for store in cluster.stores)
    assert evicted > evicted_before
    saved = SavedTables(tmp_path, manifest_of_files(files))
    other = EmbeddingCluster(tables, 1)
    other.stores[0].restore(saved)
    assert directories(cluster) == directories(other)
    np.testing.assert_equal(embeddings(cluster, 9, tables=tables), embeddings(other, 9, tables=tables))


def test_ids_that_move_while_their_rows_are_written_are_followed_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "PIECE_BYTES", 64)
    tables = (make_table("user", 30, 4, optimizer="adagrad", growth=Growth(evict_after_batches=3)),)
    cluster, steps = EmbeddingCluster(tables, 1), itertools.count(10)
    (store,) = cluster.stores

    def fetch(copy: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        train(cluster, range(at := next(steps), at + 1), tables=tables)
        return copy()

    train(cluster, range(3), tables=tables)
    whole = ShardPart.of(store, AppliedBatches()).write(tmp_path)
    began = store.end_change_epoch()
    train(cluster, range(3, 6), tables=tables)
    part = ShardPart.of_changes(store, AppliedBatches(), store.changed_since(began), 1)
    began = store.end_change_epoch()
    files = [*whole, *part.served(fetch).write(tmp_path)]
    before, torn = (SavedTables(tmp_path, manifest_of_files(some)) for some in (whole, files))
    used = torn.read_directory("user").used_at > 0
    keys = torn.read_directory("user").keys[used]
    assert len(np.unique(keys)) < len(keys), "the control: an id is in two rows"
    part = ShardPart.of_changes(store, AppliedBatches(), store.changed_since(began), 2)
    after = SavedTables(tmp_path, manifest_of_files([*files, *part.write(tmp_path)]))
    since = after.changes_since(before)
    assert since is not None
    loaded, wanted = (LoadedTables(one, tables, SEED) for one in (before, after))
    loaded.apply(loaded.read(since.changes))
    rows, other = (one.grown["user"] for one in (loaded, wanted))
    assert len(rows) == len(other) == len(directories(cluster)["user"])
    np.testing.assert_array_equal(rows.keys, other.keys)
    np.testing.assert_array_equal(rows.vectors, other.vectors)
    assert rows.find(rows.keys).tolist() == [*range(len(rows))]
    # The index has each id once: nothing is left of rows where one was while they were written.
    assert np.count_nonzero(rows._index._places > 0) == len(rows)
    # Ids that have no row any more are not found either.
    every = draw(7, tables, ids=IDS).keys[0]
    np.testing.assert_array_equal(rows.lookup(every), other.lookup(every))


def test_changes_have_every_row_once_batches_are_numbered_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the rows that no batch used since would be the newest of all after a restore."""
    monkeypatch.setattr(row_directory, "LAST_BATCH", 4)
    tables = (make_table("user", 200, 4, optimizer="adagrad", growth=Growth()),)
    cluster = EmbeddingCluster(tables, 1)
    (store,) = cluster.stores
    train(cluster, range(4), tables=tables)
    files = list(ShardPart.of(store, AppliedBatches()).write(tmp_path))
    store.end_change_epoch()
    train(cluster, range(4, 6), tables=tables)
    changed = store.changed_since(store.end_change_epoch() - 1)
    files += ShardPart.of_changes(store, AppliedBatches(), changed, 1).write(tmp_path)
    other = EmbeddingCluster(tables, 1)
    other.stores[0].restore(SavedTables(tmp_path, manifest_of_files(files)))
    found = directories(cluster)
    assert set(found["user"].values()) == {1, 2, 3, 4}
    assert directories(other) == found


@pytest.mark.parametrize("read_bytes", [100, 1 << 20])
def test_one_process_loads_what_nodes_have(
    tmp_path: Path, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowsync.pipeline.embedding.storage.loaded_tables.READ_BYTES", read_bytes)
    cluster = EmbeddingCluster(TABLES, 3)
    train(cluster, range(4))
    loaded = LoadedTables(save_shards(tmp_path, cluster.stores), TABLES, SEED)
    drawn = draw(9)
    got = [e.numpy() for e in loaded.embeddings(drawn).embeddings]
    np.testing.assert_equal(got, embeddings(cluster, 9))
    keys = loaded.grown["user"].keys.tolist()
    assert keys == sorted(directories(cluster)["user"])
    absent = 1 << 60
    places = loaded.grown["user"].find(np.array([*keys, absent], np.uint64))
    assert places.tolist() == [*range(len(keys)), ABSENT]
    other_seed = LoadedTables(save_shards(tmp_path, cluster.stores), TABLES, SEED + 1)
    others = other_seed.embeddings(drawn).embeddings
    assert not np.array_equal(others[1].numpy(), got[1])


def test_a_place_is_found_while_another_thread_asks_for_the_first_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = EmbeddingCluster(TABLES, 1)
    train(cluster, range(4))
    rows = LoadedTables(save_shards(tmp_path, cluster.stores), TABLES, SEED).grown["user"]
    keys, order, seen = rows.keys, GrownRows._order, list[Int32Array]()

    def interrupted(own: GrownRows) -> IndexArray:
        monkeypatch.setattr(GrownRows, "_order", order)
        seen.append(own.find(keys))
        return order(own)

    monkeypatch.setattr(GrownRows, "_order", interrupted)
    seen.append(rows.find(keys))
    assert [places.tolist() for places in seen] == [[*range(len(keys))]] * 2


def test_a_table_without_a_row_is_loaded_with_first_values(tmp_path: Path) -> None:
    cluster = EmbeddingCluster(TABLES, 2)
    loaded = LoadedTables(save_shards(tmp_path, cluster.stores), TABLES, SEED)
    got = [e.numpy() for e in loaded.embeddings(draw(1)).embeddings]
    np.testing.assert_equal(got, embeddings(cluster, 1))
    assert loaded.table("user").shape == (0, 4)


def test_a_hashed_table_is_no_growing_one(tmp_path: Path) -> None:
    hashed = (make_table("user", 90, 4, optimizer="rowwise_adagrad"),)
    growing = (make_table("user", 90, 4, optimizer="rowwise_adagrad", growth=Growth()),)
    for written, wanted in ((hashed, growing), (growing, hashed)):
        saved = save_shards(tmp_path, EmbeddingCluster(written, 1).stores)
        kinds = ["growing" if t[0].growth else "hashed" for t in (written, wanted)]
        text = f"user is {kinds[0]} in the checkpoint and {kinds[1]} in the job.*kind to .{kinds[0]}"
        with pytest.raises(CheckpointError, match=text):
            EmbeddingCluster(wanted, 1).stores[0].restore(saved)


def test_wrong_keys_are_refused_and_change_nothing() -> None:
    cluster = EmbeddingCluster(TABLES, 1)
    drawn = draw(1)
    with pytest.raises(ValueError, match=r"keys must be uint64 \[3, 24\], not \[1, 24\]"):
        cluster.router.requests(drawn.rows, keys=drawn.keys[:1])
    (request,) = cluster.router.requests(drawn.rows, keys=drawn.keys)
    (store,) = cluster.stores
    floats: NDArray[np.float32] = np.zeros(request.floats, np.float32)
    with pytest.raises(ValueError, match="do not fit"):
        store.apply(request.rows, floats, request.counts, keys=request.keys[:-1])
    with pytest.raises(ValueError, match="keys must be uint64"):
        store.apply(request.rows, floats, request.counts, keys=request.keys.astype(np.int64))
    bad = floats.copy()
    bad[-1] = np.inf
    with pytest.raises(ValueError, match="finite"):
        store.apply(request.rows, bad, request.counts, keys=request.keys)
    assert directories(cluster) == NOTHING
    store.apply(request.rows, floats, request.counts, keys=request.keys)
    assert directories(cluster) != NOTHING


def test_tables_in_one_bank_are_what_they_are_alone() -> None:
    """And the second one, which is full before the first, evicts nothing of it."""
    both = (TABLES[1], make_table("shop", 20, 4, optimizer="rowwise_adagrad", growth=Growth(evict="never")))
    cluster = EmbeddingCluster(both, 1)
    alone = [EmbeddingCluster((table,), 1) for table in both]
    for step in range(8):
        drawn = draw(step, both)
        requests, replies = cluster.call(drawn)
        gradient = np.random.default_rng(step).standard_normal(requests[0].floats).astype(np.float32)
        cluster.push(requests, [gradient])
        for at, one in enumerate(alone):
            own = DrawnRows(
                drawn.rows[at : at + 1], drawn.bag_rows, drawn.bag_lengths, keys=drawn.keys[at : at + 1]
            )
            own_requests, own_replies = one.call(own)
            part = slice(at * BATCH * 4, (at + 1) * BATCH * 4)
            if at == 0:
                np.testing.assert_array_equal(own_replies[0], replies[0][part])
            one.push(own_requests, [gradient[part].copy()])
    counts = cluster.stores[0].growth_counts()
    assert counts["growing/refused/shop"] > 0
    assert counts["growing/evicted/user"] == 0
    assert directories(cluster)["user"] == directories(alone[0])["user"]
    shop = alone[1].stores[0].growth_counts()
    assert {name: count for name, count in counts.items() if name.endswith("shop")} == shop
