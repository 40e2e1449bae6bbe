"""A request shared out over threads: the same bytes however many there are, and each row by one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from shadowsync.pipeline.embedding.lookup.router import ShardRouter
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.bank import RowBank
from shadowsync.pipeline.embedding.storage.shard_work import ShardWork
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.types import Float32Array
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.embedding_cluster import draw_rows
from shadowsync.tests.support.tables.tables import make_table

BATCH, PUSHES = 200, 6
TABLES = (
    make_table("one", 300, 16, optimizer="rowwise_adagrad"),
    make_table("two", 70, 16, optimizer="rowwise_adagrad"),
    make_table("bags", 400, 16, pooling="sum", optimizer="rowwise_adagrad"),
    make_table("narrow", 300, 5, optimizer="adam", storage="bfloat16"),
    make_table("more", 90, 5, pooling="mean", optimizer="adam", storage="bfloat16"),
)
PLAN = TablePlan.make(TABLES, 1)
Run = Callable[[ShardWork, int], None]


def in_turn(work: ShardWork, threads: int) -> None:
    for thread in range(threads):
        work.run(thread, threads)
    work.finish()


def backwards(work: ShardWork, threads: int) -> None:
    for thread in reversed(range(threads)):
        work.run(thread, threads)
    work.finish()


def trained(threads: int, run: Run = in_turn) -> dict[str, NDArray[Any]]:
    """What the answers and the store are after some batches, by name."""
    store, router = ShardStore(PLAN, 0, seed=5, memory_fraction=0.8), ShardRouter(PLAN)
    draw, result = np.random.default_rng(3), dict[str, NDArray[Any]]()
    for number in range(PUSHES):
        drawn = draw_rows(TABLES, BATCH, number, longest=9)
        (asked,) = router.requests(drawn.rows, drawn.bag_rows, drawn.bag_lengths)
        parts: Sequence[Any] = (asked.counts, asked.bag_lengths)
        out = np.full(asked.floats, np.nan, np.float32)
        run(store.lookup_work(asked.rows, out, *parts), threads)
        result[f"answer {number}"] = out
        gradients: Float32Array = draw.standard_normal(asked.floats).astype(np.float32)
        counts, lengths = parts
        run(store.push_work(asked.rows, gradients, counts, 0.5, lengths, batch_id(number)), threads)
    for piece, arrays in store.pieces():
        for name, values in arrays.items():
            result[f"{piece.table}.{name}"] = np.array(values)
    return result


def differing(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if one[name].tobytes() != other[name].tobytes()}


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
def test_threads_change_no_bit(threads: int) -> None:
    alone = trained(1)
    assert not any(np.isnan(values).any() for values in alone.values())
    assert differing(alone, trained(threads)) == set()
    assert differing(alone, trained(threads, backwards)) == set()


def test_a_sum_that_goes_by_the_number_of_rows_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the mean of squares by a matrix product, which rounds a row by where it stands."""

    def product(_: str, values: Float32Array, __: Float32Array) -> Float32Array:
        ones = torch.ones(values.shape[1])
        return np.asarray(torch.mv(torch.from_numpy(values).square(), ones).numpy())

    monkeypatch.setattr(np, "einsum", product)
    assert any("adagrad_sums" in name for name in differing(trained(1), trained(3)))


def test_each_row_is_used_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[tuple[int, int], set[int]] = {}
    current = 0
    lookup, apply = RowBank.lookup, RowBank.apply

    def note(bank: RowBank, rows: NDArray[np.int32]) -> None:
        for row in rows.tolist():
            used.setdefault((id(bank), row), set()).add(current)

    def noted_lookup(bank: RowBank, rows: Any, out: Any, own: Any = None) -> None:
        note(bank, rows if own is None else rows[own])
        lookup(bank, rows, out, own)

    def noted_apply(bank: RowBank, rows: Any, *others: Any) -> None:
        note(bank, rows)
        apply(bank, rows, *others)

    def run(work: ShardWork, threads: int) -> None:
        nonlocal current
        for current in range(threads):
            work.run(current, threads)
        work.finish()

    monkeypatch.setattr(RowBank, "lookup", noted_lookup)
    monkeypatch.setattr(RowBank, "apply", noted_apply)
    trained(3, run)
    assert {thread for threads in used.values() for thread in threads} == {0, 1, 2}
    assert all(threads == {row % 3} for (_, row), threads in used.items())
