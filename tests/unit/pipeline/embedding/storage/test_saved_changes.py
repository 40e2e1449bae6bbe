"""Changed rows in a checkpoint: laid over all rows, for any number of nodes; what does not fit is refused."""

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
from shadowsync.pipeline.checkpoint.files import FileEntry, write_tensors
from shadowsync.pipeline.embedding.storage import bank as bank_module
from shadowsync.pipeline.embedding.storage.applied import AppliedBatches
from shadowsync.pipeline.embedding.storage.saved_changes import parse_role, part_role
from shadowsync.pipeline.embedding.storage.saved_tables import SavedTables
from shadowsync.pipeline.errors import CheckpointError
from shadowsync.tests.support.data.batches import batch_id
from shadowsync.tests.support.tables.embedding_cluster import EmbeddingCluster, draw_rows
from shadowsync.tests.support.tables.saved_shards import manifest_of_files
from shadowsync.tests.support.tables.tables import make_table

TABLES = (
    make_table("user id", 300, 4, optimizer="adagrad"),
    make_table("a.weights", 40, 4, optimizer="rowwise_adagrad", storage="bfloat16"),
    make_table("bags", 500, 3, pooling="mean", optimizer="rowwise_adagrad"),
)
GOOD = {"a.weights": np.ones((2, 3), np.float32), "a.changed_rows": np.array([1, 4])}


@pytest.mark.parametrize("restores", [1, 2, 3])
def test_any_number_of_nodes_restores_what_was_written_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restores: int
) -> None:
    # In chunks that end within the tables.
    monkeypatch.setattr(bank_module, "FILL_ROWS", 17)
    cluster, files = EmbeddingCluster(TABLES, 2), list[FileEntry]()
    for store in cluster.stores:
        files += ShardPart.of(store, AppliedBatches()).write(tmp_path)
        store.end_change_epoch()
    for number in (1, 2, 3):
        cluster.train(draw_rows(TABLES, 10, number))
        for store in cluster.stores:
            applied = AppliedBatches()
            applied.add(batch_id(number))
            changed = store.changed_since(store.end_change_epoch() - 1)
            files += ShardPart.of_changes(store, applied, changed, number).write(tmp_path)
    saved = SavedTables(tmp_path, manifest_of_files(files))
    assert saved.nodes == 2
    assert saved.placement_digest == cluster.plan.placement_digest
    assert [batch_id(3) in saved.applied(node) for node in (0, 1)] == [True, True]
    other = EmbeddingCluster(TABLES, restores)
    for store in other.stores:
        assert store.restore(saved) == []
    for number in range(len(TABLES)):
        np.testing.assert_array_equal(other.table(number), cluster.table(number))
    # The control: without the last changes it is of an earlier moment.
    earlier = [entry for entry in files if parse_role(entry.role) not in ((0, 3), (1, 3))]
    for store in other.stores:
        store.restore(SavedTables(tmp_path, manifest_of_files(earlier)))
    assert any(not np.array_equal(other.table(n), cluster.table(n)) for n in range(len(TABLES)))


def test_rows_that_train_while_they_are_written_are_of_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In tables of either storage, with and without bags, on two nodes."""
    monkeypatch.setattr(files_module, "PIECE_BYTES", 100)
    cluster, files, steps = EmbeddingCluster(TABLES, 2), list[FileEntry](), itertools.count()

    def fetch(copy: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        cluster.train(draw_rows(TABLES, 10, next(steps)))
        return copy()

    for store in cluster.stores:
        files += ShardPart.of(store, AppliedBatches()).served(fetch).write(tmp_path)
    trained = next(steps)
    assert trained > 20
    for number in (1, 2):
        for store in cluster.stores:
            part = ShardPart.of_changes(store, AppliedBatches(), store.changed_since(0), number)
            files += (part.served(fetch) if number == 1 else part).write(tmp_path)
    assert next(steps) > trained + 20
    other = EmbeddingCluster(TABLES, 1)
    (restored,) = other.stores
    for last in (1, 2):
        parts = {*itertools.product((0, 1), range(last + 1))}
        kept = [one for one in files if parse_role(one.role) in parts]
        restored.restore(SavedTables(tmp_path, manifest_of_files(kept)))
        alike = [np.array_equal(other.table(n), cluster.table(n)) for n in range(len(TABLES))]
        # The control: without the last ones they are of many moments.
        assert all(alike) == (last == 2)


def test_roles_are_read_as_they_are_written() -> None:
    for node, number in ((0, 0), (12, 0), (3, 7)):
        assert parse_role(part_role(node, number)) == (node, number)
    assert [parse_role(role) for role in ("dense", "embedding", "embedding-x", "embedding-0-changes-")] == [
        None
    ] * 4


def write(folder: Path, tensors: dict[str, Any]) -> SavedTables:
    """Five rows of a table, and changes with these tensors instead of the good ones."""
    base = {"a.weights": np.zeros((5, 3), np.float32)}
    changes = {name: values for name, values in (GOOD | tensors).items() if values is not None}
    files = [
        entry
        for number, part in enumerate((base, changes))
        for entry in write_tensors(folder, part_role(0, number), part, {"role": part_role(0, number)})
    ]
    return SavedTables(folder, manifest_of_files(files))


def test_only_changed_rows_are_replaced(tmp_path: Path) -> None:
    saved = write(tmp_path, {})
    np.testing.assert_array_equal(saved.read("a", 0, 5).any(axis=1), [False, True, False, False, True])
    np.testing.assert_array_equal(saved.read("a", 1, 4).any(axis=1), [True, False, False])
    assert not saved.read("a", 2, 4).any()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"a.changed_rows": np.array([1, 2, 4])}, "changed rows of table a do not fit together"),
        ({"a.changed_rows": None}, "changed rows of table a do not fit together"),
        ({"a.changed_rows": np.array([[1], [4]])}, "changed rows of table a do not fit together"),
        ({"a.changed_rows": np.array([4, 1])}, "changed rows of table a are not in order"),
        ({"a.changed_rows": np.array([1, 1])}, "changed rows of table a are not in order"),
        ({"a.changed_rows": np.array([1, 5])}, "changed rows of table a are not in order"),
        ({"a.changed_rows": np.array([-1, 4])}, "changed rows of table a are not in order"),
        ({"a.changed_rows": np.array([1.0, 4.0])}, "changed rows of table a are not in order"),
        ({"a.weights": np.ones((2, 2), np.float32)}, "changed rows of table a do not fit its arrays"),
        ({"a.weights": np.ones((2, 3))}, "a.weights is float64, not float32"),
        ({"a.sums": np.ones(2, np.float32)}, "changed rows of table a do not fit its arrays"),
        ({"b.weights": np.ones((1, 3), np.float32), "b.changed_rows": np.array([0])}, "of table b"),
    ],
)
def test_changes_that_do_not_fit_are_refused(tmp_path: Path, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(CheckpointError, match=why) as refused:
        write(tmp_path, wrong).read("a", 0, 5)
    assert str(refused.value).startswith(str(tmp_path))
