"""A store whose rows lie in a file: it answers as one with all rows in memory, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint import files
from shadowsync.pipeline.config.tables import Growth, TableSettings
from shadowsync.pipeline.data.hashing import mix, table_rows_of
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.on_disk import row_cache
from shadowsync.pipeline.embedding.storage.on_disk.cached_rows import CachedArray
from shadowsync.pipeline.embedding.storage.on_disk.row_file import RowFile
from shadowsync.pipeline.embedding.storage.on_disk.row_slots import MOVING_SLOT_BYTES
from shadowsync.pipeline.embedding.storage.on_disk.shares import (
    FEWEST_PLACES,
    PLACE_OVERHEAD_BYTES,
    ROW_OVERHEAD_BYTES,
    disk_shares,
)
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.embedding.storage.shard_work import ShardWork
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.types import Float32Array
from shadowsync.tests.support.tables.embedding_cluster import DrawnRows, EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables.saved_shards import manifest_of_files
from shadowsync.tests.support.tables.tables import make_table

ROWS, BATCH, STEPS = 20_000, 300, 40

KINDS: dict[str, tuple[TableSettings, ...]] = {
    # Two pieces in one bank, of unequal scales.
    "float32": (
        make_table("one", ROWS, 4, optimizer="rowwise_adagrad"),
        make_table("two", ROWS, 4, optimizer="rowwise_adagrad", init_scale=0.5),
    ),
    "bfloat16": (make_table("half", ROWS, 6, optimizer="adam", storage="bfloat16", weight_decay=0.01),),
    "bags": (
        make_table("list", ROWS, 4, pooling="mean", optimizer="adagrad"),
        make_table("some", ROWS, 4, pooling="sum", optimizer="adagrad"),
    ),
    "growing": (
        make_table("user", ROWS, 16, optimizer="rowwise_adagrad", growth=Growth()),
        make_table("shop", ROWS // 4, 16, optimizer="rowwise_adagrad", growth=Growth(evict="never")),
    ),
    "growing_bfloat16": (
        make_table("item", ROWS, 32, optimizer="adam", storage="bfloat16", growth=Growth()),
    ),
}


def draw(tables: tuple[TableSettings, ...], step: int) -> DrawnRows:
    """A batch of frequent and of rare ids: also more of them than a growing table has rows."""
    if tables[0].growth is None:
        # A request has all rows of bags.
        return draw_rows(tables, BATCH // 3 if tables[0].columns[0].pooling else BATCH, step)
    uniform = np.random.default_rng(step).random((len(tables), BATCH))
    ids = np.exp(uniform * np.log(3 * ROWS)).astype(np.uint64)
    hashes = mix(ids + np.arange(len(tables), dtype=np.uint64)[:, None] * np.uint64(10**6))
    rows = table_rows_of(hashes, tuple(table.rows for table in tables))
    return DrawnRows(rows, np.zeros(0, np.int32), np.zeros((0, 0), np.int32), keys=hashes)


def memory_for(tables: tuple[TableSettings, ...], places: int = FEWEST_PLACES) -> int:
    """Bytes of memory in which so many of the tables' rows have places."""
    rows = sum(table.rows for table in tables)
    search = tables[0].growth.row_bytes if tables[0].growth else 0
    slots = MOVING_SLOT_BYTES if search else 0
    place_bytes = tables[0].row_bytes - search + PLACE_OVERHEAD_BYTES
    return int(rows * (ROW_OVERHEAD_BYTES + slots + search) + (places + 40) * place_bytes)


def train(cluster: EmbeddingCluster, steps: range) -> list[Float32Array]:
    """All embeddings of the steps."""
    trained = (cluster.train(draw(cluster.plan.tables, step)) for step in steps)
    return [embedding.copy() for embeddings in trained for embedding in embeddings]


def all_rows(store: ShardStore) -> dict[str, Any]:
    """Each array of the store as a file has it; of rows without an id nothing."""
    found: dict[str, Any] = {}
    for piece, arrays in store.pieces():
        values = {name: np.asarray(array[:]) for name, array in arrays.items()}
        used = values["used_at"] > 0 if "used_at" in values else np.ones(len(piece), np.bool_)
        found |= {f"{piece.table}.{name}": array[used] for name, array in values.items()}
    return found


def on_disk(tables: tuple[TableSettings, ...], folder: Path) -> EmbeddingCluster:
    placed = tuple(replace(table, folder=str(folder)) for table in tables)
    return EmbeddingCluster(placed, 1, memory_bytes=memory_for(tables))


@pytest.mark.parametrize("kind", KINDS)
def test_answers_and_rows_are_those_of_memory_to_the_bit(kind: str, tmp_path: Path) -> None:
    tables = KINDS[kind]
    plain, spilled = EmbeddingCluster(tables, 1), on_disk(tables, tmp_path)
    np.testing.assert_equal(train(plain, range(STEPS)), train(spilled, range(STEPS)))
    np.testing.assert_equal(all_rows(plain.stores[0]), all_rows(spilled.stores[0]))
    counts = spilled.stores[0].disk_counts()
    assert counts["disk_memory_rows"] <= FEWEST_PLACES + 64
    assert counts["disk_reads"] > 100
    assert counts["disk_writes"] > 100
    # Nothing of it can be seen in the folder, and so nothing is left there by a process that is killed.
    assert not list(tmp_path.iterdir())


def test_a_row_that_is_not_written_before_it_makes_way_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: one stale row is enough to fail the test above."""
    tables = KINDS["float32"]
    write, dropped = RowFile.write, list[int]()

    def forgetful(self: RowFile, rows: Any, records: Any) -> None:
        if len(rows) and not dropped:
            dropped.append(int(rows[0]))
            rows, records = rows[1:], records[1:]
        write(self, rows, records)

    monkeypatch.setattr(RowFile, "write", forgetful)
    plain, spilled = EmbeddingCluster(tables, 1), on_disk(tables, tmp_path)
    train(plain, range(STEPS))
    train(spilled, range(STEPS))
    assert dropped
    with pytest.raises(AssertionError):
        np.testing.assert_equal(all_rows(plain.stores[0]), all_rows(spilled.stores[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_has_the_same_rows_and_restores_to_either(kind: str, tmp_path: Path) -> None:
    tables = KINDS[kind]
    plain, spilled = EmbeddingCluster(tables, 1), on_disk(tables, tmp_path)
    train(plain, range(STEPS))
    train(spilled, range(STEPS))
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    store = spilled.stores[0]
    written = ShardPart.of(store, AppliedBatches()).write(folder)
    saved = SavedTables(folder, manifest_of_files(written))
    back, again = EmbeddingCluster(tables, 1), on_disk(tables, tmp_path)
    for cluster in (back, again):
        assert cluster.stores[0].restore(saved) == []
        np.testing.assert_equal(all_rows(plain.stores[0]), all_rows(cluster.stores[0]))
    assert again.stores[0].disk_counts()["disk_memory_rows"] == 0
    more = range(STEPS, STEPS + 10)
    np.testing.assert_equal(train(back, more), train(again, more))


@pytest.mark.parametrize("changes", [False, True])
def test_a_checkpoint_reads_few_records_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, changes: bool
) -> None:
    """Also for state of one number a row: rows wait for a step, and memory has its records meanwhile."""
    spilled, most = on_disk(KINDS["growing"], tmp_path), 64
    train(spilled, range(STEPS))
    store, read, counts, steps = spilled.stores[0], RowFile.read, list[int](), list[int]()
    (record_bytes,) = {bank.cached.file.record_bytes for bank, _ in store._groups if bank.cached}

    def noted(self: RowFile, rows: Any) -> Any:
        counts.append(len(rows))
        return read(self, rows)

    def fetch(step: Callable[[], Any]) -> Any:
        values = step()
        steps.append(len(values))
        return values

    monkeypatch.setattr(RowFile, "read", noted)
    monkeypatch.setattr(files, "PIECE_BYTES", most * record_bytes)
    part = ShardPart.of(store, AppliedBatches())
    if changes:
        part = ShardPart.of_changes(store, None, store.changed_since(0), 1)
    part.served(fetch).write(tmp_path)
    assert max(counts) > most // 8
    assert max(counts) <= most
    # Ids and times of use are in memory.
    assert sum(count == most for count in steps) > len(steps) // 2
    # The control: so many are read at once if nobody counts records.
    counts.clear()
    monkeypatch.setattr(CachedArray, "read_bytes", CachedArray.nbytes)
    part.served(fetch).write(tmp_path)
    assert max(counts) > 4 * most


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "growing"])
def test_changed_rows_are_found_and_copied_wherever_they_are(kind: str, tmp_path: Path) -> None:
    tables = KINDS[kind]
    plain, spilled = EmbeddingCluster(tables, 1), on_disk(tables, tmp_path)
    for cluster in (plain, spilled):
        train(cluster, range(10))
        cluster.stores[0].end_change_epoch()
        train(cluster, range(10, STEPS))
    for piece, arrays in plain.stores[0].pieces():
        changed = [
            next(one for one in cluster.stores[0].changed_since(1) if one.piece == piece)
            for cluster in (plain, spilled)
        ]
        # Of many changes of few rows some are found that are older.
        assert np.isin(changed[0].rows, changed[1].rows).all()
        assert len(changed[1].rows) < len(piece)
        for name, values in arrays.items():
            rows = changed[1].rows
            expected, found = (np.asarray(one.take(rows, 0)) for one in (values, changed[1].arrays[name]))
            used = np.ones(len(rows), np.bool_)
            if kind == "growing":
                used = np.asarray(arrays["used_at"].take(rows)) > 0
            np.testing.assert_array_equal(found[used], expected[used])
    assert 0 < plain.stores[0].changed_bytes(1) <= spilled.stores[0].changed_bytes(1)


@pytest.mark.parametrize(("threads", "last_use"), [(2, row_cache.LAST_USE), (3, row_cache.LAST_USE), (2, 40)])
def test_rows_whose_work_has_not_ended_keep_their_places(
    threads: int, last_use: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that is late by three requests: the store waits for it before it takes a place that it needs.

    Also where the cache numbers requests anew, which a job of some months does once.
    """
    monkeypatch.setattr(row_cache, "LAST_USE", last_use)
    tables = KINDS["float32"]
    plain = EmbeddingCluster(tables, 1)
    store = on_disk(tables, tmp_path).stores[0]
    waiting: list[tuple[ShardWork, Callable[[], None]]] = []
    waits = 0

    def finish(most: int = 0) -> None:
        while len(waiting) > most:
            work, done = waiting.pop(0)
            for thread in range(threads):
                work.run(thread, threads)
            work.finish()
            done()

    def wait_idle() -> None:
        nonlocal waits
        waits += 1
        finish()

    store.wait_before_replacing(wait_idle)
    for step in range(STEPS):
        (request,), (reply,) = plain.call(draw(tables, step))
        out = np.empty_like(reply)

        def compare(out: Float32Array = out, reply: Float32Array = reply) -> None:
            np.testing.assert_array_equal(out, reply)

        waiting.append((store.lookup_work(request.rows, out, request.counts), compare))
        gradients = np.random.default_rng(step).standard_normal(request.floats).astype(np.float32)
        plain.push([request], [gradients])
        waiting.append((store.push_work(request.rows, gradients, request.counts), lambda: None))
        finish(6)
    finish()
    assert waits > 0
    np.testing.assert_equal(all_rows(plain.stores[0]), all_rows(store))


def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    cluster = on_disk(KINDS["float32"], tmp_path)
    rows = np.arange(2 * FEWEST_PLACES, dtype=np.int32)
    with pytest.raises(ResourceError, match=r"embedding.memory_bytes: 4,096 rows of one request .* raise it"):
        cluster.stores[0].lookup(rows, np.empty(4 * len(rows), np.float32))


def test_too_little_memory_is_refused_with_what_is_enough() -> None:
    tables = KINDS["float32"]
    with pytest.raises(ResourceError, match=r"1\.00 kB of memory are too few.* give at least \d") as caught:
        EmbeddingCluster(tables, 1, memory_bytes=1000)
    assert "embedding node 0: embedding.memory_bytes: " in str(caught.value)
    assert f"{sum(table.rows for table in tables):,} rows take " in str(caught.value)


def test_an_error_names_the_table_whose_own_memory_is_too_small(tmp_path: Path) -> None:
    one, two = KINDS["float32"]
    own = replace(one, folder=str(tmp_path), memory_bytes=1000)
    with pytest.raises(ResourceError, match=rf"tables\.{one.name}\.memory_bytes: 1\.00 kB of memory"):
        EmbeddingCluster((own, two), 1)
    cluster = EmbeddingCluster((replace(own, memory_bytes=memory_for((one,))), two), 1)
    rows = np.arange(2 * FEWEST_PLACES, dtype=np.int32)
    bank = next(number for number, at in enumerate(cluster.plan.banks) if at.memory_bytes)
    cached = cluster.stores[0]._groups[bank][0].cached
    assert cached is not None
    with pytest.raises(ResourceError, match=rf"tables\.{one.name}\.memory_bytes: 4,096 rows of one request"):
        cached.take(rows)


def test_tables_of_equal_settings_have_the_sum_of_their_memory(tmp_path: Path) -> None:
    """As `bytes_in_memory` counts them, though their rows are stored together."""
    one, _ = KINDS["float32"]
    own = replace(one, folder=str(tmp_path), memory_bytes=memory_for((one,)))
    (alone,) = disk_shares(TablePlan.make((own,), 1), 0, 0)
    (both,) = disk_shares(TablePlan.make((own, replace(own, name="other")), 1), 0, 0)
    assert alone is not None
    assert both is not None
    assert 1.9 * alone.places < both.places <= 2.1 * alone.places
    assert both.setting == f"embedding node 0: tables.{', '.join(sorted((own.name, 'other')))}.memory_bytes"


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot be reserved in .*nowhere: No such file .*local disk"):
        on_disk(KINDS["float32"], tmp_path / "nowhere")


def test_rows_that_fit_stay_in_memory(tmp_path: Path) -> None:
    tables = tuple(replace(table, folder=str(tmp_path / "nowhere")) for table in KINDS["float32"])
    whole = sum(table.rows * table.row_bytes for table in tables)
    assert EmbeddingCluster(tables, 1, memory_bytes=whole).stores[0].disk_counts() == {}


def test_a_table_may_have_memory_of_its_own(tmp_path: Path) -> None:
    """One table on disk by a setting of its own, one by that of all, one that stays in memory."""
    one, two = KINDS["float32"]
    own = replace(one, folder=str(tmp_path), memory_bytes=memory_for((one,)))
    shared = replace(two, folder=str(tmp_path))
    kept = replace(two, name="kept", memory_bytes=0, folder=str(tmp_path / "nowhere"))
    tables = (own, shared, kept)
    plain, spilled = EmbeddingCluster(tables, 1), EmbeddingCluster(tables, 1, memory_bytes=memory_for((two,)))
    banks = [bank for bank, _ in spilled.stores[0]._groups]
    assert [bank.cached is not None for bank in banks] == [True, True, False]
    train(plain, range(STEPS))
    train(spilled, range(STEPS))
    np.testing.assert_equal(all_rows(plain.stores[0]), all_rows(spilled.stores[0]))
