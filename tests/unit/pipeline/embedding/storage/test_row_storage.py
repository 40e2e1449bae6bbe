"""Rows of bfloat16 in a node's store, beside those of float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.bf16_rows import WidenedRows, nearest_bits
from shadowsync.pipeline.embedding.storage.row_storage import make_row_storage
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.types import Float32Array, Int32Array
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.saved_shards import manifest_of_files
from shadowsync.tests.support.tables.tables import make_table

ROWS, DIM, LR = 50, 8, 0.1
STORAGES = ("float32", "bfloat16")
OPTIMIZERS = ("sgd", "rowwise_adagrad", "adagrad", "adam")
EVERY_ROW: Int32Array = np.arange(ROWS, dtype=np.int32)


def make_store(storage: str, optimizer: str = "sgd", lr: float = LR, seed: int = 5) -> ShardStore:
    table = make_table("C1", ROWS, DIM, optimizer=optimizer, lr=lr, storage=storage)
    return ShardStore(TablePlan.make([table], 1), 0, seed=seed, memory_fraction=0.8)


def all_rows(store: ShardStore) -> Float32Array:
    out = np.empty((ROWS, DIM), np.float32)
    store.lookup(EVERY_ROW, out)
    return out


def closed_form(
    name: str, before: NDArray[np.float64], pushes: list[tuple[Int32Array, Float32Array]]
) -> NDArray[np.float64]:
    """In float64, with the gradients of a row summed first."""
    weights = before.copy()
    means, squares = np.zeros((ROWS, DIM)), np.zeros((ROWS, DIM))
    counts = np.zeros(ROWS)
    for rows, gradients in pushes:
        sums = np.zeros((ROWS, DIM))
        np.add.at(sums, rows, gradients.astype(np.float64))
        here = np.unique(rows)
        sums, counts[here] = sums[here], counts[here] + 1
        if name == "adam":
            means[here] = 0.9 * means[here] + 0.1 * sums
            squares[here] = 0.999 * squares[here] + 0.001 * sums**2
            mean = means[here] / (1 - 0.9 ** counts[here])[:, None]
            factor = 1.0 / (np.sqrt(squares[here] / (1 - 0.999 ** counts[here])[:, None]) + 1e-8)
            weights[here] -= LR * mean * factor
            continue
        squares[here] += (sums**2).mean(1)[:, None] if name == "rowwise_adagrad" else sums**2
        weights[here] -= LR * sums * (1.0 if name == "sgd" else 1.0 / (np.sqrt(squares[here]) + 1e-8))
    return weights


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_its_closed_form_in_either_storage(name: str, storage: str) -> None:
    store, draw = make_store(storage, name), np.random.default_rng(1)
    before = all_rows(store).astype(np.float64)
    pushes = []
    for number in range(20):
        # Few of the rows, most of them more than once.
        rows = draw.integers(0, 15, 40).astype(np.int32)
        gradients = draw.standard_normal((40, DIM)).astype(np.float32)
        store.apply(rows, gradients, batch=batch_id(number))
        pushes.append((rows, gradients))
    wanted = closed_form(name, before, pushes)
    after = all_rows(store)
    # Each of the 20 steps of bfloat16 may be off by 2^-8 of the number, and they go either way.
    tolerance = 1e-4 if storage == "float32" else np.abs(wanted).max() * 2**-7 * np.sqrt(20)
    assert np.abs(after - wanted).max() < tolerance
    assert (np.abs(after - wanted).max() < 1e-4) == (storage == "float32")
    # The control: what the other optimizers make of the same gradients is farther away.
    for other in OPTIMIZERS:
        if other != name:
            assert np.abs(after - closed_form(other, before, pushes)).max() > 2 * tolerance


def test_small_steps_add_up_in_bfloat16_as_they_do_not_by_rounding_to_nearest() -> None:
    # Rows near 1, where bfloat16 has numbers 2^-7 (below: 2^-8) apart, and steps of 1e-4.
    store, steps, small = make_store("bfloat16", lr=1.0), 2000, 1e-4
    store.apply(EVERY_ROW, all_rows(store) - 1.0, batch=batch_id(10**6))
    before = all_rows(store).astype(np.float64)
    nearest = before.astype(np.float32)
    gradients = np.full((ROWS, DIM), small, np.float32)
    for number in range(steps):
        store.apply(EVERY_ROW, gradients, batch=batch_id(number))
        nearest = as_bfloat16(nearest - gradients)
    moved = (before - all_rows(store)).mean()
    assert moved == pytest.approx(steps * small, rel=0.05)
    # The control.
    assert (before - nearest).mean() == 0.0


def as_bfloat16(values: Float32Array) -> Float32Array:
    return np.asarray(WidenedRows(nearest_bits(values)))


def test_the_rounding_repeats_with_seed_and_batch_and_with_nothing_else() -> None:
    def after(seed: int, first: int) -> Float32Array:
        store = make_store("bfloat16", seed=seed)
        store.apply(EVERY_ROW, all_rows(store) / LR, batch=batch_id(99))
        gradients = np.random.default_rng(2).standard_normal((ROWS, DIM)).astype(np.float32)
        for number in range(5):
            store.apply(EVERY_ROW, gradients, batch=batch_id(first + number))
        return all_rows(store)

    np.testing.assert_array_equal(after(5, 0), after(5, 0))
    assert (after(5, 0) != after(5, 10)).any()
    assert (after(5, 0) != after(6, 0)).any()


def test_tables_of_both_storages_live_on_one_node() -> None:
    tables = [make_table(f"C{n}", ROWS, DIM, storage=storage) for n, storage in enumerate(STORAGES)]
    store = ShardStore(TablePlan.make(tables, 1), 0, seed=5, memory_fraction=0.8)
    assert store.dims == (DIM, DIM)
    out = np.empty(2 * DIM, np.float32)
    store.lookup(np.array([3, 3], np.int32), out, (1, 1))
    wide, narrow = out[:DIM], out[DIM:]
    bits = np.concatenate([wide, narrow]).view(np.uint32) & np.uint32(0xFFFF)
    assert bits[:DIM].any()
    assert not bits[DIM:].any()


@pytest.mark.parametrize("to", STORAGES)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_checkpoint_is_float32_and_is_read_into_either_storage(
    storage: str, to: str, tmp_path: Path
) -> None:
    store = make_store(storage, "adam")
    gradients = np.random.default_rng(3).standard_normal((ROWS, DIM)).astype(np.float32)
    store.apply(EVERY_ROW, gradients)
    before = all_rows(store)
    part = ShardPart.of(store, AppliedBatches())
    state_bytes = 4 * ROWS * (2 * DIM + 1)
    assert part.bytes == 4 * ROWS * DIM + state_bytes
    assert part.copy_bytes == (4 if storage == "float32" else 2) * ROWS * DIM + state_bytes
    copied = part.copied()
    store.apply(EVERY_ROW, gradients)
    saved = SavedTables(tmp_path, manifest_of_files(copied.write(tmp_path)))
    # Exactly what was there when it was copied, whatever came after.
    np.testing.assert_array_equal(saved.read("C1", 0, ROWS), before)
    assert (all_rows(store) != before).any()
    other = make_store(to, "adam", seed=6)
    assert other.restore(saved) == []
    wanted = before if to == "float32" else as_bfloat16(before)
    np.testing.assert_array_equal(all_rows(other), wanted)
    ((_, arrays),) = other.pieces()
    np.testing.assert_array_equal(np.asarray(arrays["adam_steps"]), np.ones(ROWS))


def test_bfloat16_takes_half_the_memory_and_is_named_as_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1200

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)
    # 50 rows x 8 x 2 bytes are 800 of the 960 that may be taken; as float32 they are 1,600.
    assert make_store("bfloat16").rows == ROWS
    with pytest.raises(ResourceError, match=r'= 1\.60 kB.*set embedding\.storage = "bfloat16", lower'):
        make_store("float32")
    with pytest.raises(ResourceError, match=r"x 2 bytes = 800 B, and 3\.40 kB of .*state") as caught:
        make_store("bfloat16", "adam")
    assert "embedding.storage" not in str(caught.value)


def test_a_row_of_bfloat16_at_the_largest_number_does_not_become_infinite() -> None:
    largest = float(np.finfo(np.float32).max)
    rows = make_row_storage("bfloat16", 1, 512)
    rows.values[0:1] = np.zeros((1, 512), np.float32)
    rows.add(torch.zeros(1, dtype=torch.int64), torch.full((1, 512), largest), 7)
    kept = rows.values[0:1]
    assert np.isfinite(np.asarray(kept)).all()
    assert (np.asarray(kept) > 0.99 * largest).all()
