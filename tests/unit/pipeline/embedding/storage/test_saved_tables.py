"""Tables out of a checkpoint: whatever nodes wrote them, and into whatever nodes they go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from shadowsync.nodes.embedding.shard_part import ShardPart
from shadowsync.pipeline.checkpoint.files import write_tensors
from shadowsync.pipeline.config.tables import TableSettings
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.pipeline.embedding.storage import bank as bank_module
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.embedding.storage.store import ShardStore
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.embedding_cluster import EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables.saved_shards import manifest_of_files, save_shards
from shadowsync.tests.support.tables.tables import make_table

TABLES = (
    make_table("user id", 300, 4, optimizer="adagrad"),
    make_table("a.weights", 40, 4, optimizer="rowwise_adagrad"),
    make_table("a", 30, 7),
    make_table("bags", 500, 3, pooling="mean", optimizer="rowwise_adagrad"),
)


def trained(nodes: int, tables: Sequence[TableSettings] = TABLES, steps: int = 3) -> EmbeddingCluster:
    """A cluster whose rows and states are no first values any more."""
    cluster = EmbeddingCluster(tables, nodes)
    for step in range(steps):
        cluster.train(draw_rows(tables, 40, step))
    return cluster


def whole(cluster: EmbeddingCluster) -> dict[str, NDArray[np.float32]]:
    """Every array of every table, its pieces put together."""
    result: dict[str, NDArray[np.float32]] = {}
    for store in cluster.stores:
        for piece, arrays in store.pieces():
            table = cluster.plan.tables[piece.table]
            for name, values in arrays.items():
                at = f"{table.name}.{name}"
                result.setdefault(at, np.full((table.rows, *values.shape[1:]), np.nan, np.float32))
                result[at][piece.start : piece.stop] = values
    return result


@pytest.mark.parametrize("nodes", [1, 3])
def test_tables_are_read_by_name_however_many_nodes_wrote_them(tmp_path: Path, nodes: int) -> None:
    cluster = trained(nodes)
    saved = save_shards(tmp_path, cluster.stores)
    assert saved.names == ("a", "a.weights", "bags", "user id")
    assert saved.nodes == nodes
    assert saved.placement_digest == cluster.plan.placement_digest
    wanted = whole(cluster)
    for table in TABLES:
        assert (saved.rows(table.name), saved.dim(table.name)) == (table.rows, table.dim)
        start, stop = table.rows // 3, table.rows - 1
        rows = saved.read(table.name, start, stop)
        np.testing.assert_array_equal(rows, wanted[f"{table.name}.weights"][start:stop])
        state = saved.read_state(table.name, start, stop)
        assert {f"{table.name}.{name}" for name in state} | {f"{table.name}.weights"} == {
            name for name in wanted if name.rpartition(".")[0] == table.name
        }
        for name, values in state.items():
            np.testing.assert_array_equal(values, wanted[f"{table.name}.{name}"][start:stop])
            assert values.any()


@settings(max_examples=12)
@given(st.integers(1, 4), st.integers(1, 4))
def test_any_number_of_nodes_restores_what_any_number_wrote(
    tmp_path_factory: pytest.TempPathFactory, wrote: int, restores: int
) -> None:
    """With the optimizers' states, in chunks that end within the tables."""
    cluster, other = trained(wrote), EmbeddingCluster(TABLES, restores)
    saved = save_shards(tmp_path_factory.mktemp("shards"), cluster.stores)
    # The control: they are not alike before.
    assert not np.array_equal(whole(cluster)["a.weights"], whole(other)["a.weights"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bank_module, "FILL_ROWS", 17)
        for store in other.stores:
            assert store.restore(saved) == []
    np.testing.assert_equal(whole(other), whole(cluster))


def test_tables_that_are_not_saved_keep_their_first_values(tmp_path: Path) -> None:
    saved = save_shards(tmp_path, trained(2).stores)
    more = (make_table("new", 25, 4), *TABLES[:2], make_table("newer", 5, 9))
    fresh, restored = EmbeddingCluster(more, 2), EmbeddingCluster(more, 2)
    absent = {name for store in restored.stores for name in store.restore(saved)}
    assert absent == {"new", "newer"}
    for number, table in enumerate(more):
        changed = not np.array_equal(restored.table(number), fresh.table(number))
        assert changed == (table.name not in absent)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (make_table("a", 31, 7), "table a has 30 rows in the checkpoint and 31 in the job; set model.tab"),
        (
            make_table("a", 30, 6),
            "table a has dim 7 in the checkpoint and 6 in the job; set model.emb",
        ),
        (
            make_table("a", 30, 7, optimizer="adagrad"),
            "table a was saved with no optimizer state, but adagrad needs adagrad_squares; use the embedding",
        ),
    ],
)
def test_a_table_that_differs_is_refused_before_anything_changes(
    tmp_path: Path, other: TableSettings, why: str
) -> None:
    saved = save_shards(tmp_path, trained(2).stores)
    # The one that differs is the last one of the store.
    tables = [TABLES[0], TABLES[1], other]
    store = ShardStore(TablePlan.make(tables, 1), 0, seed=5, memory_fraction=0.8)
    before = {piece.table: arrays["weights"].copy() for piece, arrays in store.pieces()}
    with pytest.raises(CheckpointError, match=why) as refused:
        store.restore(saved)
    assert str(refused.value).startswith(str(tmp_path))
    for piece, arrays in store.pieces():
        np.testing.assert_array_equal(arrays["weights"], before[piece.table])


def test_each_node_has_its_own_applied_batches(tmp_path: Path) -> None:
    sets = [AppliedBatches(), AppliedBatches()]
    for number in (0, 1, 5):
        sets[0].add(batch_id(number))
    sets[1].add(batch_id(7, epoch=2))
    saved = save_shards(tmp_path, trained(2).stores, sets)
    for node in range(2):
        np.testing.assert_array_equal(saved.applied(node).to_array(), sets[node].to_array())
    with pytest.raises(CheckpointError, match="no tensor applied:2"):
        saved.applied(2)


def test_a_part_that_is_missing_is_told(tmp_path: Path) -> None:
    # Over three nodes the largest table lies on more than one.
    cluster = trained(3)
    parts = [ShardPart.of(store, AppliedBatches()).write(tmp_path) for store in cluster.stores]
    SavedTables(tmp_path, manifest_of_files([entry for files in parts for entry in files]))
    owners = [p.node for p in cluster.plan.pieces if not cluster.plan.is_whole(p)]
    assert len(owners) > 1
    rest = [entry for node, files in enumerate(parts) if node != owners[0] for entry in files]
    with pytest.raises(CheckpointError, match=r"the parts of tensor .* do not fit together"):
        SavedTables(tmp_path, manifest_of_files(rest))


def test_an_unknown_table_and_rows_that_there_are_not_are_told(tmp_path: Path) -> None:
    saved = save_shards(tmp_path, trained(1).stores)
    with pytest.raises(
        CheckpointError, match=r"no table c; use one of its tables: a, a\.weights, bags, user id"
    ):
        saved.read("c", 0, 1)
    with pytest.raises(ValueError, match="has no rows 0 to 31"):
        saved.read("a", 0, 31)


def test_arrays_that_do_not_fit_together_are_told(tmp_path: Path) -> None:
    good = {"a.weights": np.zeros((3, 2), np.float32), "a.adagrad_sums": np.zeros(3, np.float32)}
    for number, wrong in enumerate(
        (
            {"a.adagrad_sums": np.zeros(4, np.float32)},
            {"a.weights": np.zeros(3, np.float32)},
            {"b.adagrad_sums": np.zeros(3, np.float32)},
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        files = write_tensors(folder, "embedding-0", {**good, **wrong}, {"role": "embedding-0"})
        with pytest.raises(CheckpointError, match=r"the arrays of table . do not fit together"):
            SavedTables(folder, manifest_of_files(files))
    files = write_tensors(tmp_path, "embedding-0", good, {"role": "embedding-0"})
    assert SavedTables(tmp_path, manifest_of_files(files)).names == ("a",)


def test_rows_of_another_type_are_told(tmp_path: Path) -> None:
    tensors = {"a.weights": np.zeros((3, 2), np.float64)}
    files = write_tensors(tmp_path, "embedding-0", tensors, {"role": "embedding-0"})
    saved = SavedTables(tmp_path, manifest_of_files(files))
    with pytest.raises(CheckpointError, match=r"a\.weights is float64, not float32"):
        saved.read("a", 0, 3)
