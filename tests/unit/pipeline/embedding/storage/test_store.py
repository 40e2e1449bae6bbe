"""A node's store of rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage.first_values import row_values
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.errors import ResourceError
from shadowsync.pipeline.types import Float32Array, Int32Array
from shadowsync.tests.support.tables.tables import make_table, make_tables

DIM, LR = 8, 0.1


def make_store(
    rows: list[int] | None = None, nodes: int = 1, node: int = 0, optimizer: str = "rowwise_adagrad"
) -> ShardStore:
    tables = make_tables(rows or [50], DIM, optimizer=optimizer, lr=LR)
    return ShardStore(TablePlan.make(tables, nodes), node, seed=5, memory_fraction=0.8)


def looked_up(store: ShardStore, rows: Int32Array) -> Float32Array:
    out = np.empty((len(rows), DIM), np.float32)
    store.lookup(rows, out)
    return out


def arrays(store: ShardStore, table: int = 0) -> dict[str, Float32Array]:
    """The store's own memory of one table."""
    (found,) = [own for piece, own in store.pieces() if piece.table == table]
    return found


def snapshot(store: ShardStore) -> dict[str, Float32Array]:
    return {f"{piece.table}.{name}": a.copy() for piece, own in store.pieces() for name, a in own.items()}


@pytest.mark.parametrize("nodes", [1, 3])
def test_first_values_hang_on_seed_table_and_row_only(nodes: int) -> None:
    # The large table has more rows than the store fills at once; the last one has a width and a scale of its
    # own.
    tables = [*make_tables([200_000, 9, 300], DIM), make_table("own", 500, 3, init_scale=2.0)]
    plan = TablePlan.make(tables, nodes)
    seen = 0
    for node in range(nodes):
        for piece, own in ShardStore(plan, node, seed=5, memory_fraction=0.8).pieces():
            table = tables[piece.table]
            numbers = np.arange(piece.start, piece.stop)
            wanted = row_values(5, piece.table, numbers, table.dim, table.init_scale)
            np.testing.assert_array_equal(own["weights"], wanted)
            seen += len(piece)
    assert seen == 200_809


def test_lookup_gathers_in_the_order_asked_with_repeats() -> None:
    store = make_store()
    rows = np.array([49, 0, 7, 7, 49], np.int32)
    np.testing.assert_array_equal(looked_up(store, rows), arrays(store)["weights"][rows])
    assert looked_up(store, rows[:0]).shape == (0, DIM)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 49), max_size=60), min_size=1, max_size=5),
    st.sampled_from(["sgd", "rowwise_adagrad", "adagrad"]),
    st.sampled_from([1.0, 0.5, 0.0]),
)
def test_pushes_follow_the_closed_form_with_duplicates_summed_first(
    pushes: list[list[int]], name: str, lr_scale: float
) -> None:
    store = make_store(optimizer=name)
    wanted = arrays(store)["weights"].astype(np.float64)
    squares = np.zeros((50, DIM))
    draw = np.random.default_rng(1)
    for push in pushes:
        rows = np.array(push, np.int32)
        gradients = draw.standard_normal((len(rows), DIM)).astype(np.float32)
        kept = gradients.copy()
        store.apply(rows, gradients, lr_scale=lr_scale)
        np.testing.assert_array_equal(gradients, kept)
        sums = np.zeros((50, DIM))
        np.add.at(sums, rows, gradients.astype(np.float64))
        squares += sums**2 if name == "adagrad" else (sums**2).mean(1)[:, None]
        factor = np.ones(1) if name == "sgd" else 1.0 / (np.sqrt(squares) + 1e-8)
        wanted -= LR * lr_scale * factor * sums
    np.testing.assert_allclose(arrays(store)["weights"], wanted, rtol=1e-4, atol=1e-4)


def test_the_closed_form_tells_summing_from_stepping_each_duplicate() -> None:
    together, apart = make_store(), make_store()
    rows = np.array([3, 3], np.int32)
    gradients = np.array([[1.0] * DIM, [2.0] * DIM], np.float32)
    together.apply(rows, gradients)
    for place in range(2):
        apart.apply(rows[place : place + 1], gradients[place : place + 1])
    first = arrays(make_store())["weights"][3]
    np.testing.assert_allclose(first - arrays(together)["weights"][3], LR, rtol=1e-4)
    assert (first - arrays(apart)["weights"][3] > 1.5 * LR).all()


def test_gradients_may_lie_in_a_received_buffer() -> None:
    plain, received = make_store(), make_store()
    rows = np.array([1, 2, 1], np.int32)
    gradients = np.random.default_rng(0).standard_normal((3, DIM)).astype(np.float32)
    plain.apply(rows, gradients)
    received.apply(rows, memoryview(gradients.tobytes()))
    np.testing.assert_equal(snapshot(plain), snapshot(received))


@pytest.mark.parametrize("wrong", [-1, 50, 2**31 - 1, -(2**31)])
def test_a_row_out_of_range_changes_nothing(wrong: int) -> None:
    store = make_store()
    before = snapshot(store)
    rows = np.array([1, wrong, 2], np.int32)
    out = np.full((3, DIM), 7.0, np.float32)
    with pytest.raises(ValueError, match=rf"row {wrong} \(1 in all\) is outside of the 50 rows of node 0"):
        store.lookup(rows, out)
    assert (out == 7.0).all()
    with pytest.raises(ValueError, match=rf"row {wrong} "):
        store.apply(rows, np.ones((3, DIM), np.float32))
    np.testing.assert_equal(snapshot(store), before)


def test_another_shape_or_type_changes_nothing() -> None:
    store = make_store()
    before = snapshot(store)
    rows = np.array([1, 2], np.int32)
    ones = np.ones((2, DIM), np.float32)
    for gradients in (
        np.ones((2, DIM)),
        np.ones((3, DIM), np.float32),
        np.ones((DIM, 2), np.float32).T,
        b"1234",
    ):
        with pytest.raises(ValueError, match="gradients: "):
            store.apply(rows, gradients)  # type: ignore[arg-type]
    for wrong in (rows.astype(np.int64), rows[None]):
        with pytest.raises(ValueError, match=r"rows must be int32 \[N\]"):
            store.apply(wrong, ones)  # type: ignore[arg-type]
    for out in (np.ones((2, DIM)), np.ones((3, DIM), np.float32)):
        with pytest.raises(ValueError, match="out must be"):
            store.lookup(rows, out)  # type: ignore[arg-type]
    for scale in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="lr_scale must be"):
            store.apply(rows, ones, lr_scale=scale)
    np.testing.assert_equal(snapshot(store), before)


def two_banks() -> ShardStore:
    tables = [
        make_table("one", 20, 2, lr=LR),
        make_table("two", 30, 5, optimizer="adagrad", lr=LR),
        make_table("three", 10, 2, lr=LR),
    ]
    return ShardStore(TablePlan.make(tables, 1), 0, seed=5, memory_fraction=0.8)


def test_each_bank_has_its_own_rows_and_width() -> None:
    store = two_banks()
    assert store.dims == (2, 5)
    # Of the first bank a row of each of its tables, of the second one twice.
    rows, counts = np.array([19, 20, 7, 7], np.int32), (2, 2)
    out = np.empty(2 * 2 + 2 * 5, np.float32)
    store.lookup(rows, out, counts)
    np.testing.assert_array_equal(out[:2], arrays(store, 0)["weights"][19])
    np.testing.assert_array_equal(out[2:4], arrays(store, 2)["weights"][0])
    np.testing.assert_array_equal(out[4:].reshape(2, 5), arrays(store, 1)["weights"][[7, 7]])
    before = snapshot(store)
    store.apply(rows, np.ones(14, np.float32), counts)
    wanted = {name: values.copy() for name, values in before.items()}
    wanted["0.weights"][19] -= LR
    wanted["2.weights"][0] -= LR
    # The sum of the two gradients of the row is 2, so s = 4 and the step lr * 2 / 2.
    wanted["1.weights"][7] -= LR
    wanted["1.adagrad_squares"][7] += 4.0
    for name, values in snapshot(store).items():
        np.testing.assert_allclose(values, wanted[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("rows", "counts", "why"),
    [
        ([19, 7], (), "0 counts with the sum 0 do not fit 2 rows in 2 banks"),
        ([19, 7], (2,), "1 counts with the sum"),
        ([19, 7], (1, 2), "2 counts with the sum 3"),
        ([19, 7], (3, -1), "2 counts with the sum 2 do not fit 2 rows"),
        ([30, 7], (1, 1), "row 30 "),
        # The first bank would be changed before the second is looked at.
        ([19, 30], (1, 1), "row 30 "),
    ],
)
def test_counts_or_rows_that_do_not_fit_change_nothing(
    rows: list[int], counts: tuple[int, ...], why: str
) -> None:
    store = two_banks()
    before = snapshot(store)
    numbers = np.array(rows, np.int32)
    with pytest.raises(ValueError, match=why):
        store.apply(numbers, np.ones(7, np.float32), counts)
    out = np.full(7, 9.0, np.float32)
    with pytest.raises(ValueError, match=why):
        store.lookup(numbers, out, counts)
    assert (out == 9.0).all()
    np.testing.assert_equal(snapshot(store), before)


def test_a_node_may_be_left_without_rows() -> None:
    # Three rows for three nodes, but two of them are one small table.
    tables = [make_table("wide", 1, 100), make_table("narrow", 2, 1)]
    plan = TablePlan.make(tables, 3)
    (empty,) = [node for node in range(3) if not plan.rows_of(node)]
    store = ShardStore(plan, empty, seed=5, memory_fraction=0.8)
    nothing = np.zeros(0, np.int32)
    store.apply(nothing, np.zeros(0, np.float32), (0, 0))
    store.lookup(nothing, np.zeros(0, np.float32), (0, 0))
    assert list(store.pieces()) == []


def test_tables_that_do_not_fit_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1,000 rows of 8 floats and 4 bytes of state: 36,000 bytes, of which 0.8 of 45,000 are enough.
    plan = TablePlan.make(make_tables([1000], DIM, optimizer="rowwise_adagrad"), 1)

    def make(available: int) -> ShardStore:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
        return ShardStore(plan, 0, seed=5, memory_fraction=0.8)

    assert make(45_000).rows == 1000
    monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("allocated"))
    with pytest.raises(ResourceError) as caught:
        make(44_990)
    text = str(caught.value)
    for part in (
        "embedding node 0: ",
        "1,000 rows x 8 x 4 bytes = 32.0 kB",
        "4.00 kB of optimizer state",
    ):
        assert part in text
    assert "0.8 (embedding.memory_fraction) of the 45.0 kB available" in text
    assert text.endswith("or let rows lie on disk: embedding.memory_bytes")
    assert "\n" not in text


def test_pieces_are_not_copies() -> None:
    store = make_store()
    weights = arrays(store)["weights"]
    before = weights.copy()
    store.apply(np.array([4], np.int32), np.ones((1, DIM), np.float32))
    assert (weights[4] != before[4]).all()


@pytest.mark.parametrize("name", ["rowwise_adagrad", "adagrad", "adam"])
def test_a_finite_gradient_whose_square_is_not_is_refused_and_changes_nothing(name: str) -> None:
    store = make_store(optimizer=name)
    before = snapshot(store)
    with pytest.raises(ValueError, match="gradients must be finite"):
        store.apply(np.array([1], np.int32), np.full((1, DIM), 1e20, np.float32))
    np.testing.assert_equal(snapshot(store), before)
    # The control: what is large and has a square is taken.
    store.apply(np.array([1], np.int32), np.full((1, DIM), 1e15, np.float32))
    assert all(np.isfinite(values).all() for values in arrays(store).values())
