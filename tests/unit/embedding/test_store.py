"""A node's store of rows."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shadowsync.pipeline.data.batch import Float32Array, Int32Array
from shadowsync.pipeline.embedding.plan import TablePlan
from shadowsync.pipeline.embedding.rows import row_values
from shadowsync.pipeline.embedding.store import ShardStore
from shadowsync.pipeline.errors import CheckpointError, JobFileError, ResourceError

DIM, LR = 8, 0.1


def make_store(
    rows: list[int] | None = None, nodes: int = 1, node: int = 0, optimizer: str = "rowwise_adagrad"
) -> ShardStore:
    plan = TablePlan.make(rows or [50], DIM, nodes)
    return ShardStore(plan, node, seed=5, optimizer=optimizer, lr=LR, memory_fraction=0.8)


def looked_up(store: ShardStore, rows: Int32Array) -> Float32Array:
    out = np.empty((len(rows), store.dim), np.float32)
    store.lookup(rows, out)
    return out


def snapshot(store: ShardStore) -> dict[str, Float32Array]:
    return {name: values.copy() for name, values in store.tensors().items()}


def assert_same(one: dict[str, Float32Array], other: dict[str, Float32Array]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("nodes", [1, 3])
def test_first_values_hang_on_seed_table_and_row_only(nodes: int) -> None:
    # The large table has more rows than the store fills at once.
    table_rows = [200_000, 9, 300]
    plan = TablePlan.make(table_rows, DIM, nodes)
    for node in range(nodes):
        weights = make_store(table_rows, nodes, node).tensors()["weights"]
        for piece in plan.pieces_of(node):
            scale = table_rows[piece.table] ** -0.5
            wanted = row_values(5, piece.table, np.arange(piece.start, piece.stop), DIM, scale)
            np.testing.assert_array_equal(weights[piece.offset : piece.offset + len(piece)], wanted)


def test_the_scale_of_first_values_can_be_given() -> None:
    plan = TablePlan.make([500], DIM, 1)
    store = ShardStore(plan, 0, seed=5, optimizer="sgd", lr=LR, memory_fraction=0.8, init_scale=2.0)
    np.testing.assert_array_equal(store.tensors()["weights"], row_values(5, 0, np.arange(500), DIM, 2.0))


def test_lookup_gathers_in_the_order_asked_with_repeats() -> None:
    store = make_store()
    rows = np.array([49, 0, 7, 7, 49], np.int32)
    np.testing.assert_array_equal(looked_up(store, rows), store.tensors()["weights"][rows])
    assert looked_up(store, rows[:0]).shape == (0, DIM)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 49), max_size=60), min_size=1, max_size=5),
    st.sampled_from(["sgd", "rowwise_adagrad"]),
)
def test_pushes_follow_the_closed_form_with_duplicates_summed_first(
    pushes: list[list[int]], name: str
) -> None:
    store = make_store(optimizer=name)
    wanted = store.tensors()["weights"].astype(np.float64)
    squares = np.zeros(50)
    draw = np.random.default_rng(1)
    for push in pushes:
        rows = np.array(push, np.int32)
        gradients = draw.standard_normal((len(rows), DIM)).astype(np.float32)
        kept = gradients.copy()
        store.apply(rows, gradients)
        np.testing.assert_array_equal(gradients, kept)
        sums = np.zeros((50, DIM))
        np.add.at(sums, rows, gradients.astype(np.float64))
        squares += (sums**2).mean(1)
        factor = 1.0 / (np.sqrt(squares) + 1e-8) if name == "rowwise_adagrad" else np.ones(50)
        wanted -= LR * factor[:, None] * sums
    np.testing.assert_allclose(store.tensors()["weights"], wanted, rtol=1e-4, atol=1e-4)


def test_the_closed_form_tells_summing_from_stepping_each_duplicate() -> None:
    together, apart = make_store(), make_store()
    rows = np.array([3, 3], np.int32)
    gradients = np.array([[1.0] * DIM, [2.0] * DIM], np.float32)
    together.apply(rows, gradients)
    for place in range(2):
        apart.apply(rows[place : place + 1], gradients[place : place + 1])
    first = make_store().tensors()["weights"][3]
    np.testing.assert_allclose(first - together.tensors()["weights"][3], LR, rtol=1e-4)
    assert (first - apart.tensors()["weights"][3] > 1.5 * LR).all()


def test_rows_that_are_not_pushed_stay() -> None:
    store = make_store()
    before = snapshot(store)
    store.apply(np.array([4, 9], np.int32), np.ones((2, DIM), np.float32))
    others = np.setdiff1d(np.arange(50), [4, 9])
    for name, values in store.tensors().items():
        np.testing.assert_array_equal(values[others], before[name][others])
        assert (values[[4, 9]] != before[name][[4, 9]]).all()


def test_gradients_may_lie_in_a_received_buffer() -> None:
    plain, received = make_store(), make_store()
    rows = np.array([1, 2, 1], np.int32)
    gradients = np.random.default_rng(0).standard_normal((3, DIM)).astype(np.float32)
    plain.apply(rows, gradients)
    received.apply(rows, memoryview(gradients.tobytes()))
    assert_same(snapshot(plain), snapshot(received))


@pytest.mark.parametrize("wrong", [-1, 50, 2**31 - 1, -(2**31)])
def test_a_row_out_of_range_changes_nothing(wrong: int) -> None:
    store = make_store()
    before = snapshot(store)
    rows = np.array([1, wrong, 2], np.int32)
    out = np.full((3, DIM), 7.0, np.float32)
    with pytest.raises(ValueError, match=rf"row {wrong} \(1 in all\) is not one of node 0's 50"):
        store.lookup(rows, out)
    assert (out == 7.0).all()
    with pytest.raises(ValueError, match=rf"row {wrong} "):
        store.apply(rows, np.ones((3, DIM), np.float32))
    assert_same(snapshot(store), before)


def test_another_shape_or_type_changes_nothing() -> None:
    store = make_store()
    before = snapshot(store)
    rows = np.array([1, 2], np.int32)
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
            store.apply(wrong, np.ones((2, DIM), np.float32))  # type: ignore[arg-type]
    for out in (np.ones((2, DIM)), np.ones((3, DIM), np.float32)):
        with pytest.raises(ValueError, match="out must be"):
            store.lookup(rows, out)  # type: ignore[arg-type]
    assert_same(snapshot(store), before)


def test_tables_that_do_not_fit_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1,000 rows of 8 floats and 4 bytes of state: 36,000 bytes, of which 0.8 of 45,000 are enough.
    plan = TablePlan.make([1000], DIM, 1)

    def make(available: int) -> ShardStore:
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=available))
        return ShardStore(plan, 0, seed=5, optimizer="rowwise_adagrad", lr=LR, memory_fraction=0.8)

    assert make(45_000).rows == 1000
    monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("allocated"))
    with pytest.raises(ResourceError) as caught:
        make(44_990)
    text = str(caught.value)
    for part in (
        "embedding node 0: ",
        "1,000 rows x 8 x 4 bytes = 32,000 bytes",
        "4,000 bytes of optimizer state",
    ):
        assert part in text
    assert "0.8 (embedding.memory_fraction) of the 44,990 bytes available" in text
    assert text.endswith("or lower model.table_rows or model.embedding_dim")
    assert "\n" not in text


def test_an_unknown_optimizer_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"^embedding\.optimizer: "):
        make_store(optimizer="adam")


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_a_restored_store_goes_on_as_the_saved_one(optimizer: str) -> None:
    draw = np.random.default_rng(4)
    pushes = [
        (draw.integers(0, 50, 30).astype(np.int32), draw.standard_normal((30, DIM)).astype(np.float32))
        for _ in range(4)
    ]
    saved, restored = make_store(optimizer=optimizer), make_store(optimizer=optimizer)
    for push in pushes[:2]:
        saved.apply(*push)
    tensors = saved.tensors()
    # In two parts, as a checkpoint of several files comes.
    for start, stop in ((0, 20), (20, 50)):
        restored.load({name: values[start:stop] for name, values in tensors.items()}, start=start)
    for push in pushes[2:]:
        saved.apply(*push)
        restored.apply(*push)
    assert_same(snapshot(saved), snapshot(restored))


def test_tensors_are_not_copies() -> None:
    store = make_store()
    weights = store.tensors()["weights"]
    before = weights.copy()
    store.apply(np.array([4], np.int32), np.ones((1, DIM), np.float32))
    assert (weights[4] != before[4]).all()


def test_a_checkpoint_that_does_not_fit_changes_nothing() -> None:
    store = make_store()
    before = snapshot(store)
    good = {"weights": np.ones((50, DIM), np.float32), "adagrad_sums": np.ones(50, np.float32)}
    wrong: list[tuple[dict[str, Float32Array], int]] = [
        ({"weights": good["weights"]}, 0),
        ({**good, "more": good["adagrad_sums"]}, 0),
        ({**good, "adagrad_sums": np.ones(49, np.float32)}, 0),
        ({**good, "weights": np.ones((50, DIM + 1), np.float32)}, 0),
        ({**good, "adagrad_sums": np.ones(50)}, 0),  # type: ignore[dict-item]
        (good, 1),
        (good, -1),
        (good, 60),
    ]
    for tensors, start in wrong:
        with pytest.raises(CheckpointError, match="embedding node 0"):
            store.load(tensors, start=start)
        assert_same(snapshot(store), before)
    store.load(good)
    assert_same(snapshot(store), good)
